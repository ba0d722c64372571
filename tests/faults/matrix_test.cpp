// A table of faults: what happens (killed, stopped for longer than the deadline, connections reset, a bit flipped on
// the wire) x to whom (the root, the other rank, a worker, one worker of a tensor-parallel pair) x when. For each cell:
// who is left says within the deadlines who was lost and why; no engine ever generates with bits that are no version,
// nor do two of a replica generate with two versions at once; and the next updates, of the same trainer, or of the next
// one where a trainer's process was lost, leave everybody with the same bits.
//
// By default each fault, each victim and each moment are met at least once. DELTAWIRE_FAULTS=all takes every cell,
// "kill-root-send,stop-rank-gather" those; DELTAWIRE_FAULTS_TABLE names a file that gets the table too.

#include "catch.hpp"
#include "proxy.hpp"
#include "random.hpp"
#include "sessions/job.hpp"
#include "wire/frame.hpp"
#include "wire/messages.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace wire = deltawire::wire;
using namespace deltawire::test;

namespace {

enum class Fault { kill, stop, reset, damage };
enum class Victim { root, rank, worker, pair };
enum class When { handshake, seed, capture, gather, send, staged, ordered, commit, applied, release, committed };

constexpr std::array fault_names{"kill", "stop", "reset", "damage"};
constexpr std::array victim_names{"root", "rank", "worker", "pair"};
constexpr std::array when_names{"handshake", "seed",   "capture", "gather",  "send",     "staged",
                                "ordered",   "commit", "applied", "release", "committed"};

struct Cell {
  Fault fault = Fault::kill;
  Victim victim = Victim::root;
  When when = When::handshake;

  [[nodiscard]] std::string name() const {
    return fmt::format("{}-{}-{}", fault_names.at(static_cast<std::size_t>(fault)),
                       victim_names.at(static_cast<std::size_t>(victim)),
                       when_names.at(static_cast<std::size_t>(when)));
  }
};

struct Result {
  std::string reported; ///< by who is left
  std::string healed;   ///< by what
  double seconds_to_report = 0, seconds = 0;
};

class Clock {
public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void require(bool holds, const std::string& what) {
  if (!holds)
    throw std::runtime_error(what);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr int watched = 1; ///< the worker at which the moments are; with a mate, worker 0, where it is one of a pair

/// One cell from its start to its end. Throws where something is not as it must be.
class Course {
public:
  Course(const Cell& cell, std::uint64_t seed)
    : cell_(cell), per_replica_(cell.victim == Victim::worker ? 1 : 2), port_(reserve_port()),
      proxy_(port_, peers(), seed), job_(options(), port_) {}

  Result run() {
    try {
      return steps();
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}{}", error.what(), job_.events()));
    }
  }

private:
  Result steps() {
    const Clock clock;
    job_.start_trainer();
    job_.update();
    if (cell_.when >= When::capture && cell_.when <= When::committed)
      job_.update();
    job_.until_all_stand(fmt::format("{} serving yes", job_.version()));
    if (cell_.when == When::handshake || cell_.when == When::seed)
      job_.kill_trainer(); // so that the workers are ones that outlive their trainer
    reach();
    const Clock since;
    inject();
    if (in_handshake())
      see_handshake();
    else if (session_ends())
      see_session_end();
    else
      see_worker_left_out();
    result_.seconds_to_report = since.seconds();
    check_cause();
    come_back();
    check_memories();
    heal();
    job_.close();
    job_.check_engines();
    result_.seconds = clock.seconds();
    return result_;
  }

  [[nodiscard]] static std::vector<std::string> peers() {
    return {"rank 1", "worker 0", "worker 1", "worker 2", "worker 3"};
  }
  [[nodiscard]] JobOptions options() const {
    JobOptions options;
    options.replicas = 2;
    options.workers_per_replica = per_replica_;
    // Small flushes, so that there are several; a handshake that nobody answers ends soon.
    const bool waits = cell_.when == When::handshake && cell_.fault == Fault::stop;
    options.overrides = {"update.reconnect=5min",
                         "update.stall=3s", // also of a machine with more to do
                         "update.engine=3s",         fmt::format("update.connect={}s", waits ? 6 : 20),
                         "update.timeout=30s",       "actors.flush_bucket.cap=8KiB",
                         "actors.differ.chunk=16KiB"};
    options.address = [this](const std::string& peer) { return proxy_.address(peer); };
    return options;
  }

  // Where and when
  // ---------------------------------------------------------------------------------------------------------------

  [[nodiscard]] bool in_handshake() const { return cell_.when == When::handshake; }
  [[nodiscard]] bool of_worker() const { return cell_.victim == Victim::worker || cell_.victim == Victim::pair; }
  [[nodiscard]] std::string victim() const {
    return cell_.victim == Victim::root ? "rank 0" : cell_.victim == Victim::rank ? "rank 1" : "worker 1";
  }

  /// The frame that stands for the moment; none where a hook or the outcome does.
  [[nodiscard]] std::optional<Moment> moment() const {
    switch (cell_.when) {
    case When::handshake:
      if (cell_.victim == Victim::rank)
        return Moment{"rank 1", false, {wire::Agreement::type}};
      if (cell_.victim == Victim::root)
        return Moment{"worker 1", false, {wire::Agreement::type}};
      return Moment{"worker 1", true, {wire::DeclareWorker::type}};
    case When::seed:
    case When::send:
      return Moment{"worker 1", false, {static_cast<std::uint16_t>(wire::FrameType::flush)}, true};
    case When::capture:
      return Moment{"rank 1", true, {wire::Offer::type, wire::CaptureReport::type}};
    case When::gather:
      return Moment{"rank 1", true, {static_cast<std::uint16_t>(wire::FrameType::round)}, true};
    case When::staged:
      return Moment{"worker 1", true, {wire::Staged::type}};
    case When::ordered:
      return Moment{"worker 1", false, {wire::Commit::type}};
    case When::applied:
      return Moment{"worker 1", true, {wire::Applied::type}};
    case When::release:
      return Moment{"worker 1", false, {wire::Release::type}};
    case When::commit:
    case When::committed:
      break;
    }
    return std::nullopt;
  }

  void reach() {
    if (const auto moment = this->moment())
      proxy_.stop_at(*moment);
    if (cell_.when == When::commit)
      job_.put("hold-pause-1");
    if (in_handshake()) {
      job_.start_root();
      job_.start_rank();
    } else {
      if (cell_.when == When::seed)
        job_.start_trainer();
      job_.publish();
    }
    const auto mate = [&](const std::string& facts) { return per_replica_ == 1 || contains(job_.status(0), facts); };
    job_.until(cell_.name(), [&] {
      switch (cell_.when) {
      case When::ordered: // its mate has applied; it would serve, if nobody minded the two
        return proxy_.stopped() && (mate("in_doubt") || mate(fmt::format("{} serving", job_.version())));
      case When::commit: // the same, and its own engine has not stopped yet
        return job_.has("paused-1") && mate("in_doubt");
      case When::committed:
        return job_.has_outcome();
      case When::release: // its mate serves already
        return proxy_.stopped() && mate(fmt::format("{} serving", job_.version()));
      default:
        return proxy_.stopped();
      }
    });
  }

  // The fault
  // ---------------------------------------------------------------------------------------------------------------

  [[nodiscard]] Running& process() {
    return of_worker() ? job_.worker(watched) : job_.rank(cell_.victim == Victim::root ? 0 : 1);
  }

  void inject() {
    // What the victim has sent and nobody got, or was to get, is lost with it.
    const auto moment = this->moment();
    bool lose = cell_.victim == Victim::root || (moment && moment->peer == victim());
    switch (cell_.fault) {
    case Fault::kill:
      if (of_worker()) {
        job_.kill_worker(watched);
      } else {
        process().signal(SIGKILL);
        (void)process().wait(10);
      }
      break;
    case Fault::stop:
      job_.stop(process());
      lose = false;
      break;
    case Fault::reset:
      proxy_.reset(cell_.victim == Victim::root ? std::nullopt : std::optional(victim()));
      break;
    case Fault::damage:
      lose = false;
      proxy_.damage(damaged_way().first, damaged_way().second);
      if (!damages_moment())
        until_damaged();
      break;
    }
    proxy_.go_on(lose);
    job_.remove("hold-pause-1");
    if (cell_.fault == Fault::damage)
      until_damaged();
  }

  void until_damaged() const {
    job_.until("a frame is damaged", [&] { return proxy_.damaged() == 1; });
  }

  /// The frame of the moment where the victim has sent it or is to get it; else the next one that the victim sends.
  [[nodiscard]] std::pair<std::string, bool> damaged_way() const {
    const auto moment = this->moment();
    if (cell_.victim == Victim::root)
      return {moment ? moment->peer : "worker 1", false};
    if (moment && moment->peer == victim())
      return {victim(), moment->to_root};
    return {victim(), true};
  }

  [[nodiscard]] bool damages_moment() const {
    const auto moment = this->moment();
    return moment && damaged_way() == std::pair(moment->peer, moment->to_root);
  }

  /// Whether a trainer's process is lost, so that the session ends with it.
  [[nodiscard]] bool session_ends() const {
    if (cell_.fault == Fault::damage)
      return damaged_way().first == "rank 1";
    return !of_worker();
  }

  // Who is left says so
  // ---------------------------------------------------------------------------------------------------------------

  /// The line of a report that names one of the peers.
  void note(const std::string& report, const std::vector<std::string>& names = {}) {
    std::istringstream lines(report);
    for (std::string line; result_.reported.empty() && std::getline(lines, line);)
      if (names.empty() || names_one(line, names))
        result_.reported = line;
  }

  /// A rank's outcome, or its end, names one of the peers.
  void see_rank(int number, const std::vector<std::string>& names) {
    std::string said;
    job_.until(fmt::format("rank {} says that {} is lost", number, names.front()), [&] {
      if (!is_alive(job_.rank(number).pid())) {
        const Ended ended = job_.rank(number).wait(1);
        said = ended.err;
        require(ended.status == 3, fmt::format("rank {} ends with status {}: {}", number, ended.status, said));
        return true;
      }
      if (!job_.has_outcome(number))
        return false;
      said = job_.outcome(number);
      if (said == "committed") {
        job_.publish();
        return false;
      }
      return true;
    });
    require(names_one(said, names), fmt::format("rank {} does not name {}: {}", number, names.front(), said));
    note(said, names);
  }

  [[nodiscard]] static bool names_one(const std::string& text, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      if (contains(text, name))
        return true;
    return false;
  }

  /// Workers go on without a trainer, and know whom they lost.
  void see_workers_parted(const std::vector<std::string>& names) {
    for (int index = 0; index < static_cast<int>(job_.workers()); ++index) {
      if (!job_.has_worker(index) || (of_worker() && cell_.fault == Fault::stop && index == watched))
        continue;
      job_.until(fmt::format("worker {} has lost its trainer", index),
                 [&] { return contains(job_.status(index), " no "); });
      require(names_one(job_.status(index), names),
              fmt::format("worker {} does not name {}: {}", index, names.front(), job_.status(index)));
    }
  }

  void see_session_end() {
    const bool of_root = cell_.victim == Victim::root && cell_.fault != Fault::damage;
    if (of_root) {
      see_rank(1, {"rank 0"});
      see_workers_parted({"rank 0"});
      return;
    }
    see_rank(0, {"rank 1"});
    see_workers_parted({"rank 1"});
  }

  /// Until everybody has connected, or the ranks have ended.
  void see_handshake() {
    const auto ended = [&](int number) { return !is_alive(job_.rank(number).pid()); };
    const int other = cell_.victim == Victim::root ? 1 : 0; // of the ranks, one that is left
    bool connected = false;
    job_.until("the handshake ends, one way or the other", [&] {
      connected =
        job_.has(fmt::format("connected-{}-0", job_.run())) && job_.has(fmt::format("connected-{}-1", job_.run()));
      // A worker that was killed is missed until it is started again.
      if (of_worker() && cell_.fault == Fault::kill && !job_.has_worker(watched))
        job_.start_worker(watched);
      return connected || ended(other);
    });
    const bool waited_for = of_worker() && cell_.fault != Fault::stop;
    // A rank calls again too where its connection ends before the root's first word: it is chance what comes first.
    const bool calls_again = !of_worker() && (cell_.fault == Fault::reset || cell_.fault == Fault::damage);
    if (connected ? !waited_for && !calls_again : waited_for)
      throw std::runtime_error(connected ? "the session began without it"
                                         : "the session did not wait for it: " + job_.rank(other).wait(1).err);
    connected_ = connected;
    if (connected)
      return note("(waited for)");
    see_rank(other, {cell_.fault == Fault::damage ? damaged_way().first : victim()});
  }

  /// The update, or the next one where it had taken this one in already, goes without the worker and says so.
  void see_worker_left_out() {
    FaredWorker seen;
    for (;;) {
      const std::string outcome = job_.outcome();
      require(outcome == "committed", "the other replica is not served: " + outcome);
      const auto fared = job_.fared();
      for (std::size_t index = 0; index < fared.size(); ++index)
        if (index / static_cast<std::size_t>(per_replica_) != watched / static_cast<std::size_t>(per_replica_))
          require(fared[index].version == job_.version() && fared[index].digest_right,
                  fmt::format("worker {} of the other replica is not served: {}", index, fared[index].error));
      seen = fared.at(watched);
      if (!seen.error.empty() || seen.state != "serving")
        break;
      require(job_.version() < 1000, "the root never says that it lost worker 1");
      job_.publish();
    }
    // Between two updates it may have come back already: as one that has nothing.
    require(seen.error.empty() ? seen.state == "empty" && cell_.fault != Fault::stop : contains(seen.error, "worker 1"),
            fmt::format("worker 1 is not named: {} '{}'", seen.state, seen.error));
    note(seen.error.empty() ? "(is back)" : seen.error);
  }

  /// Who is lost is told by its connection, and who stands still by the deadline for that: by no other one, later on.
  void check_cause() const {
    const std::string& said = result_.reported;
    const bool in_time = cell_.fault != Fault::stop ? !contains(said, "(update.")
                         : in_handshake()           ? contains(said, "(update.connect)")
                                          : contains(said, "(update.stall)") || contains(said, "(update.engine)");
    require(in_time, "it was noticed by another deadline than the one for it: " + said);
  }

  // Afterwards
  // ---------------------------------------------------------------------------------------------------------------

  void come_back() {
    if (cell_.fault == Fault::stop) {
      process().signal(SIGCONT);
      if (!of_worker() && !in_handshake())
        see_rank(cell_.victim == Victim::root ? 0 : 1, {"rank ", "worker "}); // it hears of its own fate, too
    }
    if (of_worker() && !job_.has_worker(watched))
      job_.start_worker(watched);
  }

  /// Who serves a version has that version's bits, and nobody is made to serve by accident.
  void check_memories() {
    for (int index = 0; index < static_cast<int>(job_.workers()); ++index) {
      const std::string status = job_.status(index);
      std::istringstream words(status);
      unsigned version = 0;
      std::string state;
      words >> version >> state;
      if (version == 0 || state != "serving")
        continue;
      const std::string memory = job_.memory(index);
      if (job_.status(index) != status)
        continue; // it was under way: the engine itself has looked
      require(memory.ends_with(fmt::format(" {}", version)) && !contains(memory, "elements"),
              fmt::format("worker {} says '{}', its memory: {}", index, status, memory));
    }
  }

  void heal() {
    const bool next_trainer = in_handshake() ? !connected_ : session_ends();
    if (next_trainer) {
      job_.kill_trainer();
      job_.start_trainer();
    }
    // Once the root knows that a worker is back, an update brings it back, or the one after, where this one was
    // under way already.
    int needed = 0;
    for (;;) {
      job_.update();
      bool all = true, lost = false;
      for (const FaredWorker& fared : job_.fared()) {
        require(!contains(fared.error, "digest"), fared.error);
        all = all && fared.version == job_.version() && fared.state == "serving";
        lost = lost || fared.state == "lost";
      }
      needed += lost ? 0 : 1;
      if (all)
        break;
      require(needed < 3, "three updates do not heal: " + all_status());
      require(job_.version() < 1000, "a worker never comes back: " + all_status());
      std::this_thread::sleep_for(std::chrono::milliseconds(lost ? 50 : 0));
    }
    result_.healed = next_trainer ? "next trainer" : fmt::format("{} update{}", needed, needed == 1 ? "" : "s");
    job_.update(); // and a delta on top
    job_.until_all_stand(fmt::format("{} serving yes", job_.version()));
    for (int index = 0; index < static_cast<int>(job_.workers()); ++index) {
      const std::string memory = job_.memory(index);
      require(memory == fmt::format("{} {}", job_.run(), job_.version()),
              fmt::format("worker {} after all: {}", index, memory));
    }
  }

  [[nodiscard]] std::string all_status() const {
    std::string text;
    for (int index = 0; index < static_cast<int>(job_.workers()); ++index)
      text += fmt::format("worker {}: {}; ", index, job_.status(index));
    for (const FaredWorker& fared : job_.fared())
      text += fmt::format("'{} {} {}' ", fared.version, fared.state, fared.error);
    return text;
  }

  Cell cell_;
  int per_replica_, port_;
  Proxy proxy_;
  Job job_;
  bool connected_ = false;
  Result result_;
};

std::vector<Cell> every_cell() {
  std::vector<Cell> cells;
  for (std::size_t fault = 0; fault < fault_names.size(); ++fault)
    for (std::size_t victim = 0; victim < victim_names.size(); ++victim)
      for (std::size_t when = 0; when < when_names.size(); ++when)
        cells.push_back({static_cast<Fault>(fault), static_cast<Victim>(victim), static_cast<When>(when)});
  return cells;
}

std::vector<Cell> wanted_cells() {
  const char* asked = std::getenv("DELTAWIRE_FAULTS");
  const std::string wanted =
    asked != nullptr ? asked
                     : "kill-root-handshake,reset-pair-seed,damage-rank-capture,kill-rank-gather,damage-worker-send,"
                       "stop-root-send,kill-worker-staged,reset-pair-ordered,stop-pair-commit,kill-root-applied,"
                       "kill-pair-release,reset-root-committed";
  std::vector<Cell> cells;
  for (const Cell& cell : every_cell())
    if (wanted == "all" || contains("," + wanted + ",", "," + cell.name() + ","))
      cells.push_back(cell);
  return cells;
}

} // namespace

TEST_CASE("whatever is lost whenever, no worker serves a mix, who is left says who was lost, and all heal") {
  const auto cells = wanted_cells();
  REQUIRE(!cells.empty());
  const std::uint64_t first_seed = seed();
  std::string table = fmt::format("seed {}\n{:<26} {:>8} {:>7}  {:<13} {}\n", first_seed, "cell", "reported", "in all",
                                  "healed by", "what was said");
  int failed = 0;
  for (const Cell& cell : cells) {
    std::string row;
    try {
      const Result result = Course(cell, first_seed).run();
      row = fmt::format("{:<26} {:>6.2f} s {:>5.1f} s  {:<13} {}\n", cell.name(), result.seconds_to_report,
                        result.seconds, result.healed, result.reported);
    } catch (const std::exception& error) {
      ++failed;
      row = fmt::format("{:<26} FAILED: {}\n", cell.name(), error.what());
    }
    std::cout << row << std::flush;
    table += row;
  }
  table += fmt::format("{} cells, {} failed\n", cells.size(), failed);
  if (const char* file = std::getenv("DELTAWIRE_FAULTS_TABLE"))
    std::ofstream(file) << table;
  INFO(table);
  CHECK(failed == 0);
}
