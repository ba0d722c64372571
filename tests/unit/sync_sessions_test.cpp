// Workers that outlive their roots (sync/worker.hpp with sync/root_delivery.hpp): roots that die at every phase of a
// session, connections that break, workers that start over, over a network that delivers part of what was sent. What is
// promised: nobody serves two versions within a replica, or one that was not committed, or one that is older than one
// that it served in the same session, or one of an earlier session; and under a root that lives everybody comes to the
// newest version. The books of who holds what are the simulation's own. Planted faults show that it would tell.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/root_delivery.hpp"
#include "sync/worker.hpp"

#include <fmt/format.h>

#include <array>
#include <deque>
#include <iostream>
#include <map>
#include <set>
#include <stdexcept>

namespace {

using namespace deltawire;
using sync::RootDelivery;
using sync::WorkerProtocol;
using sync::WorkerState;
using Kind = wire::DeliveryKind;
using Down = RootDelivery::Message;
using Up = std::variant<wire::Ready, wire::Staged, wire::Applied, wire::Released, wire::Undone, wire::Failed>;

/// When a root died.
enum class Phase : std::uint8_t {
  handshake,            ///< not all have consented
  settling,             ///< in doubt, and the root's word is on its way to some
  seed,                 ///< somebody is being seeded
  staging,              ///< nobody has been told to commit
  mid_commit,           ///< some have applied
  applied_not_released, ///< a whole replica has, and nobody of it serves
  partly_released,      ///< one of a replica serves the target, another does not know
  after_commit,         ///< or between updates
  count
};
constexpr std::size_t phases = static_cast<std::size_t>(Phase::count);
constexpr std::array<const char*, phases> phase_names{
  "handshake", "settling", "seed", "staging", "mid-commit", "applied, not released", "partly released", "after commit"};

enum class Planted : std::uint8_t {
  none,
  always_undo,      ///< what is in doubt is undone, also where another of the replica serves it
  always_release,   ///< what is in doubt is served, also where others never applied it
  delta_to_anybody, ///< the next root takes a version of another session for its own
  forgets_doubt,    ///< a worker whose root is lost undoes what it applied, all by itself
};

struct Held {
  std::uint64_t session = 0, version = 0;
  friend auto operator<=>(const Held&, const Held&) = default;
};

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Counts {
  std::array<std::uint64_t, phases> deaths{};
  std::uint64_t updates = 0, settled_release = 0, settled_undo = 0, resets = 0, restarts = 0, late_settled = 0;
};

struct Worker {
  WorkerProtocol protocol;
  bool connected = false; ///< and it has consented
  std::deque<Down> down;
  std::deque<Up> up;
  Held memory;   ///< what the bytes are; version 0: nothing whole
  Held undo_log; ///< what they were before the exchange
  Kind kind = Kind::seed;
  Held newest; ///< that it served
  bool applied = false;

  [[nodiscard]] bool servable() const {
    return !protocol.unsettled() &&
           (protocol.state() == WorkerState::serving || protocol.state() == WorkerState::staging);
  }
};

class World {
public:
  World(std::uint64_t schedule, Planted planted, Counts& counts)
    : random_(test::generator(8800000 + schedule)), planted_(planted), counts_(counts),
      per_replica_(static_cast<std::uint32_t>(below(3)) + 1), replicas_(static_cast<std::uint32_t>(below(2)) + 1),
      workers_(std::size_t{per_replica_} * replicas_) {}

  void run() {
    for (std::uint64_t roots = 2 + below(5); roots > 0; --roots)
      live_and_die();
    meet_all(false);
    for (int updates = 0; updates < 3; ++updates)
      update(std::nullopt, false);
    for (const Worker& worker : workers_)
      if (!worker.servable() || worker.memory != Held{session_, version_})
        throw Violation(fmt::format("not everybody comes to version {} of the last session: one holds {} of {}",
                                    version_, worker.memory.version, worker.memory.session));
  }

private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  // What was promised.
  void check() {
    for (std::uint32_t first = 0; first < workers_.size(); first += per_replica_) {
      std::optional<Held> served;
      for (std::uint32_t w = first; w < first + per_replica_; ++w) {
        Worker& worker = workers_[w];
        if (!worker.servable())
          continue;
        const Held says{worker.protocol.session(), worker.protocol.version()};
        if (says != worker.memory)
          throw Violation(fmt::format("worker {} serves version {} of session {}, its memory is {} of {}", w,
                                      says.version, says.session, worker.memory.version, worker.memory.session));
        if (!committed_.contains(says))
          throw Violation(fmt::format("worker {} serves version {}, which was never committed", w, says.version));
        if (says < worker.newest)
          throw Violation(fmt::format("worker {} went back from version {} of session {} to {} of {}", w,
                                      worker.newest.version, worker.newest.session, says.version, says.session));
        worker.newest = says;
        if (served.value_or(says) != says)
          throw Violation(fmt::format("a replica serves versions {} and {}", served->version, says.version));
        served = says;
      }
    }
  }

  // Roots.
  void meet_all(bool may_die) {
    ++session_;
    version_ = delivery_ = 0;
    catch_up_.reset();
    lost_.clear();
    root_ = std::make_unique<RootDelivery>(sync::DeliverySettings{
      static_cast<std::uint32_t>(workers_.size()), per_replica_, 0, 1'000'000'000, 1'000'000'000, 0, session_});
    dead_ = false;
    std::vector<std::uint32_t> order(workers_.size());
    for (std::uint32_t w = 0; w < order.size(); ++w)
      order[w] = w;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<wire::Agreed> standing(workers_.size());
    for (const std::uint32_t w : order) {
      if (may_die && below(4 * workers_.size()) == 0)
        return die();
      standing[w] = consent(w);
    }
    act(root_->met(standing));
  }

  wire::Agreed consent(std::uint32_t w) {
    Worker& worker = workers_[w];
    worker.protocol.meet(session_);
    worker.connected = true;
    return worker.protocol.standing();
  }

  void live_and_die() {
    meet_all(true);
    for (std::uint64_t updates = below(4); updates > 0 && !dead_; --updates)
      update(below(3) == 0 ? std::optional(below(14 * workers_.size())) : std::nullopt, true);
    if (!dead_) {
      die();
    }
  }

  Phase phase() const {
    bool all_met = true, settling = false, seeds = false, served = false, whole = false, any_applied = false;
    for (std::uint32_t first = 0; first < workers_.size(); first += per_replica_) {
      std::uint32_t applied = 0, serve = 0;
      for (std::uint32_t w = first; w < first + per_replica_; ++w) {
        const Worker& worker = workers_[w];
        all_met = all_met && worker.connected;
        settling = settling || worker.protocol.unsettled();
        seeds = seeds || worker.protocol.state() == WorkerState::seeding;
        applied += worker.applied ? 1 : 0;
        serve += worker.servable() && worker.memory == Held{session_, version_} ? 1 : 0;
      }
      any_applied = any_applied || applied > 0;
      whole = whole || applied == per_replica_;
      served = served || (applied > 0 && serve > 0);
    }
    if (!all_met)
      return Phase::handshake;
    if (settling)
      return Phase::settling;
    if (served)
      return Phase::partly_released;
    if (whole)
      return Phase::applied_not_released;
    if (any_applied)
      return Phase::mid_commit;
    if (seeds)
      return Phase::seed;
    return root_->running() ? Phase::staging : Phase::after_commit;
  }

  void die() {
    dead_ = true;
    ++counts_.deaths[static_cast<std::size_t>(phase())];
    for (std::uint32_t w = 0; w < workers_.size(); ++w) {
      // What had left the root arrives, up to some point.
      for (std::uint64_t arrive = below(4); arrive > 0 && !workers_[w].down.empty(); --arrive)
        receive(w);
      lose_root(w);
      if (below(12) == 0)
        restart(w);
    }
    check();
  }

  void lose_root(std::uint32_t w) {
    Worker& worker = workers_[w];
    worker.connected = false;
    worker.down.clear();
    worker.up.clear();
    const bool applied = worker.applied;
    if (worker.protocol.root_lost() || (planted_ == Planted::forgets_doubt && applied && forget(worker)))
      worker.memory = worker.undo_log;
    if (worker.protocol.state() == WorkerState::dirty)
      worker.memory = {};
    worker.applied = worker.protocol.unsettled();
    check();
  }

  static bool forget(Worker& worker) {
    const wire::Agreed doubt = worker.protocol.standing();
    const auto settled = worker.protocol.settle({doubt.session, doubt.delivery, 0});
    return settled && settled->exchange_back;
  }

  /// A new process in its place.
  void restart(std::uint32_t w) {
    ++counts_.restarts;
    workers_[w] = Worker{};
  }

  /// A connection breaks and is made again; the root lives.
  void reset(std::uint32_t w) {
    ++counts_.resets;
    act(root_->lost(w, Failure{Code::peer_failed, "reset"}, 0));
    for (std::uint64_t arrive = below(3); arrive > 0 && !workers_[w].down.empty(); --arrive)
      receive(w);
    lose_root(w);
    if (below(4) == 0)
      restart(w);
    lost_.insert(w);
  }
  void come_back(std::uint32_t w) {
    lost_.erase(w);
    const wire::Agreed standing = consent(w);
    counts_.late_settled += standing.delivery != 0 ? 1 : 0;
    act(root_->joined(w, standing));
  }

  // Updates: without flushes, which tell nothing new here.
  void update(std::optional<std::uint64_t> dies_after, bool resets) {
    ++counts_.updates;
    root_->begin_update();
    const std::uint64_t target = version_ + 1;
    std::vector<sync::DeliveryPlan> plans{{target == 1 ? Kind::seed : Kind::delta, target - 1, target}};
    if (catch_up_)
      plans.push_back({catch_up_->kind, catch_up_->base, target});
    catch_up_.reset();
    version_ = target;
    for (const sync::DeliveryPlan& plan : plans) {
      if (!root_->anyone_for(plan))
        continue;
      act(root_->begin(++delivery_, plan, 0));
      while (root_->running() && run_one()) {
        if (dies_after && (*dies_after)-- == 0)
          return die();
        if (resets && below(40) == 0 && lost_.empty())
          reset(static_cast<std::uint32_t>(below(workers_.size())));
      }
      if (root_->running())
        throw Violation("a delivery does not end");
    }
    for (const std::uint32_t w : std::set<std::uint32_t>(lost_))
      come_back(w);
    catch_up_ = root_->catch_up(version_);
    while (run_one()) {
    }
  }

  /// A message arrives, of any of those that are first on their way.
  bool run_one() {
    std::vector<std::pair<std::uint32_t, bool>> ready;
    for (std::uint32_t w = 0; w < workers_.size(); ++w) {
      if (!workers_[w].down.empty())
        ready.emplace_back(w, true);
      if (!workers_[w].up.empty())
        ready.emplace_back(w, false);
    }
    if (ready.empty())
      return false;
    const auto [w, down] = ready[below(ready.size())];
    if (down) {
      receive(w);
    } else {
      const Up message = std::move(workers_[w].up.front());
      workers_[w].up.pop_front();
      act(std::visit([&, w = w](const auto& each) { return root_->on(w, each, 0); }, message));
    }
    check();
    return true;
  }

  void act(const RootDelivery::Actions& actions) {
    for (const auto& [w, message] : actions.send) {
      if (std::holds_alternative<wire::Commit>(message))
        committed_.insert({session_, version_});
      Down sent = message;
      if (auto* settle = std::get_if<wire::Settle>(&sent)) {
        if (planted_ == Planted::always_undo)
          settle->release = 0;
        if (planted_ == Planted::always_release)
          settle->release = 1;
        ++(settle->release != 0 ? counts_.settled_release : counts_.settled_undo);
      }
      if (auto* begin = std::get_if<wire::Begin>(&sent); begin && planted_ == Planted::delta_to_anybody) {
        // As if the number that the worker brought along were one of this session's.
        const std::uint64_t has = workers_[w].protocol.version();
        if (begin->kind == Kind::seed && workers_[w].protocol.state() == WorkerState::serving)
          *begin = {begin->delivery, Kind::delta, has, begin->target};
      }
      workers_[w].down.push_back(sent);
    }
    if (actions.may_send_flushes)
      act(root_->seal([](std::uint32_t) { return RootDelivery::Digests{}; }, 0));
  }

  // Workers.
  void receive(std::uint32_t w) {
    const Down message = std::move(workers_[w].down.front());
    workers_[w].down.pop_front();
    std::visit([&](const auto& each) { take(w, each); }, message);
  }
  void refused(std::uint32_t w, const Failure& failure) {
    throw Violation(fmt::format("worker {} must refuse: {}", w, failure.message));
  }
  void take(std::uint32_t w, const wire::Begin& message) {
    Worker& worker = workers_[w];
    const auto ready = worker.protocol.begin(message);
    if (!ready)
      return refused(w, ready.error());
    worker.kind = message.kind;
    worker.applied = false;
    if (worker.protocol.in_place())
      worker.memory = {};
    worker.up.push_back(*ready);
  }
  void take(std::uint32_t w, const wire::Seal& message) {
    Worker& worker = workers_[w];
    if (const auto sealed = worker.protocol.seal(message); !sealed)
      return refused(w, sealed.error());
    if (worker.protocol.complete())
      worker.up.push_back(worker.protocol.verified());
  }
  void take(std::uint32_t w, const wire::Commit& message) {
    Worker& worker = workers_[w];
    if (const auto committed = worker.protocol.commit(message); !committed)
      return refused(w, committed.error());
    worker.undo_log = worker.memory;
    worker.memory = {worker.protocol.session(), worker.protocol.target()};
    worker.protocol.applied();
    worker.applied = true;
    wire::Applied applied;
    applied.delivery = message.delivery;
    applied.version = worker.protocol.target();
    worker.up.push_back(applied);
  }
  void take(std::uint32_t w, const wire::Release& message) {
    Worker& worker = workers_[w];
    const auto released = worker.protocol.release(message);
    if (!released)
      return refused(w, released.error());
    worker.applied = false;
    worker.up.push_back(*released);
  }
  void take(std::uint32_t w, const wire::Undo& message) {
    Worker& worker = workers_[w];
    const auto undoing = worker.protocol.undo(message);
    if (!undoing)
      return refused(w, undoing.error());
    put_back(worker, undoing->exchange_back);
    worker.up.push_back(undoing->answer);
  }
  void take(std::uint32_t w, const wire::Settle& message) {
    Worker& worker = workers_[w];
    const auto settled = worker.protocol.settle(message);
    if (!settled)
      return refused(w, settled.error());
    put_back(worker, settled->exchange_back);
  }
  void take(std::uint32_t w, const wire::Audit&) { throw Violation(fmt::format("worker {} is audited unasked", w)); }
  void take(std::uint32_t w, const wire::Adopt&) { throw Violation(fmt::format("worker {} is to adopt unasked", w)); }
  static void put_back(Worker& worker, bool exchange_back) {
    if (exchange_back)
      worker.memory = worker.undo_log;
    if (worker.protocol.state() == WorkerState::dirty)
      worker.memory = {};
    worker.applied = false;
  }

  std::mt19937_64 random_;
  Planted planted_;
  Counts& counts_;
  std::uint32_t per_replica_, replicas_;
  std::vector<Worker> workers_;
  std::unique_ptr<RootDelivery> root_;
  std::uint64_t session_ = 0, version_ = 0, delivery_ = 0;
  std::optional<sync::DeliveryPlan> catch_up_;
  std::set<std::uint32_t> lost_;
  std::set<Held> committed_;
  bool dead_ = true;
};

} // namespace

TEST_CASE("roots die at every phase: no replica serves two versions, none goes back, and the next root heals all") {
  constexpr std::uint64_t schedules = 10000;
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule)
    try {
      World(schedule, Planted::none, counts).run();
    } catch (const Violation& violation) {
      FAIL("schedule " << schedule << " of seed " << test::seed() << ": " << violation.what());
    }
  std::cout << "sessions: seed " << test::seed() << ", " << schedules << " schedules, " << counts.updates
            << " updates; roots died";
  for (std::size_t phase = 0; phase < phases; ++phase) {
    std::cout << (phase == 0 ? " in: " : ", ") << phase_names[phase] << ' ' << counts.deaths[phase];
    CHECK(counts.deaths[phase] > 20);
  }
  std::cout << "; in doubt: " << counts.settled_release << " released, " << counts.settled_undo << " undone; "
            << counts.resets << " connections reset, " << counts.restarts << " workers restarted\n";
  CHECK(counts.settled_release > 100);
  CHECK(counts.settled_undo > 100);
  CHECK(counts.late_settled > 10);
}

TEST_CASE("a root or a worker that settles wrongly, or takes another session's version for its own, is caught") {
  for (const Planted planted :
       {Planted::always_undo, Planted::always_release, Planted::delta_to_anybody, Planted::forgets_doubt}) {
    CAPTURE(static_cast<int>(planted));
    std::uint64_t caught = 0;
    Counts counts;
    for (std::uint64_t schedule = 0; schedule < 400; ++schedule)
      try {
        World(schedule, planted, counts).run();
      } catch (const Violation&) {
        ++caught;
      }
    CHECK(caught > 0);
  }
}
