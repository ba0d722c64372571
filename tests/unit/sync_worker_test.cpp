// Contract of a worker's protocol (sync/worker.hpp): what is legal in which state. A call out of order is an error that
// names it and changes nothing, and the delivery can still be finished afterwards.
#include "catch.hpp"
#include "text_matchers.hpp"

#include "sync/worker.hpp"

#include <functional>

namespace {

using namespace deltawire;
using sync::WorkerProtocol;
using sync::WorkerState;
using Fresh = WorkerProtocol::Fresh;

wire::Begin seed_begin(std::uint64_t delivery, std::uint64_t target) {
  return {delivery, wire::DeliveryKind::seed, 0, target};
}
wire::Begin delta_begin(std::uint64_t delivery, std::uint64_t base, std::uint64_t target) {
  return {delivery, wire::DeliveryKind::delta, base, target};
}
wire::Begin fold_begin(std::uint64_t delivery, std::uint64_t base, std::uint64_t target) {
  return {delivery, wire::DeliveryKind::fold, base, target};
}
wire::Seal manifest(std::uint64_t delivery, std::uint64_t flushes, std::uint64_t bytes) {
  return {delivery, flushes, bytes, {}};
}

/// Everything that can be seen from outside.
struct Facts {
  WorkerState state;
  std::uint64_t version, delivery, target;
  bool in_place, complete;

  explicit Facts(const WorkerProtocol& worker)
    : state(worker.state()), version(worker.version()), delivery(worker.delivery()), target(worker.target()),
      in_place(worker.in_place()), complete(worker.complete()) {}
  friend bool operator==(const Facts&, const Facts&) = default;
};

/// Seeded to version 1 by delivery 1.
WorkerProtocol seeded() {
  WorkerProtocol worker;
  REQUIRE(worker.begin(seed_begin(1, 1)));
  REQUIRE(worker.flush(1, 0, 100) == Fresh::fresh);
  REQUIRE(worker.seal(manifest(1, 1, 100)));
  (void)worker.verified();
  REQUIRE(worker.commit({1}));
  worker.applied();
  REQUIRE(worker.release({1}));
  return worker;
}

// The steps of delivery 2, a delta from version 1 to 2 of two flushes of 10 and 20 bytes.
enum Stage : int { idle, begun, one_flush, all_flushes, sealed, verified, committed, applied, released };

void step(WorkerProtocol& worker, int to) {
  switch (to) {
  case begun:
    REQUIRE(worker.begin(delta_begin(2, 1, 2)));
    break;
  case one_flush:
    REQUIRE(worker.flush(2, 0, 10) == Fresh::fresh);
    break;
  case all_flushes:
    REQUIRE(worker.flush(2, 1, 20) == Fresh::fresh);
    break;
  case sealed:
    REQUIRE(worker.seal(manifest(2, 2, 30)));
    break;
  case verified:
    REQUIRE(worker.complete());
    REQUIRE(worker.verified().bytes == 30);
    break;
  case committed:
    REQUIRE(worker.commit({2}));
    break;
  case applied:
    worker.applied();
    break;
  case released: {
    const auto answer = worker.release({2});
    REQUIRE(answer);
    REQUIRE(answer->version == 2);
    break;
  }
  default:
    break;
  }
}

/// A worker at a stage of delivery 2.
WorkerProtocol at(int stage) {
  WorkerProtocol worker = seeded();
  for (int each = begun; each <= stage; ++each)
    step(worker, each);
  return worker;
}

struct Refused {
  const char* name;
  std::vector<int> stages; ///< where it must be refused
  std::function<std::optional<Failure>(WorkerProtocol&)> call;
};

template <class T>
std::optional<Failure> failure_of(const Result<T>& result) {
  return result ? std::nullopt : std::optional(result.error());
}

const std::vector<int> everywhere{idle, begun, one_flush, all_flushes, sealed, verified, committed, applied, released};
const std::vector<int> running{begun, one_flush, all_flushes, sealed, verified, committed, applied};

const std::vector<Refused>& refused_calls() {
  static const std::vector<Refused> calls{
    {"begin twice",
     {begun, one_flush, all_flushes, sealed, verified, committed, applied, released},
     [](auto& worker) { return failure_of(worker.begin(delta_begin(2, 1, 2))); }},
    {"begin while another delivery runs", running,
     [](auto& worker) { return failure_of(worker.begin(delta_begin(3, 1, 3))); }},
    {"begin of an old delivery", everywhere,
     [](auto& worker) { return failure_of(worker.begin(delta_begin(1, 1, 9))); }},
    {"begin on a base that it does not have", everywhere,
     [](auto& worker) { return failure_of(worker.begin(delta_begin(9, 7, 10))); }},
    {"begin on a base that is behind it",
     {released},
     [](auto& worker) { return failure_of(worker.begin(delta_begin(9, 1, 10))); }},
    {"a fold from a version that it does not have yet", everywhere,
     [](auto& worker) { return failure_of(worker.begin(fold_begin(9, worker.version() + 1, 10))); }},
    {"a fold while a delivery runs", running,
     [](auto& worker) { return failure_of(worker.begin(fold_begin(9, 1, 10))); }},
    {"begin to the version it has", everywhere,
     [](auto& worker) { return failure_of(worker.begin(delta_begin(9, worker.version(), worker.version()))); }},
    {"a fold to the version it has", everywhere,
     [](auto& worker) { return failure_of(worker.begin(fold_begin(9, 1, worker.version()))); }},
    {"a seed to the version it has", everywhere,
     [](auto& worker) { return failure_of(worker.begin(seed_begin(9, worker.version()))); }},
    {"begin to an earlier version",
     {released},
     [](auto& worker) { return failure_of(worker.begin(delta_begin(9, 2, 1))); }},
    {"a seed while a delivery runs", running, [](auto& worker) { return failure_of(worker.begin(seed_begin(9, 9))); }},
    {"a flush that is not due",
     {idle, begun, one_flush, sealed, verified, committed, applied, released},
     [](auto& worker) { return failure_of(worker.flush(2, 2, 5)); }},
    {"a flush with a gap", {begun}, [](auto& worker) { return failure_of(worker.flush(2, 1, 20)); }},
    {"a flush with no delivery", {idle, released}, [](auto& worker) { return failure_of(worker.flush(2, 0, 10)); }},
    {"a flush of an old delivery", everywhere, [](auto& worker) { return failure_of(worker.flush(1, 0, 10)); }},
    {"a flush of a later delivery", everywhere, [](auto& worker) { return failure_of(worker.flush(3, 0, 10)); }},
    {"a manifest that is not due",
     {idle, sealed, verified, committed, applied, released},
     [](auto& worker) { return failure_of(worker.seal(manifest(2, 2, 30))); }},
    {"a manifest of an old delivery", everywhere,
     [](auto& worker) { return failure_of(worker.seal(manifest(1, 2, 30))); }},
    {"a manifest of fewer flushes than came",
     {all_flushes},
     [](auto& worker) { return failure_of(worker.seal(manifest(2, 1, 10))); }},
    {"a manifest of other bytes than came",
     {all_flushes},
     [](auto& worker) { return failure_of(worker.seal(manifest(2, 2, 31))); }},
    {"a commit before it is staged",
     {idle, begun, one_flush, all_flushes, sealed},
     [](auto& worker) { return failure_of(worker.commit({2})); }},
    {"a second commit", {committed, applied, released}, [](auto& worker) { return failure_of(worker.commit({2})); }},
    {"a commit of an old delivery", everywhere, [](auto& worker) { return failure_of(worker.commit({1})); }},
    {"a release before it has applied",
     {idle, begun, one_flush, all_flushes, sealed, verified, committed},
     [](auto& worker) { return failure_of(worker.release({2})); }},
    {"a second release", {released}, [](auto& worker) { return failure_of(worker.release({2})); }},
    {"a release of an old delivery", everywhere, [](auto& worker) { return failure_of(worker.release({1})); }},
    {"an undo of an old delivery", everywhere,
     [](auto& worker) {
       return failure_of(worker.undo({1, "test"}));
     }},
    {"an undo after the release",
     {released},
     [](auto& worker) {
       return failure_of(worker.undo({2, "test"}));
     }},
    {"an undo of a later delivery while one runs", running,
     [](auto& worker) {
       return failure_of(worker.undo({3, "test"}));
     }},
  };
  return calls;
}

} // namespace

TEST_CASE("the straight path of a delta goes through the states of the design") {
  WorkerProtocol worker;
  REQUIRE(worker.state() == WorkerState::empty);
  REQUIRE(worker.begin(seed_begin(1, 1))->version == 0);
  REQUIRE(worker.state() == WorkerState::seeding);
  REQUIRE(worker.in_place());
  worker = seeded();
  REQUIRE(worker.state() == WorkerState::serving);
  REQUIRE(worker.version() == 1);
  const WorkerState expected[] = {WorkerState::serving,  WorkerState::staging,  WorkerState::staging,
                                  WorkerState::staging,  WorkerState::staging,  WorkerState::staging,
                                  WorkerState::in_doubt, WorkerState::in_doubt, WorkerState::serving};
  for (int stage = idle; stage <= released; ++stage) {
    CAPTURE(stage);
    worker = at(stage);
    REQUIRE(worker.state() == expected[stage]);
    REQUIRE(worker.version() == (stage == released ? 2 : 1));
    REQUIRE(worker.complete() == (stage == sealed));
    REQUIRE_FALSE(worker.in_place());
  }
}

TEST_CASE("a call out of order is refused by name, changes nothing, and the delivery can still be finished") {
  std::uint64_t cases = 0;
  for (const Refused& refused : refused_calls())
    for (const int stage : refused.stages) {
      CAPTURE(refused.name, stage);
      WorkerProtocol worker = at(stage);
      const Facts before(worker);
      const auto failure = refused.call(worker);
      REQUIRE(failure);
      REQUIRE_THAT(failure->message, test::contains("deliver") || test::contains("delta") || test::contains("seed") ||
                                       test::contains("fold"));
      REQUIRE((Facts(worker) == before));
      for (int each = stage + 1; each <= released; ++each)
        step(worker, each);
      REQUIRE(worker.state() == WorkerState::serving);
      REQUIRE(worker.version() == 2);
      ++cases;
    }
  fmt::print("worker: {} calls out of order, {} cases\n", refused_calls().size(), cases);
}

TEST_CASE("a delta before any seed is refused") {
  WorkerProtocol worker;
  const auto answer = worker.begin(delta_begin(1, 0, 1));
  REQUIRE_FALSE(answer);
  REQUIRE(answer.error().code == Code::call_order);
  REQUIRE_THAT(answer.error().message, test::contains("before any seed"));
  REQUIRE(worker.state() == WorkerState::empty);
  REQUIRE(worker.begin(seed_begin(1, 1)));
}

TEST_CASE("a fold applies on its base and on every later version, and brings the worker to its target") {
  for (std::uint64_t base = 1; base <= 5; ++base) {
    CAPTURE(base);
    WorkerProtocol worker = at(released); // at version 2
    const auto ready = worker.begin(fold_begin(3, base, 7));
    REQUIRE(ready.has_value() == (base <= 2));
    if (!ready) {
      REQUIRE_THAT(ready.error().message, test::contains(fmt::format("a fold from version {} on", base)));
      REQUIRE_THAT(ready.error().message, test::contains("at version 2"));
      continue;
    }
    REQUIRE(ready->version == 2);
    REQUIRE(worker.state() == WorkerState::staging);
    REQUIRE_FALSE(worker.in_place());
    REQUIRE(worker.seal(manifest(3, 0, 0)));
    (void)worker.verified();
    REQUIRE(worker.commit({3}));
    worker.applied();
    REQUIRE(worker.version() == 2); // not before the release
    REQUIRE(worker.release({3})->version == 7);
    REQUIRE(worker.version() == 7);
  }
}

TEST_CASE("an undone fold puts values back and leaves the worker where it was, not at the fold's base") {
  WorkerProtocol worker = at(released);
  REQUIRE(worker.begin(fold_begin(3, 1, 7)));
  REQUIRE(worker.seal(manifest(3, 0, 0)));
  (void)worker.verified();
  REQUIRE(worker.commit({3}));
  worker.applied();
  const auto undoing = worker.undo({3, "test"});
  REQUIRE(undoing->exchange_back);
  REQUIRE(undoing->answer.version == 2);
  REQUIRE(worker.begin(delta_begin(4, 2, 8)));
}

TEST_CASE("a fold before any seed is refused") {
  WorkerProtocol worker;
  REQUIRE_THAT(worker.begin(fold_begin(1, 0, 1)).error().message, test::contains("before any seed"));
}

TEST_CASE("a seed of a worker that serves is written in place: it serves nothing until its release") {
  WorkerProtocol worker = seeded();
  const auto ready = worker.begin(seed_begin(2, 4));
  REQUIRE(ready);
  REQUIRE(ready->version == 0);
  REQUIRE(worker.state() == WorkerState::seeding);
  REQUIRE(worker.in_place());
  REQUIRE(worker.version() == 0);
  SECTION("released, it serves the target") {
    REQUIRE(worker.seal(manifest(2, 0, 0)));
    (void)worker.verified();
    REQUIRE(worker.commit({2}));
    worker.applied();
    REQUIRE(worker.release({2})->version == 4);
    REQUIRE(worker.state() == WorkerState::serving);
  }
  SECTION("undone, it serves nothing, and goes neither on from its old version nor back behind it") {
    const auto undoing = worker.undo({2, "test"});
    REQUIRE_FALSE(undoing->exchange_back);
    REQUIRE(undoing->answer.version == 0);
    REQUIRE(worker.state() == WorkerState::dirty);
    REQUIRE_FALSE(worker.begin(delta_begin(3, 1, 5)));
    REQUIRE_FALSE(worker.begin(fold_begin(3, 1, 5)));
    const auto back = worker.begin(seed_begin(3, 1));
    REQUIRE_FALSE(back);
    REQUIRE_THAT(back.error().message, test::contains("never go back"));
    REQUIRE(worker.begin(seed_begin(3, 5)));
  }
}

TEST_CASE("frames of a delivery that is over, or that a newer one has replaced, are told from those that are due") {
  for (int stage = begun; stage <= applied; ++stage) {
    CAPTURE(stage);
    WorkerProtocol worker = at(stage);
    REQUIRE(worker.over(1));
    REQUIRE_FALSE(worker.over(2));
    REQUIRE_FALSE(worker.over(3)); // that one would be an error of the root
    REQUIRE(worker.undo({2, "test"}));
    REQUIRE(worker.over(2));
    REQUIRE_FALSE(worker.over(3));
  }
  REQUIRE(at(released).over(2));
  WorkerProtocol never_begun = seeded();
  REQUIRE(never_begun.undo({7, "test"}));
  for (std::uint64_t delivery = 1; delivery <= 7; ++delivery)
    REQUIRE(never_begun.over(delivery));
}

TEST_CASE("a duplicate flush is told as one and counts once, also after the manifest and the commit") {
  for (int stage = one_flush; stage <= applied; ++stage) {
    CAPTURE(stage);
    WorkerProtocol worker = at(stage);
    const Facts before(worker);
    REQUIRE(worker.flush(2, 0, 10) == Fresh::duplicate);
    REQUIRE((Facts(worker) == before));
    for (int each = stage + 1; each <= released; ++each)
      step(worker, each);
    REQUIRE(worker.version() == 2);
  }
}

TEST_CASE("a manifest may overtake the last flushes, and holds for them") {
  WorkerProtocol worker = at(one_flush);
  REQUIRE(worker.seal(manifest(2, 2, 30)));
  REQUIRE_FALSE(worker.complete());
  const auto other_bytes = worker.flush(2, 1, 21);
  REQUIRE_FALSE(other_bytes);
  REQUIRE_THAT(other_bytes.error().message, test::contains("announced 30 bytes"));
  REQUIRE_FALSE(worker.complete());
  REQUIRE(worker.flush(2, 1, 20) == Fresh::fresh);
  REQUIRE(worker.complete());
  REQUIRE_FALSE(worker.flush(2, 2, 0));
  REQUIRE(worker.verified().bytes == 30);
}

TEST_CASE("an update without flushes is complete with its manifest") {
  WorkerProtocol worker = at(begun);
  REQUIRE_FALSE(worker.complete());
  REQUIRE(worker.seal(manifest(2, 0, 0)));
  REQUIRE(worker.complete());
}

TEST_CASE("an undo puts values back only where they were applied, and the worker serves its base") {
  for (int stage = begun; stage <= applied; ++stage) {
    CAPTURE(stage);
    WorkerProtocol worker = at(stage);
    const auto undoing = worker.undo({2, "test"});
    REQUIRE(undoing);
    REQUIRE(undoing->exchange_back == (stage == applied));
    REQUIRE(undoing->answer.delivery == 2);
    REQUIRE(undoing->answer.version == 1);
    REQUIRE(worker.state() == WorkerState::serving);
    REQUIRE(worker.version() == 1);
    REQUIRE_FALSE(worker.undo({2, "test"}));
    REQUIRE_FALSE(worker.flush(2, 2, 1));
    REQUIRE_FALSE(worker.commit({2}));
    REQUIRE_FALSE(worker.release({2}));
    REQUIRE_FALSE(worker.begin(delta_begin(2, 1, 2)));
    REQUIRE(worker.begin(delta_begin(3, 1, 3)));
  }
}

TEST_CASE("an undone seed leaves the worker dirty until the next seed") {
  WorkerProtocol worker;
  REQUIRE(worker.begin(seed_begin(1, 1)));
  const auto undoing = worker.undo({1, "test"});
  REQUIRE(undoing);
  REQUIRE_FALSE(undoing->exchange_back);
  REQUIRE(worker.state() == WorkerState::dirty);
  const auto delta = worker.begin(delta_begin(2, 0, 2));
  REQUIRE_FALSE(delta);
  REQUIRE_THAT(delta.error().message, test::contains("dirty"));
  REQUIRE(worker.begin(seed_begin(2, 2)));
  REQUIRE(worker.state() == WorkerState::seeding);
}

TEST_CASE("an undo of a delivery that never began here is answered, and its late begin refused") {
  WorkerProtocol worker = seeded();
  const auto undoing = worker.undo({2, "test"});
  REQUIRE(undoing);
  REQUIRE_FALSE(undoing->exchange_back);
  REQUIRE(undoing->answer.version == 1);
  REQUIRE(worker.state() == WorkerState::serving);
  REQUIRE_FALSE(worker.begin(delta_begin(2, 1, 2)));
  REQUIRE(worker.begin(delta_begin(3, 1, 3)));
}

TEST_CASE("spoiled memory is neither committed nor served, and an undo does not call it whole") {
  for (int stage = begun; stage <= applied; ++stage) {
    CAPTURE(stage);
    WorkerProtocol worker = at(stage);
    worker.spoiled();
    REQUIRE(worker.state() == WorkerState::dirty);
    REQUIRE_FALSE(worker.commit({2}));
    REQUIRE_FALSE(worker.release({2}));
    REQUIRE(worker.state() == WorkerState::dirty);
    const auto undoing = worker.undo({2, "test"});
    REQUIRE(undoing);
    REQUIRE(undoing->answer.version == 0); // else the root would go on with deltas
    REQUIRE(worker.state() == WorkerState::dirty);
    REQUIRE_FALSE(worker.begin(delta_begin(3, 1, 3)));
    REQUIRE(worker.begin(seed_begin(3, 3)));
  }
}

TEST_CASE("nothing counts as applied before the commit") {
  WorkerProtocol worker = at(verified);
  worker.applied();
  REQUIRE_FALSE(worker.release({2}));
  REQUIRE_FALSE(worker.undo({2, "test"})->exchange_back);
}

TEST_CASE("every state of a worker has a name") {
  for (const auto state : {WorkerState::empty, WorkerState::seeding, WorkerState::serving, WorkerState::staging,
                           WorkerState::in_doubt, WorkerState::dirty})
    REQUIRE(to_string(state) != "unknown");
}

// From root to root

TEST_CASE("a root that is lost takes a delivery with it that was not applied, and leaves in doubt one that was") {
  for (int stage = idle; stage <= released; ++stage) {
    CAPTURE(stage);
    WorkerProtocol worker = at(stage);
    REQUIRE_FALSE(worker.root_lost()); // nothing was written, or it is in doubt
    const bool in_doubt = stage == applied;
    REQUIRE(worker.unsettled() == in_doubt);
    REQUIRE(worker.state() == (in_doubt ? WorkerState::in_doubt : WorkerState::serving));
    REQUIRE(worker.version() == (stage == released ? 2 : 1));
    const wire::Agreed standing = worker.standing();
    REQUIRE(standing.version == worker.version());
    REQUIRE(standing.delivery == (in_doubt ? 2 : 0));
    REQUIRE(standing.target == (in_doubt ? 2 : 0));
    REQUIRE_FALSE(worker.root_lost()); // and again
    REQUIRE(worker.standing() == standing);
  }
}

TEST_CASE("a worker that could not say that it applied puts the old values back when the root is lost") {
  WorkerProtocol worker = at(applied);
  worker.give_up(); // what it read back was wrong
  REQUIRE(worker.root_lost());
  REQUIRE_FALSE(worker.unsettled());
  REQUIRE(worker.state() == WorkerState::serving);
  REQUIRE(worker.version() == 1);
}

TEST_CASE("nothing but the next root's word settles what is in doubt") {
  WorkerProtocol worker = at(applied);
  REQUIRE_FALSE(worker.root_lost());
  worker.meet(77);
  const wire::Agreed standing = worker.standing();
  REQUIRE_FALSE(worker.begin(seed_begin(1, 1)));
  REQUIRE_FALSE(worker.begin(seed_begin(3, 3)));
  REQUIRE_FALSE(worker.release({2}));
  REQUIRE_FALSE(worker.undo({2, ""}));
  REQUIRE_FALSE(worker.undo({3, ""}));
  REQUIRE_FALSE(worker.commit({2}));
  REQUIRE_FALSE(worker.settle({worker.session(), 3, 1}));
  REQUIRE_FALSE(worker.settle({worker.session() + 1, 2, 1}));
  REQUIRE(worker.standing() == standing);
  const bool release = GENERATE(true, false);
  const auto settled = worker.settle({worker.session(), 2, static_cast<std::uint8_t>(release)});
  REQUIRE(settled);
  REQUIRE(settled->released == release);
  REQUIRE(settled->exchange_back == !release);
  REQUIRE(worker.state() == WorkerState::serving);
  REQUIRE(worker.version() == (release ? 2 : 1));
  REQUIRE_FALSE(worker.settle({worker.session(), 2, 1})); // once
  REQUIRE(worker.begin(seed_begin(1, 1)));                // the next root counts from 1
}

TEST_CASE("a seed in doubt is served or leaves the worker dirty") {
  WorkerProtocol worker;
  worker.meet(5);
  REQUIRE(worker.begin(seed_begin(1, 1)));
  REQUIRE(worker.seal(manifest(1, 0, 0)));
  (void)worker.verified();
  REQUIRE(worker.commit({1}));
  worker.applied();
  REQUIRE_FALSE(worker.root_lost());
  REQUIRE(worker.standing() == wire::Agreed{5, 0, 1, 1});
  worker.meet(6);
  const bool release = GENERATE(true, false);
  const auto settled = worker.settle({5, 1, static_cast<std::uint8_t>(release)});
  REQUIRE(settled);
  REQUIRE_FALSE(settled->exchange_back); // there is nothing to put back
  REQUIRE(worker.state() == (release ? WorkerState::serving : WorkerState::dirty));
  REQUIRE(worker.version() == (release ? 1 : 0));
}

TEST_CASE("from one session to another leads a seed only, whatever the numbers are") {
  WorkerProtocol worker;
  worker.meet(5);
  REQUIRE(worker.begin(seed_begin(50, 57)));
  REQUIRE(worker.seal(manifest(50, 0, 0)));
  (void)worker.verified();
  REQUIRE(worker.commit({50}));
  worker.applied();
  REQUIRE(worker.release({50}));
  REQUIRE_FALSE(worker.root_lost());
  worker.meet(6);
  REQUIRE(worker.foreign());
  REQUIRE(worker.standing() == wire::Agreed{5, 57, 0, 0});
  const auto refused = worker.begin(delta_begin(1, 57, 58));
  REQUIRE_FALSE(refused);
  REQUIRE_THAT(refused.error().message, test::contains("a delta before any seed of session 6"));
  REQUIRE_FALSE(worker.begin(fold_begin(1, 1, 58)));
  REQUIRE_FALSE(worker.begin(delta_begin(1, 0, 1)));
  REQUIRE(worker.version() == 57); // still served
  const auto undone = worker.undo({1, "never begun here"});
  REQUIRE(undone);
  REQUIRE(undone->answer.version == 0); // nothing of this session
  REQUIRE(worker.begin(seed_begin(2, 1)));
  REQUIRE(worker.version() == 0);
  REQUIRE(worker.session() == 6);
  REQUIRE_FALSE(worker.foreign());
}

TEST_CASE("the same root again keeps the fence of its deliveries") {
  WorkerProtocol worker = at(released);
  REQUIRE_FALSE(worker.root_lost());
  worker.meet(worker.session());
  REQUIRE_FALSE(worker.begin(seed_begin(2, 3)));
  REQUIRE_FALSE(worker.begin(seed_begin(3, 2)));
  REQUIRE(worker.begin(seed_begin(3, 3)));
}
