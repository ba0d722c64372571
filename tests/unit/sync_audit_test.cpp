// Contract of sync/audit.hpp, and of the audits of sync/root_delivery.hpp and sync/worker.hpp: whose memory is read
// again, what becomes of who is wrong, and who is told to serve what it holds.
#include "catch.hpp"
#include "delivery_actions.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/audit.hpp"
#include "sync/root_delivery.hpp"
#include "sync/worker.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace {

using namespace deltawire;
using sync::AuditPlan;
using sync::DeliveryPlan;
using sync::DeliverySettings;
using sync::Digests;
using sync::Nanoseconds;
using sync::RootDelivery;
using sync::WorkerProtocol;
using sync::WorkerState;
using test::to_whom;
using Actions = RootDelivery::Actions;
using Kind = wire::DeliveryKind;
using Workers = std::vector<std::uint32_t>;

constexpr Nanoseconds stall = 8'000'000'000;
const Digests right{{0, 10}, {2, 12}};

Digests digests_of(std::uint32_t) {
  return right;
}

RootDelivery root_of(std::uint32_t workers, std::uint32_t per_replica, std::uint32_t quorum = 0) {
  DeliverySettings settings{workers, per_replica, quorum, stall, 30 * stall};
  settings.cell_name = [](std::uint32_t cell) { return fmt::format("slot 'w{0}', cell {0}", cell); };
  return RootDelivery(settings);
}

/// A delivery without flushes, to its end, of those whom it fits.
void deliver(RootDelivery& root, std::uint64_t delivery, const DeliveryPlan& plan) {
  const Workers workers = to_whom<wire::Begin>(root.begin(delivery, plan, 0));
  REQUIRE_FALSE(workers.empty());
  for (const std::uint32_t w : workers)
    (void)root.on(w, wire::Ready{delivery, plan.base}, 0);
  (void)root.seal(digests_of, 0);
  for (const std::uint32_t w : workers)
    (void)root.on(w, wire::Staged{delivery, 0}, 0);
  for (const std::uint32_t w : workers) {
    wire::Applied applied;
    applied.delivery = delivery;
    applied.version = plan.target;
    applied.digests = right;
    (void)root.on(w, applied, 0);
  }
  for (const std::uint32_t w : workers)
    (void)root.on(w, wire::Released{delivery, plan.target, 0}, 0);
  REQUIRE_FALSE(root.running());
  REQUIRE_FALSE(root.failure());
}

/// All at version 1.
RootDelivery serving(std::uint32_t workers, std::uint32_t per_replica) {
  RootDelivery root = root_of(workers, per_replica);
  deliver(root, 1, {Kind::seed, 0, 1});
  root.begin_update();
  return root;
}

wire::Audited answer(std::uint64_t audit, const Digests& digests, const std::string& error = "") {
  return {audit, 1, digests, error};
}

} // namespace

TEST_CASE("digests are right when each cell is there, once for each place, and no other") {
  auto random = test::generator(61);
  CAPTURE(test::seed());
  for (int i = 0; i < 3000; ++i) {
    std::map<std::uint32_t, std::uint64_t> truth;
    for (auto n = random() % 6; n > 0; --n)
      truth[static_cast<std::uint32_t>(random() % 8)] = random() % 4;
    const Digests expected(truth.begin(), truth.end());
    Digests reported;
    for (const auto& [cell, digest] : truth)
      for (auto copies = 1 + random() % 2; copies > 0; --copies)
        reported.emplace_back(cell, digest);
    REQUIRE_FALSE(sync::first_wrong(expected, reported));
    // One thing is changed; what is wrong then is found by looking at each cell.
    if (!reported.empty() && random() % 2 == 0) {
      auto& [cell, digest] = reported[random() % reported.size()];
      digest = random() % 4;
    } else if (!reported.empty() && random() % 2 == 0) {
      reported.erase(reported.begin() + static_cast<std::ptrdiff_t>(random() % reported.size()));
    } else {
      reported.emplace_back(static_cast<std::uint32_t>(random() % 9), random() % 4);
      std::sort(reported.begin(), reported.end());
    }
    std::set<std::uint32_t> wrong;
    for (const auto& [cell, digest] : truth)
      if (std::none_of(reported.begin(), reported.end(), [c = cell](const auto& entry) { return entry.first == c; }))
        wrong.insert(cell);
    for (const auto& [cell, digest] : reported)
      if (!truth.contains(cell) || truth[cell] != digest)
        wrong.insert(cell);
    const auto found = sync::first_wrong(expected, reported);
    REQUIRE(found.has_value() == !wrong.empty());
    if (found) {
      REQUIRE(found->cell == *wrong.begin());
      REQUIRE(found->asked == truth.contains(found->cell));
    }
  }
}

TEST_CASE("a worker that read back another digest, or none, is dropped with slot and cell, and its replica undone") {
  const auto applied_with = [](const Digests& digests) {
    RootDelivery root = serving(4, 2);
    const Workers all{0, 1, 2, 3};
    (void)root.begin(2, {Kind::delta, 1, 2}, 0);
    for (const std::uint32_t w : all)
      (void)root.on(w, wire::Ready{2, 1}, 0);
    (void)root.seal(digests_of, 0);
    for (const std::uint32_t w : all)
      (void)root.on(w, wire::Staged{2, 0}, 0);
    wire::Applied applied;
    applied.delivery = applied.version = 2;
    applied.digests = digests;
    const Actions actions = root.on(2, applied, 0);
    CHECK(to_whom<wire::Undo>(actions) == (digests == right ? Workers{} : Workers{2, 3}));
    CHECK(root.takes_part(0));
    return root.records()[2].error;
  };
  CHECK(applied_with(right) == "");
  CHECK_THAT(applied_with({{0, 10}, {2, 13}}),
             test::contains("worker 2: slot 'w2', cell 2: digest 000000000000000d in memory, the trainer has "
                            "000000000000000c"));
  CHECK_THAT(applied_with({{0, 10}, {0, 11}, {2, 12}}), test::contains("slot 'w0', cell 0"));
  CHECK_THAT(applied_with({{0, 10}}), test::contains("slot 'w2', cell 2: no digest"));
  CHECK_THAT(applied_with({}), test::contains("slot 'w0', cell 0: no digest"));
}

TEST_CASE("an audit asks those who serve its version, and ends when all have answered") {
  RootDelivery root = serving(3, 1);
  (void)root.lost(1, {Code::peer_failed, "hung up"}, 0);
  const AuditPlan plan{.audit = 4, .version = 1};
  REQUIRE(root.anyone_for(plan));
  REQUIRE_FALSE(root.anyone_for(AuditPlan{.audit = 4, .version = 2}));
  REQUIRE_FALSE(root.anyone_for(AuditPlan{.audit = 4, .version = 0}));
  const Actions begun = root.audit(plan, digests_of, 0);
  CHECK(to_whom<wire::Audit>(begun) == Workers{0, 2});
  CHECK(root.running());
  CHECK_FALSE(root.on(0, answer(3, right), 0).over); // of another audit
  CHECK_FALSE(root.on(0, answer(4, right), 0).over);
  CHECK_FALSE(root.on(0, answer(4, right), 0).over); // said twice
  CHECK(root.on(2, answer(4, right), 0).over);
  CHECK_FALSE(root.running());
  CHECK_FALSE(root.found());
  CHECK(root.records()[0].audited);
  CHECK_FALSE(root.records()[1].audited);
  CHECK(root.records()[2].audited);
  CHECK(root.records()[2].version == 1);
  CHECK(root.catch_up(1) == std::nullopt);
}

TEST_CASE("who is wrong has nothing whole any more and is seeded with its replica, whoever noticed it") {
  RootDelivery root = serving(4, 2);
  (void)root.audit({.audit = 1, .version = 1}, digests_of, 0);
  const bool worker_says_so = GENERATE(true, false);
  (void)root.on(1, worker_says_so ? answer(1, right, "parameter 'p', cell 2") : answer(1, {{0, 10}, {2, 99}}), 0);
  for (const std::uint32_t w : {0u, 2u, 3u})
    (void)root.on(w, answer(1, right), 0);
  CHECK_FALSE(root.running());
  REQUIRE(root.found());
  CHECK(root.found()->code == Code::verification_failed);
  CHECK_THAT(root.records()[1].error, test::contains("worker 1") && test::contains("cell 2"));
  CHECK_THAT(root.records()[1].error, test::contains("audit of version 1"));
  CHECK(root.records()[1].version == 0);
  CHECK(root.records()[1].dirty);
  CHECK_FALSE(root.records()[1].audited);
  CHECK(root.records()[0].version == 1);
  CHECK(root.records()[2].audited);
  // What it holds is not looked at again.
  CHECK_FALSE(root.anyone_for(AuditPlan{.audit = 2, .version = 1, .adopt = true}));
  REQUIRE(root.catch_up(1) == DeliveryPlan{Kind::seed, 0, 2});
  root.begin_update();
  CHECK(root.anyone_for(DeliveryPlan{Kind::delta, 1, 2}));
  CHECK(to_whom<wire::Begin>(root.begin(2, {Kind::delta, 1, 2}, 0)) == Workers{2, 3});
  (void)root.abandon({Code::superseded, "test"}, 0);
  CHECK(to_whom<wire::Begin>(root.begin(3, {Kind::seed, 0, 2}, 0)) == Workers{0, 1});
}

TEST_CASE("planning again after an audit takes no turn of seeds and folds") {
  RootDelivery root = serving(2, 1);
  deliver(root, 2, {Kind::delta, 1, 2});
  (void)root.audit({.audit = 1, .version = 2}, digests_of, 0);
  (void)root.on(0, answer(1, {}), 0);
  (void)root.on(1, answer(1, right), 0);
  for (int i = 0; i < 3; ++i)
    CHECK(root.catch_up(2) == DeliveryPlan{Kind::seed, 0, 3});
}

TEST_CASE("an audit waits for nobody who is lost, silent, fails or stands still for longer than stall") {
  RootDelivery root = serving(2, 1);
  (void)root.audit({.audit = 1, .version = 1}, digests_of, 0);
  CHECK_FALSE(root.on(1, answer(1, right), 0).over);
  SECTION("lost") {
    CHECK(root.lost(0, {Code::peer_failed, "hung up"}, 1).over);
    CHECK_THAT(root.records()[0].error, test::contains("worker 0: hung up"));
  }
  SECTION("silent") {
    CHECK(root.silent(0, {Code::timed_out, "nothing heard"}, 1).over);
  }
  SECTION("fails") {
    CHECK(root.on(0, wire::Failed{Code::internal, "no", 0}, 1).over);
    CHECK_THAT(root.found().value_or(Failure{}).message, test::contains("worker 0: no"));
  }
  SECTION("stands still") {
    CHECK_FALSE(root.tick(stall - 1).over);
    CHECK(root.tick(stall).over);
    CHECK_THAT(root.found().value_or(Failure{}).message,
               test::contains("worker 0 made no progress") && test::contains("in the audit of version 1"));
    CHECK_FALSE(root.on(0, answer(1, {}), stall).over); // too late
  }
  SECTION("the trainer's side cannot go on") {
    CHECK(root.abort({Code::peer_failed, "rank 1 is gone"}, 1).over);
  }
  CHECK_FALSE(root.running());
  CHECK(root.records()[0].version == 1); // nobody has found it wrong
  CHECK_FALSE(root.records()[0].audited);
  CHECK(root.records()[1].audited);
}

TEST_CASE("a replica whose members all hold the version adopts it, and no other one does") {
  RootDelivery root = root_of(6, 2);
  const AuditPlan plan{.audit = 1, .version = 1, .adopt = true};
  CHECK(to_whom<wire::Audit>(root.audit(plan, digests_of, 0)) == Workers{0, 1, 2, 3, 4, 5});
  for (const std::uint32_t w : {0u, 1u, 2u, 5u})
    CHECK(root.on(w, answer(1, right), 0).send.empty());
  (void)root.on(3, answer(1, {{0, 10}, {2, 0}}, "cell 2"), 0);
  const Actions over = root.on(4, answer(1, {}), 0);
  CHECK(to_whom<wire::Adopt>(over) == Workers{0, 1});
  CHECK_FALSE(over.over); // not before they serve it
  CHECK_FALSE(root.on(1, answer(1, {}), 0).over);
  const Actions end = root.on(0, answer(1, {}), 0);
  CHECK(end.over);
  CHECK(end.send.empty());
  CHECK_FALSE(root.records()[0].audited);
  CHECK_FALSE(root.found()); // what somebody brought along need not be right
  CHECK(root.records()[0].version == 1);
  CHECK(root.records()[0].matched);
  CHECK(root.records()[2].version == 0);
  CHECK_FALSE(root.records()[2].matched);
  CHECK(root.records()[3].error == "");
  // Those are seeded whole, and nobody is asked twice.
  CHECK_FALSE(root.anyone_for(AuditPlan{.audit = 2, .version = 1, .adopt = true}));
  CHECK(to_whom<wire::Begin>(root.begin(1, {Kind::seed, 0, 1}, 0)) == Workers{2, 3, 4, 5});
}

TEST_CASE("a worker that comes back with the version is served with its replica's other members, once") {
  RootDelivery root = serving(2, 2);
  (void)root.lost(1, {Code::peer_failed, "hung up"}, 0);
  (void)root.joined(1, {});
  const AuditPlan plan{.audit = 1, .version = 1, .adopt = true};
  CHECK(to_whom<wire::Audit>(root.audit(plan, digests_of, 0)) == Workers{1});
  SECTION("and nobody else must be gone meanwhile") {
    (void)root.lost(0, {Code::peer_failed, "hung up"}, 0);
    CHECK(to_whom<wire::Adopt>(root.on(1, answer(1, right), 0)).empty());
    CHECK(root.records()[1].version == 0);
  }
  SECTION("then the next delta fits") {
    CHECK(to_whom<wire::Adopt>(root.on(1, answer(1, right), 0)) == Workers{1});
    CHECK(root.on(1, answer(1, {}), 0).over);
    CHECK(root.anyone_for(DeliveryPlan{Kind::delta, 1, 2}));
    deliver(root, 2, {Kind::delta, 1, 2});
    CHECK(root.records()[1].brought == Kind::delta);
  }
}

TEST_CASE(
  "who is told to adopt and does not confirm it holds up the end for as long as an engine may take, no longer") {
  DeliverySettings settings{2, 1, 0, stall, 30 * stall};
  settings.engine = 3 * stall;
  RootDelivery root(settings);
  (void)root.audit({.audit = 1, .version = 1, .adopt = true}, digests_of, 0);
  (void)root.on(0, answer(1, right), 0);
  CHECK(to_whom<wire::Adopt>(root.on(1, answer(1, right), 0)) == Workers{0, 1});
  CHECK_FALSE(root.on(1, answer(1, {}), 0).over);
  CHECK_FALSE(root.tick(2 * stall).over);
  CHECK(root.tick(3 * stall).over);
  CHECK(root.records()[0].version == 1); // it will serve it, or be dropped by the next delivery
  CHECK_THAT(root.records()[0].error, test::contains("worker 0 made no progress"));
  CHECK(root.records()[1].error == "");
}

TEST_CASE("a worker that was written to by a seed is not asked what it holds") {
  RootDelivery root = root_of(1, 1);
  (void)root.begin(1, {Kind::seed, 0, 1}, 0);
  (void)root.on(0, wire::Failed{Code::internal, "out of memory", 1}, 0);
  (void)root.on(0, wire::Undone{1, 0}, 0);
  CHECK_FALSE(root.anyone_for(AuditPlan{.audit = 1, .version = 1, .adopt = true}));
  (void)root.lost(0, {Code::peer_failed, "hung up"}, 0);
  (void)root.joined(0, {});
  CHECK(root.anyone_for(AuditPlan{.audit = 1, .version = 1, .adopt = true}));
}

TEST_CASE("a version that a lost worker was told to serve exists: the others need no quorum for it") {
  RootDelivery root = root_of(2, 1, 2);
  deliver(root, 1, {Kind::seed, 0, 1});
  // Replica 1 misses version 2, and version 3 is its fold's target.
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, wire::Ready{2, 1}, 0);
  (void)root.seal(digests_of, 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, wire::Staged{2, 0}, 0);
  (void)root.on(1, wire::Failed{Code::internal, "out of memory", 2}, 0);
  (void)root.on(1, wire::Undone{2, 1}, 0);
  wire::Applied applied;
  applied.delivery = applied.version = 2;
  applied.digests = right;
  CHECK(to_whom<wire::Release>(root.on(0, applied, 0)) == Workers{0});
  CHECK(root.lost(0, {Code::peer_failed, "hung up"}, 0).over); // before it could say Released
  CHECK_FALSE(root.failure());
  CHECK(root.records()[0].lost);
  CHECK(root.records()[0].version == 2);
  CHECK(root.anyone_for(DeliveryPlan{Kind::fold, 1, 2})); // else version 2 is served by nobody that is left
}

TEST_CASE("a worker that serves and is wrong serves no more; one that does not is left as it is") {
  WorkerProtocol worker;
  worker.meet(5);
  const wire::Audit second{1, 2, {}}, third{2, 3, {}};
  CHECK(worker.audit(second)); // nothing is served: it is only looked at
  worker.audited(second, false);
  CHECK(worker.state() == WorkerState::empty);
  CHECK_FALSE(worker.adopt({1, 2}));
  CHECK(worker.audit(second));
  worker.audited(second, true);
  CHECK(worker.state() == WorkerState::empty);
  CHECK(worker.version() == 0);
  CHECK_FALSE(worker.adopt({2, 2})); // another audit
  CHECK_FALSE(worker.adopt({1, 3})); // another version
  CHECK(worker.adopt({1, 2}));
  CHECK(worker.state() == WorkerState::serving);
  CHECK(worker.version() == 2);
  CHECK(worker.standing() == wire::Agreed{5, 2, 0, 0});
  CHECK_FALSE(worker.adopt({1, 2})); // once
  // It takes a delta on that version.
  REQUIRE(worker.begin({1, Kind::delta, 2, 3}));
  CHECK_FALSE(worker.audit(third)); // while a delivery runs
  REQUIRE(worker.undo({1, "test"}));
  // Of a version that it does not serve it learns nothing.
  CHECK(worker.audit(third));
  worker.audited(third, false);
  CHECK(worker.state() == WorkerState::serving);
  CHECK(worker.audit(second));
  worker.audited(second, true);
  CHECK(worker.state() == WorkerState::serving);
  CHECK(worker.audit(second));
  worker.audited(second, false);
  CHECK(worker.state() == WorkerState::dirty);
  CHECK(worker.version() == 0);
  CHECK_FALSE(worker.begin({2, Kind::delta, 2, 3}));
  // Versions do not go back.
  const wire::Audit first{3, 1, {}};
  worker.audited(first, true);
  CHECK_FALSE(worker.adopt({3, 1}));
  CHECK(worker.begin({2, Kind::seed, 0, 3}));
}

TEST_CASE("what was found in memory is forgotten with the root that asked, and when it is written over") {
  WorkerProtocol worker;
  worker.meet(5);
  const wire::Audit audit{1, 7, {}};
  worker.audited(audit, true);
  SECTION("another root") {
    worker.meet(6);
    CHECK_FALSE(worker.adopt({1, 7}));
  }
  SECTION("a seed") {
    REQUIRE(worker.begin({1, Kind::seed, 0, 8}));
    REQUIRE(worker.undo({1, "test"}));
    CHECK_FALSE(worker.adopt({1, 7}));
  }
  SECTION("a version of the last session is served until the next one's is found in memory") {
    REQUIRE(worker.adopt({1, 7}));
    REQUIRE_FALSE(worker.root_lost());
    worker.meet(6);
    worker.audited({1, 1, {}}, false);
    CHECK(worker.version() == 7);
    CHECK(worker.foreign());
    worker.audited({2, 1, {}}, true);
    CHECK(worker.version() == 7);
    REQUIRE(worker.adopt({2, 1}));
    CHECK(worker.version() == 1);
    CHECK_FALSE(worker.foreign());
    CHECK(worker.begin({1, Kind::delta, 1, 2}));
  }
}

TEST_CASE("the ranks' audits are counted alike, and one that finds its snapshot changed is named") {
  sync::RankAudits ranks(3);
  CHECK(ranks.missing(1) == Workers{0, 1, 2});
  CHECK(ranks.on_report(0, {1, 4, ""}));
  CHECK(ranks.on_report(2, {1, 4, ""}));
  CHECK(ranks.on_report(2, {2, 6, ""})); // ahead
  CHECK(ranks.missing(1) == Workers{1});
  CHECK(ranks.missing(2) == Workers{0, 1});
  CHECK_FALSE(ranks.on_report(0, {3, 6, ""}));
  CHECK_FALSE(ranks.on_report(0, {1, 4, ""}));
  CHECK_FALSE(ranks.on_report(3, {1, 4, ""}));
  const auto wrong = ranks.on_report(1, {1, 4, "slot 'w', cell 2: another digest"});
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().code == Code::verification_failed);
  CHECK_THAT(wrong.error().message, test::contains("version 4") && test::contains("rank 1: slot 'w', cell 2"));
  CHECK(ranks.missing(1).empty());
}
