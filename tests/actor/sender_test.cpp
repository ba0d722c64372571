// Sender: nothing before all workers are ready, commit only when all have staged, names for those that stand still.

#include "actors/sender.hpp"
#include "catch.hpp"
#include "testing.hpp"
#include "unit/text_matchers.hpp"

#include <algorithm>
#include <map>
#include <thread>

using namespace deltawire;
using namespace deltawire::actors;
using namespace deltawire::test;

namespace {

constexpr auto flush_type = static_cast<std::uint16_t>(wire::FrameType::flush);

/// The root's Sender with two workers of one replica; the test plays the workers.
struct Root {
  Log log;
  TestSystem system;
  std::shared_ptr<Routes> routes = std::make_shared<Routes>();
  Peer control[2] = {{routes, wire::Role::worker, 0, wire::Channel::control},
                     {routes, wire::Role::worker, 1, wire::Channel::control}};
  Peer data[2] = {{routes, wire::Role::worker, 0, wire::Channel::data},
                  {routes, wire::Role::worker, 1, wire::Channel::data}};
  std::shared_ptr<RankWork> work = RankWork::make(0, {}, 1, 1024, 1024, 1024, std::vector<const std::byte*>{});
  SenderActor actor;
  std::uint64_t delivery = 0;
  std::uint64_t gather = 0;
  std::map<std::uint32_t, std::uint64_t> sums{{0, 0}, {1, 0}}; ///< digests, by cell
  sync::Digests manifest;                                      ///< of what was sealed last

  explicit Root(std::chrono::nanoseconds stall = std::chrono::hours(1), std::uint32_t workers_per_replica = 2,
                sync::RouteTable routes_of_blocks = sync::broadcast(1, 2, 2)) {
    work->recorder = std::make_shared<telemetry::Recorder>();
    work->slots = {{"w", DType::u8, {2}}};
    const auto colleagues = probes(system, log);
    SenderSettings settings;
    settings.workers_per_replica = workers_per_replica;
    settings.stall = stall;
    settings.timeout = std::chrono::hours(2);
    settings.cells = {{0, 1}, {0, 1}};
    settings.slots = 1;
    settings.routes = std::make_shared<const sync::RouteTable>(std::move(routes_of_blocks));
    actor = system.spawn(
      sender, work, WorkerPorts{{control[0].port(), control[1].port()}, {data[0].port(), data[1].port()}}, settings);
    routes->set_delivery(caf::actor_cast<caf::actor>(actor));
    routes->set_supervisor(failure_probe(system, log));
    system.send(actor, Meet{colleagues});
  }

  void begin(std::uint64_t version, std::optional<sync::DeliveryPlan> catch_up = std::nullopt) {
    system.send(actor, UpdateBegin{version, 0, catch_up, false});
    gather = sync::gather_of(version);
    for (Peer& worker : control) {
      const auto begun = worker.heard<wire::Begin>();
      REQUIRE(begun.size() == 1);
      CHECK(begun[0].target == version);
      CHECK(begun[0].base == version - 1);
      delivery = begun[0].delivery;
    }
  }

  template <class Message>
  void say(std::size_t worker, const Message& message) {
    control[worker].say(message);
    system.run();
  }

  void sealed(std::uint64_t flushes, std::vector<std::pair<std::uint32_t, std::uint64_t>> digests) {
    GatherFinished finished;
    finished.totals.gather = gather;
    finished.totals.reported = true;
    for (const auto& [cell, change] : digests)
      sums[cell] += change;
    manifest.assign(sums.begin(), sums.end());
    if (sync::version_of_gather(gather) != 1 && !sync::is_catch_up(gather))
      std::erase_if(manifest, [&](const auto& entry) {
        return std::none_of(digests.begin(), digests.end(), [&](const auto& one) { return one.first == entry.first; });
      });
    finished.totals.digest_changes = std::move(digests);
    system.send(actor, std::move(finished));
    DeliverySealed message;
    message.gather = gather;
    message.flushes = flushes;
    system.send(actor, std::move(message));
  }

  /// Both workers say everything that is due from Ready to Released, without flushes.
  void run_empty(std::uint64_t version) {
    begin(version);
    for (std::size_t w : {0u, 1u})
      say(w, wire::Ready{delivery, version - 1});
    sealed(0, {});
    for (std::size_t w : {0u, 1u})
      say(w, wire::Staged{delivery, 0});
    for (std::size_t w : {0u, 1u})
      say(w, applied(version));
    for (std::size_t w : {0u, 1u})
      say(w, wire::Released{delivery, version, 5});
  }

  wire::Applied applied(std::uint64_t version) const {
    wire::Applied message;
    message.delivery = delivery;
    message.version = version;
    message.digests = manifest;
    return message;
  }

  wire::DeliveryReport report() {
    const auto over = log.take().all<UpdateOver>();
    REQUIRE(over.size() == 1);
    return over[0].report;
  }
};

} // namespace

TEST_CASE("a flush leaves when all workers are ready, its credit when all have staged it") {
  Root root;
  root.begin(1);
  const auto payload = std::make_shared<const Bytes>(33, std::byte{9});
  root.system.send(root.actor, FlushSealed{root.gather, 0, {{0, payload}}});
  CHECK(root.data[0].frames().empty());
  root.say(0, wire::Ready{root.delivery, 0});
  CHECK(root.data[0].frames().empty());
  root.say(1, wire::Ready{root.delivery, 0});
  for (Peer& worker : root.data) {
    const auto flushes = worker.take(flush_type);
    REQUIRE(flushes.size() == 1);
    CHECK(flushes[0].header.delivery == root.delivery);
    CHECK(flushes[0].header.sequence == 0);
    CHECK(flushes[0].body == *payload);
  }
  root.say(1, wire::FlushStaged{root.delivery, 0, 33});
  CHECK(root.log.count<FlushCredit>() == 0);
  root.say(0, wire::FlushStaged{root.delivery, 0, 33});
  CHECK(root.log.count<FlushCredit>() == 1);
}

TEST_CASE("commit follows when all have staged, release when all have applied, the report when all serve") {
  Root root;
  root.begin(1);
  root.say(0, wire::Ready{root.delivery, 0});
  root.say(1, wire::Ready{root.delivery, 0});
  root.sealed(0, {{1, 77}});
  for (Peer& worker : root.control) {
    const auto seals = worker.heard<wire::Seal>();
    REQUIRE(seals.size() == 1);
    // A seed's manifest has every cell, changed or not.
    CHECK(seals[0].digests == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{0, 0}, {1, 77}});
  }
  root.say(0, wire::Staged{root.delivery, 0});
  CHECK(root.control[0].heard<wire::Commit>().empty());
  root.say(1, wire::Staged{root.delivery, 0});
  CHECK(root.control[0].heard<wire::Commit>().size() == 1);
  CHECK(root.control[1].heard<wire::Commit>().size() == 1);
  root.say(1, root.applied(1));
  CHECK(root.control[1].heard<wire::Release>().empty());
  root.say(0, root.applied(1));
  CHECK(root.control[0].heard<wire::Release>().size() == 1);
  CHECK(root.control[1].heard<wire::Release>().size() == 1);
  root.say(0, wire::Released{root.delivery, 1, 5});
  CHECK(root.log.count<UpdateOver>() == 0);
  root.say(1, wire::Released{root.delivery, 1, 6});
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 1);
  CHECK(report.version == 1);
  CHECK(report.kind == wire::DeliveryKind::seed);
  CHECK(report.times.pause_ns == 6);
  REQUIRE(report.workers.size() == 2);
  CHECK(report.workers[1].state == "serving");
  CHECK(report.workers[1].digest_ok == 1);

  // A delta's manifest has the sums of the cells that changed.
  root.begin(2);
  root.say(0, wire::Ready{root.delivery, 1});
  root.say(1, wire::Ready{root.delivery, 1});
  root.sealed(0, {{1, 3}});
  const auto seals = root.control[0].heard<wire::Seal>();
  REQUIRE(seals.size() == 1);
  CHECK(seals[0].digests == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{1, 80}});
}

TEST_CASE("a worker that read back other digests than the trainer has is named with slot and cell, and not released") {
  Root root;
  root.begin(1);
  for (const std::size_t w : {0u, 1u})
    root.say(w, wire::Ready{root.delivery, 0});
  root.sealed(0, {{1, 77}});
  for (const std::size_t w : {0u, 1u})
    root.say(w, wire::Staged{root.delivery, 0});
  wire::Applied applied = root.applied(1);
  applied.digests[1].second = 78;
  root.say(0, root.applied(1));
  root.say(1, applied);
  CHECK(root.control[0].heard<wire::Release>().empty());
  for (const std::size_t w : {0u, 1u}) {
    CHECK(root.control[w].heard<wire::Undo>().size() == 1);
    root.say(w, wire::Undone{root.delivery, 0});
  }
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 0);
  CHECK(report.error == Code::verification_failed);
  CHECK_THAT(report.error_message, contains("worker 1: slot 'w', cell 1: digest 000000000000004e in memory"));
}

TEST_CASE("an audit asks workers and waits for the ranks; who is wrong is seeded by the next update") {
  Root root(std::chrono::hours(1), 1);
  root.run_empty(1);
  CHECK(root.report().committed == 1);
  root.system.send(root.actor, AuditBegin{0});
  for (Peer& worker : root.control) {
    const auto audits = worker.heard<wire::Audit>();
    REQUIRE(audits.size() == 1);
    CHECK(audits[0].version == 1);
    CHECK(audits[0].digests == decltype(wire::Audit::digests){{0, 0}, {1, 0}});
  }
  root.say(0, wire::Audited{1, 1, {{0, 0}, {1, 0}}, ""});
  root.say(1, wire::Audited{1, 0, {{0, 0}, {1, 5}}, "parameter 'p', slot 'w', cell 1: digest 5"});
  CHECK(root.log.count<UpdateOver>() == 0);
  root.system.send(root.actor, SnapshotAudited{0, {1, 1, ""}});
  const auto over = root.log.take().all<UpdateOver>();
  REQUIRE(over.size() == 1);
  const wire::DeliveryReport& report = over[0].report;
  CHECK(report.of_audit == 1);
  CHECK(report.version == 1);
  CHECK(report.committed == 0);
  CHECK(report.error == Code::verification_failed);
  CHECK_THAT(report.error_message, contains("worker 1: parameter 'p', slot 'w', cell 1: digest 5"));
  CHECK(report.workers[0].audited == 1);
  CHECK(report.workers[0].state == "serving");
  CHECK(report.workers[1].audited == 0);
  CHECK(report.workers[1].state == "dirty");
  CHECK(over[0].next.version == 2);
  CHECK(over[0].next.catch_up == 1);
  CHECK(over[0].next.kind == wire::DeliveryKind::seed);

  // The next one is its own.
  root.system.send(root.actor, AuditBegin{0});
  CHECK(root.control[0].heard<wire::Audit>().size() == 1);
  CHECK(root.control[1].heard<wire::Audit>().empty());
  root.say(0, wire::Audited{2, 1, {{0, 0}, {1, 0}}, ""});
  root.system.send(root.actor, SnapshotAudited{0, {2, 1, ""}});
  CHECK(root.report().committed == 1);

  // A rank's snapshot that is wrong ends the session.
  root.system.send(root.actor, SnapshotAudited{0, {3, 1, "slot 'w', cell 0: the snapshot has digest 3"}});
  const auto failures = root.log.all<FailureReport>();
  REQUIRE(failures.size() == 1);
  CHECK_THAT(failures[0].failure.message, contains("rank 0: slot 'w', cell 0"));
}

TEST_CASE("a silent worker fails the delivery by its name at the stall deadline, and the other one undoes") {
  const auto stall = std::chrono::milliseconds(40);
  Root root(stall);
  root.begin(1);
  root.say(0, wire::Ready{root.delivery, 0});
  root.system.advance(stall / 10);
  CHECK(root.log.count<UpdateOver>() == 0);
  // Deadlines are measured on the real clock, ticks come by the scheduler's.
  std::this_thread::sleep_for(stall + std::chrono::milliseconds(5));
  root.system.advance(stall / 10);
  const auto undo = root.control[0].heard<wire::Undo>();
  REQUIRE(undo.size() == 1);
  CHECK_THAT(undo[0].reason, contains("worker 1"));
  root.say(0, wire::Undone{root.delivery, 0});
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 0);
  CHECK(report.error == Code::timed_out);
  CHECK_THAT(report.error_message, contains("worker 1 made no progress"));
  CHECK(report.workers[0].state == "dirty");
  CHECK(report.workers[1].state == "dirty");
}

TEST_CASE("a worker that hangs up fails the delivery by its name") {
  Root root;
  root.run_empty(1);
  CHECK(root.report().committed == 1);
  root.begin(2);
  root.say(0, wire::Ready{root.delivery, 1});
  root.system.send(root.actor, PortClosed{root.control[1].port(), {Code::peer_failed, "worker 1: gone"}});
  root.say(0, wire::Undone{root.delivery, 1});
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 0);
  CHECK_THAT(report.error_message, contains("worker 1"));
  CHECK(report.workers[0].version == 1);
}

TEST_CASE("a worker that says it staged what it never received does not pass") {
  Root root;
  root.begin(1);
  root.say(0, wire::Ready{root.delivery, 0});
  root.say(1, wire::Ready{root.delivery, 0});
  root.system.send(root.actor, FlushSealed{root.gather, 0, {{0, std::make_shared<const Bytes>(33)}}});
  root.say(0, wire::FlushStaged{root.delivery, 0, 33});
  root.say(1, wire::FlushStaged{root.delivery, 0, 33});
  root.sealed(1, {});
  root.say(1, wire::Staged{root.delivery, 0});
  CHECK(root.control[0].heard<wire::Commit>().empty());
  CHECK(root.control[0].heard<wire::Undo>().size() == 1);
  for (std::size_t w : {0u, 1u})
    root.say(w, wire::Undone{root.delivery, 0});
  const wire::DeliveryReport report = root.report();
  CHECK(report.error == Code::verification_failed);
  CHECK_THAT(report.error_message, contains("worker 1"));
}

TEST_CASE("an abort of the trainer's side undoes every worker and is the reason that is reported") {
  Root root;
  root.begin(1);
  root.say(0, wire::Ready{root.delivery, 0});
  root.system.send(root.actor, DeliveryAbort{{Code::peer_failed, "rank 3 is gone"}});
  for (std::size_t w : {0u, 1u}) {
    CHECK(root.control[w].heard<wire::Undo>().size() == 1);
    root.say(w, wire::Undone{root.delivery, 0});
  }
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 0);
  CHECK_THAT(report.error_message, contains("rank 3 is gone"));
  // What comes late changes nothing.
  root.say(0, wire::Ready{root.delivery, 0});
  root.system.send(root.actor, FlushSealed{root.gather, 0, {{0, std::make_shared<const Bytes>(1)}}});
  CHECK(root.data[0].frames().empty());
  CHECK(root.log.count<UpdateOver>() == 0);
}

TEST_CASE("a replica that stands still is left out, the other one served, and the next update brings both up") {
  const auto stall = std::chrono::milliseconds(40);
  Root root(stall, 1);
  root.run_empty(1);
  CHECK(root.report().committed == 1);

  root.begin(2);
  (void)root.control[1].take(wire::Seal::type);
  root.say(0, wire::Ready{root.delivery, 1});
  std::this_thread::sleep_for(stall + std::chrono::milliseconds(5));
  root.system.advance(stall / 10);
  CHECK(root.control[0].heard<wire::Undo>().empty());
  CHECK(root.control[1].heard<wire::Undo>().size() == 1);
  // It goes on without the silent one: flushes and manifest are for worker 0 only.
  root.system.send(root.actor, FlushSealed{root.gather, 0, {{0, std::make_shared<const Bytes>(33)}}});
  CHECK(root.data[0].take(flush_type).size() == 1);
  CHECK(root.data[1].take(flush_type).empty());
  root.say(0, wire::FlushStaged{root.delivery, 0, 33});
  root.sealed(1, {{0, 9}});
  CHECK(root.control[1].heard<wire::Seal>().empty());
  root.say(0, wire::Staged{root.delivery, 33});
  root.say(0, root.applied(2));
  root.say(0, wire::Released{root.delivery, 2, 5});
  const auto over = root.log.take().all<UpdateOver>();
  REQUIRE(over.size() == 1);
  CHECK(over[0].report.committed == 1);
  CHECK(over[0].report.workers[0].version == 2);
  CHECK(over[0].report.workers[1].version == 1);
  CHECK(over[0].report.workers[1].state == "lagging");
  CHECK_THAT(over[0].report.workers[1].error, contains("worker 1 made no progress"));
  CHECK(over[0].next.catch_up == 1); // it may have answered by then
  CHECK(over[0].next.keep_logs_after == 1);

  // It wakes up and answers what it owes. The update under way does not fit it: the next one brings a fold.
  const std::uint64_t given_up = root.delivery;
  (void)root.control[0].take(wire::Seal::type);
  root.system.send(root.actor, UpdateBegin{3, 0, std::nullopt, false});
  root.gather = sync::gather_of(3);
  CHECK(root.control[1].heard<wire::Begin>().empty());
  root.say(1, wire::Ready{given_up, 1});
  root.say(1, wire::Undone{given_up, 1});
  root.delivery = root.control[0].heard<wire::Begin>().at(0).delivery;
  root.say(0, wire::Ready{root.delivery, 2});
  root.sealed(0, {});
  root.say(0, wire::Staged{root.delivery, 0});
  root.say(0, root.applied(3));
  root.say(0, wire::Released{root.delivery, 3, 5});
  const auto third = root.log.take().all<UpdateOver>();
  REQUIRE(third.size() == 1);
  CHECK(third[0].next.version == 4);
  REQUIRE(third[0].next.catch_up == 1);
  CHECK(third[0].next.kind == wire::DeliveryKind::fold);
  CHECK(third[0].next.base == 1);

  root.system.send(root.actor, UpdateBegin{4, 0, sync::DeliveryPlan{wire::DeliveryKind::fold, 1, 4}, false});
  (void)root.control[0].take(wire::Seal::type);
  for (const std::uint32_t w : {0u, 1u}) { // its own changes for one, then the catch-up for the other
    root.gather = w == 0 ? sync::gather_of(4) : sync::catch_up_gather_of(4);
    CHECK(root.control[1 - w].heard<wire::Begin>().empty());
    const auto begun = root.control[w].heard<wire::Begin>();
    REQUIRE(begun.size() == 1);
    CHECK(begun[0].kind == (w == 0 ? wire::DeliveryKind::delta : wire::DeliveryKind::fold));
    CHECK(begun[0].base == (w == 0 ? 3 : 1));
    CHECK(begun[0].target == 4);
    CHECK(root.log.all<GatherBegin>().back().gather == root.gather);
    root.delivery = begun[0].delivery;
    root.say(w, wire::Ready{root.delivery, begun[0].base});
    root.sealed(0, w == 0 ? decltype(wire::Seal::digests){{1, 4}} : decltype(wire::Seal::digests){});
    const auto seals = root.control[w].heard<wire::Seal>();
    REQUIRE(seals.size() == 1);
    // A fold names every cell: more of them have changed since its base.
    CHECK(seals[0].digests ==
          (w == 0 ? decltype(wire::Seal::digests){{1, 4}} : decltype(wire::Seal::digests){{0, 9}, {1, 4}}));
    root.say(w, wire::Staged{root.delivery, 0});
    root.say(w, root.applied(4));
    root.say(w, wire::Released{root.delivery, 4, 5});
  }
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 1);
  CHECK(report.kind == wire::DeliveryKind::delta);
  for (const wire::WorkerReport& worker : report.workers) {
    CHECK(worker.version == 4);
    CHECK(worker.state == "serving");
    CHECK(worker.error.empty());
  }
}

TEST_CASE("what the ranks report counts for the digests also when its update has failed") {
  Root root;
  root.run_empty(1);
  CHECK(root.report().committed == 1);
  root.begin(2);
  root.say(0, wire::Staged{root.delivery, 0}); // before anything was sent
  for (const std::size_t w : {0u, 1u})
    root.say(w, wire::Undone{root.delivery, 1});
  const auto over = root.log.take().all<UpdateOver>();
  REQUIRE(over.size() == 1);
  CHECK(over[0].report.committed == 0);
  CHECK_THAT(over[0].report.error_message, contains("worker 0 sent Staged out of order"));
  CHECK(over[0].next.catch_up == 1);
  CHECK(over[0].next.base == 1);
  // The gather had ended, and FlushBucket was about to hand over: too late for version 2.
  root.sealed(0, {{0, 100}});
  (void)root.control[0].take(wire::Seal::type);

  root.system.send(root.actor, UpdateBegin{3, 0, sync::DeliveryPlan{wire::DeliveryKind::fold, 1, 3}, false});
  CHECK(root.log.all<GatherDrop>().back().gather == sync::gather_of(3)); // nobody is at version 2
  root.gather = sync::catch_up_gather_of(3);
  root.delivery = root.control[0].heard<wire::Begin>().at(0).delivery;
  (void)root.control[1].heard<wire::Begin>();
  for (const std::size_t w : {0u, 1u})
    root.say(w, wire::Ready{root.delivery, 1});
  root.sealed(0, {{0, 11}});
  const auto seals = root.control[0].heard<wire::Seal>();
  REQUIRE(seals.size() == 1);
  CHECK(seals[0].digests == decltype(wire::Seal::digests){{0, 111}, {1, 0}});
}

TEST_CASE("an update that is abandoned is over at once, unless it is committed or carries another one's changes") {
  Root root;
  root.run_empty(1);
  CHECK(root.report().committed == 1);
  root.begin(2);
  root.say(0, wire::Ready{root.delivery, 1});
  root.system.send(root.actor, UpdateAbandon{2});
  CHECK(root.control[0].heard<wire::Undo>().size() == 1);
  const auto over = root.log.take().all<UpdateOver>(); // before anybody has answered
  REQUIRE(over.size() == 1);
  CHECK(over[0].report.committed == 0);
  CHECK(over[0].report.error == Code::superseded);
  CHECK(over[0].next.base == 1);
  CHECK(over[0].next.kind == wire::DeliveryKind::fold);
  (void)root.control[1].take(wire::Undo::type);

  root.system.send(root.actor, UpdateBegin{3, 0, sync::DeliveryPlan{wire::DeliveryKind::fold, 1, 3}, false});
  root.system.send(root.actor, UpdateAbandon{3});
  CHECK(root.control[0].heard<wire::Undo>().empty());
  CHECK(root.log.count<UpdateOver>() == 0);
}

TEST_CASE("an update that a rank has left half done is undone, whatever it carries, and no more of it begins") {
  Root root;
  root.run_empty(1);
  CHECK(root.report().committed == 1);
  const Failure left{Code::superseded, "rank 1 aborted the update"};
  root.system.send(root.actor,
                   UpdateBegin{2, 0, sync::DeliveryPlan{wire::DeliveryKind::seed, 0, 2}, false, std::nullopt});
  root.delivery = root.control[0].heard<wire::Begin>().at(0).delivery;
  root.say(0, wire::Ready{root.delivery, 1});
  root.system.send(root.actor, UpdateAbort{1, left}); // over already
  CHECK(root.log.count<UpdateOver>() == 0);
  root.system.send(root.actor, UpdateAbort{2, left});
  CHECK(root.control[0].heard<wire::Undo>().size() == 1);
  (void)root.control[1].take(wire::Undo::type);
  Log log = root.log.take();
  auto over = log.all<UpdateOver>();
  REQUIRE(over.size() == 1);
  CHECK(over[0].report.committed == 0);
  CHECK(over[0].report.error_message == left.message);
  CHECK(over[0].next.base == 1);
  CHECK(log.all<GatherDrop>().back().gather == sync::catch_up_gather_of(2));

  // Known before it begins: nobody hears of it.
  root.system.send(root.actor, UpdateBegin{3, 0, sync::DeliveryPlan{wire::DeliveryKind::fold, 1, 3}, false, left});
  CHECK(root.control[0].heard<wire::Begin>().empty());
  log = root.log.take();
  over = log.all<UpdateOver>();
  REQUIRE(over.size() == 1);
  CHECK(over[0].report.error_message == left.message);
  CHECK(over[0].next.version == 4);
  const auto drops = log.all<GatherDrop>();
  REQUIRE(drops.size() == 2);
  CHECK(drops[0].gather == sync::gather_of(3));
  CHECK(drops[1].gather == sync::catch_up_gather_of(3));
}

TEST_CASE("with no replica to serve an update fails at once and says why") {
  Root root;
  root.run_empty(1);
  CHECK(root.report().committed == 1);
  root.system.send(root.actor, PortClosed{root.control[1].port(), {Code::peer_failed, "worker 1: gone"}});
  root.system.send(root.actor, UpdateBegin{2, 0, std::nullopt, false});
  const wire::DeliveryReport report = root.report();
  CHECK(report.committed == 0);
  CHECK(report.error == Code::peer_failed);
  CHECK_THAT(report.error_message, contains("no replica can be served") && contains("worker 1: gone"));
  CHECK(report.workers[0].state == "serving");
  CHECK(report.workers[1].state == "lost");
}

TEST_CASE("a worker gets the parts and the digests of its routes, and answers for those only") {
  sync::RouteTable table = sync::broadcast(3, 2, 2);
  table.workers = {{0}, {1}, {0, 1}};
  table.cells = {{true, false}, {true, true}};
  Root root(std::chrono::hours(1), 2, table);
  root.begin(1);
  for (const std::size_t w : {0u, 1u})
    root.say(w, wire::Ready{root.delivery, 0});
  root.system.send(
    root.actor,
    FlushSealed{root.gather, 0, {{1, std::make_shared<const Bytes>(11)}, {2, std::make_shared<const Bytes>(7)}}});
  const auto first = root.data[0].take(flush_type), second = root.data[1].take(flush_type);
  REQUIRE(first.size() == 1);
  CHECK(first[0].header.route == 2);
  CHECK(first[0].header.sequence == 0);
  REQUIRE(second.size() == 2);
  CHECK(second[0].header.route == 1);
  CHECK(second[1].header.route == 2);
  CHECK(second[1].header.sequence == 1);
  root.say(0, wire::FlushStaged{root.delivery, 0, 7});
  root.say(1, wire::FlushStaged{root.delivery, 0, 11});
  CHECK(root.log.count<FlushCredit>() == 0);
  root.say(1, wire::FlushStaged{root.delivery, 1, 7});
  CHECK(root.log.count<FlushCredit>() == 1);
  // A flush that is for worker 1 only waits for nobody else.
  root.system.send(root.actor, FlushSealed{root.gather, 1, {{1, std::make_shared<const Bytes>(5)}}});
  CHECK(root.data[0].take(flush_type).empty());
  CHECK(root.data[1].take(flush_type).at(0).header.sequence == 2);
  root.say(1, wire::FlushStaged{root.delivery, 2, 5});
  CHECK(root.log.count<FlushCredit>() == 2);
  root.sealed(2, {{0, 3}, {1, 4}});
  const auto seals = root.control[0].heard<wire::Seal>();
  REQUIRE(seals.size() == 1);
  CHECK(seals[0].flushes == 1);
  CHECK(seals[0].bytes == 7);
  CHECK(seals[0].digests == decltype(wire::Seal::digests){{0, 3}});
  const auto other = root.control[1].heard<wire::Seal>();
  REQUIRE(other.size() == 1);
  CHECK(other[0].flushes == 3);
  CHECK(other[0].bytes == 23);
  CHECK(other[0].digests == decltype(wire::Seal::digests){{0, 3}, {1, 4}});
}
