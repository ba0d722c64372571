// A trainer that is killed at each phase of a session, and started again: the workers are the same processes all along,
// serve what they had, pause what is in doubt, settle it with the next trainer, and end with its bits. What a worker
// must hold is worked out here from the rule in peer.cpp.

#include "catch.hpp"
#include "process/command.hpp"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

constexpr const char* topology = R"(
[trainer]
mesh = [["fsdp", 2]]
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]
[worker]
mesh = [["tp", 2]]
[[worker.placement]]
parameter = "*"
shard = ["tp:0"]
)";

class Job {
public:
  explicit Job(std::vector<std::string> more = {"update.reconnect=5min"}) : more_(std::move(more)) {
    master_ = "transport.master=127.0.0.1:" + std::to_string(TakenPort{}.port()); // free again
    topology_ = scratch_.write("topology.toml", topology);
    for (int index = 0; index < 2; ++index)
      workers_.push_back(start("worker", index));
  }

  /// The next trainer. Without `whole` only its root, which then waits for the other rank.
  void start_trainer(bool whole = true) {
    ++run_;
    ranks_.clear();
    version_ = 0;
    for (int rank = 0; rank < (whole ? 2 : 1); ++rank)
      ranks_.push_back(start("trainer", rank));
    for (int rank = 0; rank < 2 && whole; ++rank)
      until(fmt::format("rank {} of run {} is connected", rank, run_),
            [&] { return has(fmt::format("connected-{}-{}", run_, rank)); });
  }
  void kill_root() {
    for (const auto& rank : ranks_) {
      ::kill(rank->pid(), SIGKILL);
      (void)rank->wait(10);
    }
    ranks_.clear();
  }
  [[nodiscard]] Running& rank(std::size_t number) { return *ranks_[number]; }
  /// Returns when each of its threads stands still.
  void stop(const Running& running) const {
    ::kill(running.pid(), SIGSTOP);
    until("a process stops", [&] {
      for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", running.pid()))) {
        const std::string facts = read_file((task.path() / "stat").string());
        if (facts.find(") T ") == std::string::npos)
          return false;
      }
      return true;
    });
  }

  void publish() { put(fmt::format("publish-{}-{}", run_, ++version_)); }
  std::string outcome(int rank = 0) {
    const std::string name = fmt::format("outcome-{}-{}-{}", run_, rank, version_);
    until(name, [&] { return has(name); });
    return read_file(path(name));
  }
  void update() {
    publish();
    REQUIRE(outcome() == "committed");
  }

  void put(const std::string& name) const { std::ofstream(path(name)) << ""; }
  void remove(const std::string& name) const { std::filesystem::remove(path(name)); }
  [[nodiscard]] bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }

  /// A test fails by name where something does not come to be.
  void until(const std::string& what, const std::function<bool()>& holds) const {
    for (int i = 0; i < 12000; ++i) {
      if (holds())
        return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::string ended;
    for (const auto* each : {&ranks_, &workers_})
      for (const auto& running : *each)
        if (!is_alive(running->pid()))
          ended += "; ended: " + running->wait(1).err;
    FAIL("it does not come to: " << what << "; workers stand at '" << status(0) << "' and '" << status(1) << "'"
                                 << ended);
  }
  [[nodiscard]] std::string status(std::size_t index) const {
    const std::string name = "status-" + std::to_string(index);
    return has(name) ? read_file(path(name)) : "";
  }
  /// "VERSION STATE yes|no" of a worker.
  void until_stands(std::size_t index, const std::string& facts) const {
    until(fmt::format("worker {} {}", index, facts), [&] { return status(index).starts_with(facts); });
  }
  void until_both_stand(const std::string& facts) const {
    until_stands(0, facts);
    until_stands(1, facts);
  }

  /// The worker's memory is a version of a run, bit for bit. Only while nothing is under way.
  void check_memory(std::size_t index, unsigned run, unsigned version) const {
    const std::string name = std::to_string(index);
    remove("memory-" + name);
    put("look-" + name);
    until("memory of worker " + name, [&] { return has("memory-" + name); });
    std::string expected;
    for (std::size_t i = 0; i < 32; ++i)
      expected += fmt::format("{:04x}", ((run << 12 | version << 8) ^ (index * 32 + i)) & 0xFFFF);
    CHECK(read_file(path("memory-" + name)) == expected);
  }
  void check_both_hold(unsigned version) const {
    check_memory(0, run_, version);
    check_memory(1, run_, version);
  }
  [[nodiscard]] unsigned run() const { return run_; }
  [[nodiscard]] std::string commits(std::size_t index) const {
    return read_file(path("commits-" + std::to_string(index)));
  }
  [[nodiscard]] Running& worker(std::size_t index) { return *workers_[index]; }

  /// A trainer that seeds, brings one delta, and leaves both workers with it.
  void start_and_update() {
    start_trainer();
    until_both_heal();
  }
  /// The next trainer's seed and its delta: everybody serves the newest bits, the same processes as ever.
  void until_both_heal() {
    update();
    update();
    until_both_stand("2 serving yes");
    check_both_hold(2);
    CHECK(is_alive(workers_[0]->pid()));
    CHECK(is_alive(workers_[1]->pid()));
  }
  void close() {
    put(fmt::format("close-{}", run_));
    for (auto* each : {&ranks_, &workers_})
      for (const auto& running : *each) {
        const Ended ended = running->wait(60);
        INFO(ended.err);
        CHECK(ended.status == 0);
      }
  }

private:
  [[nodiscard]] std::string path(const std::string& name) const { return scratch_.path(name); }
  std::unique_ptr<Running> start(const std::string& side, int index) {
    std::vector<std::string> arguments{
      side, std::to_string(index), topology_, scratch_.path(""), std::to_string(run_), master_};
    arguments.insert(arguments.end(), more_.begin(), more_.end());
    return std::make_unique<Running>(arguments);
  }

  Scratch scratch_;
  std::vector<std::string> more_;
  std::string master_, topology_;
  unsigned run_ = 0, version_ = 0;
  std::vector<std::unique_ptr<Running>> workers_, ranks_;
};

} // namespace

TEST_CASE("workers outlive a trainer that is killed at any phase, and end with the next one's bits") {
  Job job;
  job.start_and_update();

  { // between two updates: they go on serving
    job.kill_root();
    job.until_both_stand("2 serving no");
    CHECK_THAT(job.status(0), Contains("rank 0"));
    job.check_both_hold(2);
  }
  { // in the handshake: the root waits for its other rank
    job.start_trainer(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(300)); // workers call; whether they got through is no matter
    job.kill_root();
    job.until_both_stand("2 serving no");
    job.start_trainer();
    job.until_both_stand("2 serving yes"); // of the session before last, until the seed
    job.check_memory(0, job.run() - 2, 2);
    job.until_both_heal();
  }
  { // in the seed
    job.kill_root();
    job.start_trainer();
    job.put("hold-pause-1");
    job.publish();
    job.until("worker 1 pauses", [&] { return job.has("paused-1"); });
    job.until_stands(0, "0 seeding yes");
    job.kill_root();
    job.until_stands(0, "0 dirty no");
    job.remove("hold-pause-1");
    job.until_stands(1, "0 dirty no");
    job.start_and_update();
  }
  { // staged by one, not by the other: nobody was told to commit
    job.stop(job.worker(1));
    job.publish();
    job.until_stands(0, "2 staging yes");
    job.kill_root();
    ::kill(job.worker(1).pid(), SIGCONT);
    job.until_both_stand("2 serving no");
    job.check_both_hold(2);
    job.start_and_update();
  }
  { // mid-commit: one has applied, the other's engine has not stopped
    job.put("hold-pause-1");
    job.publish();
    job.until_stands(0, "2 in_doubt yes");
    job.until("worker 1 pauses", [&] { return job.has("paused-1"); });
    job.kill_root();
    job.until_stands(0, "0 in_doubt no"); // neither of the two versions is served
    job.put("throw-1");
    job.remove("hold-pause-1");
    job.until_stands(1, "2 serving no");
    job.remove("throw-1");
    job.start_trainer();
    job.until_both_stand("2 serving yes"); // undone, before any update
    job.check_memory(0, job.run() - 1, 2);
    job.check_memory(1, job.run() - 1, 2);
    job.until_both_heal();
  }
  { // applied by both, and the root could not say so any more
    const std::string before = job.commits(0);
    job.put("hold-pause-1");
    job.publish();
    job.until_stands(0, "2 in_doubt yes");
    job.until("worker 1 pauses", [&] { return job.has("paused-1"); });
    job.stop(job.rank(0));
    job.remove("hold-pause-1");
    job.until("worker 1 applies", [&] { return job.status(1).find("in_doubt") != std::string::npos; });
    job.kill_root();
    job.until_both_stand("0 in_doubt no");
    job.start_trainer();
    job.until_both_stand("3 serving yes"); // released, before any update
    job.check_memory(0, job.run() - 1, 3);
    job.check_memory(1, job.run() - 1, 3);
    CHECK(job.commits(0) == before + "3\n"); // and the engine was told
    job.until_both_heal();
  }
  { // after the commit, while one engine still takes it in
    job.put("hold-commit-1");
    job.publish();
    job.until("worker 1 commits", [&] { return job.has("committing-1"); });
    job.until_stands(0, "3 serving yes");
    job.kill_root();
    job.until_stands(0, "3 serving no");
    job.remove("hold-commit-1");
    job.until_both_stand("3 serving no");
    job.check_both_hold(3);
    job.start_and_update();
  }
  job.close();
}

TEST_CASE("a trainer rank that is killed is named by root and workers, and the next job heals") {
  Job job;
  job.start_and_update();
  ::kill(job.rank(1).pid(), SIGKILL);
  job.until_both_stand("2 serving no");
  for (const std::size_t worker : {0u, 1u})
    CHECK_THAT(job.status(worker), Contains("rank 1"));
  job.check_both_hold(2);
  job.publish();
  const Ended root = job.rank(0).wait(30);
  CHECK(root.status == 3);
  CHECK_THAT(root.err, Contains("rank 1"));
  job.start_and_update();
  job.close();
}

TEST_CASE("a worker that waits in vain says what it waited for") {
  Job job({"update.reconnect=500ms"});
  job.start_and_update();
  job.kill_root();
  for (const std::size_t worker : {0u, 1u}) {
    const Ended ended = job.worker(worker).wait(30);
    CHECK(ended.status == 3);
    CHECK_THAT(ended.err, Contains("rank 0") && Contains("update.reconnect"));
  }
}
