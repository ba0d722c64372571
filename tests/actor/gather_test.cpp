// GatherQueue, both halves: exact lengths, silence for a rank with nothing, names for ranks that lie or stand still.

#include "catch.hpp"
#include "testing.hpp"
#include "unit/text_matchers.hpp"

#include <thread>

using namespace deltawire;
using namespace deltawire::actors;
using namespace deltawire::test;

namespace {

constexpr auto round_type = static_cast<std::uint16_t>(wire::FrameType::round);

/// A GatherQueue of `rank` among two, of a parameter of two chunks.
struct Queue {
  Log log;
  TestSystem system;
  std::vector<std::uint16_t> weights = std::vector<std::uint16_t>(8);
  std::shared_ptr<Routes> routes = std::make_shared<Routes>();
  std::shared_ptr<RankWork> work;
  std::shared_ptr<Colleagues> colleagues;
  Peer control, data; ///< rank 1 when this is the root, else the root
  GatherQueueActor actor;

  explicit Queue(std::uint32_t rank, std::int64_t elements = 8, std::chrono::nanoseconds stall = std::chrono::hours(1),
                 std::uint32_t windows = 1, std::chrono::nanoseconds timeout = std::chrono::hours(1))
    : control(routes, wire::Role::rank, 1 - rank, wire::Channel::control),
      data(routes, wire::Role::rank, 1 - rank, wire::Channel::data) {
    std::vector<layout::Block> blocks;
    for (std::uint32_t window = 0; elements > 0 && window < windows; ++window) {
      blocks.push_back(flat_block(window, DType::bf16, elements / windows, window * elements / windows));
      blocks.back().window = window;
      blocks.back().parameter = 0;
    }
    work = RankWork::make(rank, blocks, windows, 8, 1024, 1024, {reinterpret_cast<const std::byte*>(weights.data())});
    work->recorder = std::make_shared<telemetry::Recorder>();
    colleagues = probes(system, log);
    GatherPorts ports;
    ports.control.resize(2);
    ports.data.resize(2);
    ports.control[1 - rank] = control.port();
    ports.data[1 - rank] = data.port();
    actor = system.spawn(gather_queue, work, ports, GatherSettings{2, 100, stall, timeout});
    routes->set_gather(caf::actor_cast<caf::actor>(actor));
    system.send(actor, Meet{colleagues});
  }

  void encoded(std::uint32_t chunk, std::vector<std::uint64_t> ends) {
    auto one = std::make_shared<sync::EncodedChunk>();
    one->gather = sync::gather_of(1);
    one->chunk = chunk;
    one->bytes.assign(ends.empty() ? 0 : ends.back(), std::byte(chunk));
    one->ends = std::move(ends);
    system.send(actor, ChunkEncoded{std::move(one)});
  }

  void reported(std::uint64_t step = 10) {
    wire::CaptureReport report;
    report.version = 1;
    report.step = step;
    system.send(actor, CaptureReported{report});
  }

  template <class Message>
  void hear(const Message& message) {
    control.say(message);
    system.run();
  }

  std::string failure() {
    const auto reports = log.all<FailureReport>();
    return reports.size() == 1 ? reports[0].failure.message : fmt::format("{} failures", reports.size());
  }
};

} // namespace

TEST_CASE("a rank sends nothing unasked, then exactly what it was granted, and its credit comes back") {
  Queue rank(1);
  rank.encoded(0, {20, 50});
  const auto offers = rank.control.heard<wire::Offer>();
  REQUIRE(offers.size() == 1);
  CHECK(offers[0].pieces == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 20}, {0, 30}});
  CHECK(rank.data.frames().empty());

  rank.hear(wire::Grant{sync::gather_of(1), 0, 1, 20});
  const auto shares = rank.data.take(round_type);
  REQUIRE(shares.size() == 1);
  CHECK(shares[0].header.source == 1);
  CHECK(shares[0].header.sequence == 0);
  CHECK(shares[0].body.size() == 20);
  const auto credit = rank.log.all<CreditReturned>();
  REQUIRE(credit.size() == 1);
  CHECK(credit[0].bytes == 20);
  CHECK(rank.data.frames().empty());
}

TEST_CASE("a rank without changes says so in control messages only") {
  Queue rank(1);
  rank.encoded(0, {});
  rank.encoded(1, {});
  rank.reported();
  const auto offers = rank.control.heard<wire::Offer>();
  REQUIRE(!offers.empty());
  CHECK(offers.back().pieces.empty());
  CHECK(offers.back().windows_complete == 1);
  CHECK(rank.control.heard<wire::CaptureReport>().size() == 1);
  CHECK(rank.control.frames().empty());
  CHECK(rank.data.frames().empty());
}

TEST_CASE("a rank that owns nothing sends an offer without pieces, and its report") {
  Queue rank(1, 0);
  rank.reported();
  const auto offers = rank.control.heard<wire::Offer>();
  REQUIRE(offers.size() == 1);
  CHECK(offers[0].pieces.empty());
  CHECK(offers[0].windows_complete == 1);
  CHECK(rank.control.heard<wire::CaptureReport>().size() == 1);
  CHECK(rank.data.frames().empty());
}

TEST_CASE("a grant of other bytes than were offered is a failure, not a guess") {
  Queue rank(1);
  rank.encoded(0, {20, 50});
  rank.hear(wire::Grant{sync::gather_of(1), 0, 1, 21});
  CHECK(rank.data.frames().empty());
  CHECK(rank.log.count<FailureReport>() == 1);
}

TEST_CASE("the root asks nothing of a rank with nothing, and completes") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  root.encoded(0, {40});
  root.encoded(1, {60});
  root.reported();
  CHECK(root.log.count<GatherComplete>() == 0); // rank 1 has not spoken
  wire::Offer nothing;
  nothing.gather = sync::gather_of(1);
  nothing.windows_complete = 1;
  root.hear(nothing);
  wire::CaptureReport report;
  report.version = 1;
  report.step = 10;
  root.hear(report);
  CHECK(root.control.heard<wire::Grant>().empty());
  CHECK(root.data.frames().empty());
  CHECK(root.log.count<WindowGathered>() == 1);
  REQUIRE(root.log.count<GatherComplete>() == 1);
  CHECK(root.log.all<GatherFinished>().at(0).totals.step == 10);
  std::size_t bytes = 0;
  for (const RoundGathered& round : root.log.all<RoundGathered>())
    bytes += round.pieces->size();
  CHECK(bytes == 100);
}

TEST_CASE("the supervisor hears which rank has left its capture half done, and the gather does not complete") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  root.encoded(0, {40});
  root.encoded(1, {60});
  root.reported();
  wire::Offer nothing;
  nothing.gather = sync::gather_of(1);
  nothing.windows_complete = 1;
  root.hear(nothing);
  wire::CaptureReport report;
  report.version = 1;
  report.step = 10;
  report.aborted = 1;
  root.hear(report);
  CHECK(root.log.count<GatherComplete>() == 0);
  const auto aborted = root.log.all<CaptureAborted>();
  REQUIRE(aborted.size() == 1);
  CHECK(aborted[0].version == 1);
  CHECK(aborted[0].rank == 1);
}

TEST_CASE("what is offered of a window goes when the windows before it end, whatever ended them") {
  Queue root(0, 8, std::chrono::hours(1), 2);
  root.encoded(0, {});
  root.encoded(1, {40}); // of window 1
  root.reported();
  wire::CaptureReport report;
  report.version = 1;
  report.step = 10;
  root.hear(report);
  wire::Offer nothing;
  nothing.gather = sync::gather_of(1);
  nothing.windows_complete = 2;
  SECTION("the delivery begins last") {
    root.hear(nothing);
    root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  }
  SECTION("a rank that has nothing says so last") {
    root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
    CHECK(root.log.count<WindowGathered>() == 0);
    root.hear(nothing);
  }
  CHECK(root.log.count<RoundGathered>() == 1);
  CHECK(root.log.count<WindowGathered>() == 2);
  CHECK(root.log.count<GatherComplete>() == 1);
}

TEST_CASE("the root holds at most max_round gathered bytes until they are consumed") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  root.encoded(0, {60});
  root.encoded(1, {60});
  root.reported();
  REQUIRE(root.log.count<RoundGathered>() == 1);
  root.system.send(root.actor, RoundConsumed{60});
  CHECK(root.log.count<RoundGathered>() == 2);
}

TEST_CASE("a share of another length than granted fails by the rank's name") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  wire::Offer offer;
  offer.gather = sync::gather_of(1);
  offer.pieces = {{0, 30}};
  root.hear(offer);
  const auto grants = root.control.heard<wire::Grant>();
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].bytes == 30);
  wire::FrameHeader header;
  header.type = round_type;
  header.delivery = sync::gather_of(1);
  header.source = 1;
  header.sequence = grants[0].round;
  root.data.say_data(header, Bytes(29));
  root.system.run();
  CHECK_THAT(root.failure(), contains("rank 1"));
  CHECK(root.log.count<RoundGathered>() == 0);
}

TEST_CASE("a corrupt share fails by the rank's name and goes nowhere") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  wire::Offer offer;
  offer.gather = sync::gather_of(1);
  offer.pieces = {{0, 30}};
  root.hear(offer);
  wire::FrameHeader header;
  header.type = round_type;
  header.delivery = sync::gather_of(1);
  header.source = 1;
  header.sequence = root.control.heard<wire::Grant>().at(0).round;
  root.data.say_data(header, Bytes(30), true);
  root.system.run();
  CHECK_THAT(root.failure(), contains("rank 1"));
  CHECK(root.log.count<RoundGathered>() == 0);
}

TEST_CASE("ranks that report different steps are both named") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  root.reported(10);
  wire::CaptureReport report;
  report.version = 1;
  report.step = 11;
  root.hear(report);
  CHECK_THAT(root.failure(), contains("rank 0"));
  CHECK_THAT(root.failure(), contains("rank 1"));
}

TEST_CASE("a rank that owes its share and stands still is named at the stall deadline") {
  const auto stall = std::chrono::milliseconds(40);
  Queue root(0, 8, stall);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  wire::Offer offer;
  offer.gather = sync::gather_of(1);
  offer.pieces = {{0, 30}};
  root.hear(offer);
  REQUIRE(root.control.heard<wire::Grant>().size() == 1);
  // Deadlines are measured on the real clock, ticks come by the scheduler's.
  std::this_thread::sleep_for(stall + std::chrono::milliseconds(5));
  root.system.advance(stall / 10);
  CHECK_THAT(root.failure(), contains("rank 1"));
  CHECK_THAT(root.failure(), contains("update.stall"));
}

TEST_CASE("a rank sends one share at a time: the next granted one waits until the last has left") {
  Queue rank(1);
  rank.encoded(0, {20, 50});
  rank.control.say(wire::Grant{sync::gather_of(1), 0, 1, 20});
  rank.control.say(wire::Grant{sync::gather_of(1), 1, 1, 30});
  rank.system.run();
  const auto shares = rank.data.take(round_type);
  REQUIRE(shares.size() == 2);
  CHECK(shares[0].body.size() == 20);
  CHECK(shares[1].body.size() == 30);
  CHECK(rank.work->counters.gather_queue.peak() == 30); // never both
}

TEST_CASE("a capture that is reported before its delivery begins keeps its time") {
  Queue root(0);
  root.encoded(0, {});
  root.encoded(1, {});
  const std::int64_t before = telemetry::now_ns();
  root.reported();
  wire::Offer nothing;
  nothing.gather = sync::gather_of(1);
  nothing.windows_complete = 1;
  root.hear(nothing);
  wire::CaptureReport report;
  report.version = 1;
  report.step = 10;
  root.hear(report);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  const auto complete = root.log.all<GatherFinished>();
  REQUIRE(complete.size() == 1);
  CHECK(complete[0].captured_ns >= before);
  CHECK(complete[0].captured_ns <= telemetry::now_ns());
}

TEST_CASE("a rank that never captures the version is named at the update's deadline") {
  const auto timeout = std::chrono::milliseconds(40);
  Queue root(0, 8, std::chrono::milliseconds(10), 1, timeout);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  root.encoded(0, {});
  root.encoded(1, {});
  root.reported();
  std::this_thread::sleep_for(timeout + std::chrono::milliseconds(5));
  root.system.advance(std::chrono::milliseconds(1));
  CHECK_THAT(root.failure(), contains("rank 1"));
  CHECK_THAT(root.failure(), contains("update.timeout"));
}

TEST_CASE(
  "a gather that is dropped is forgotten by the rank: its credit returns, a late grant is answered by nothing") {
  Queue rank(1);
  rank.encoded(0, {20, 50});
  rank.hear(wire::Drop{sync::gather_of(1)});
  const auto dropped = rank.log.all<GatherDropped>();
  REQUIRE(dropped.size() == 1);
  CHECK(dropped[0].gather == sync::gather_of(1));
  REQUIRE(rank.log.count<CreditReturned>() == 1);
  CHECK(rank.log.all<CreditReturned>()[0].bytes == 50);
  rank.encoded(1, {10}); // encoded before the Differ could know
  REQUIRE(rank.log.count<CreditReturned>() == 2);
  CHECK(rank.log.all<CreditReturned>()[1].bytes == 10);
  rank.hear(wire::Grant{sync::gather_of(1), 0, 1, 20}); // had crossed the drop
  const auto shares = rank.data.take(round_type);
  REQUIRE(shares.size() == 1);
  CHECK(shares[0].header.sequence == 0);
  CHECK(shares[0].body.empty());
  CHECK(rank.log.count<FailureReport>() == 0);
}

TEST_CASE("the root drops a gather on every rank, takes what is on its way, and gathers the next one") {
  Queue root(0);
  root.system.send(root.actor, GatherBegin{sync::gather_of(1)});
  wire::Offer offer;
  offer.gather = sync::gather_of(1);
  offer.pieces = {{0, 60}, {0, 50}};
  root.hear(offer);
  auto grants = root.control.heard<wire::Grant>();
  REQUIRE(grants.size() == 1);
  root.system.send(root.actor, GatherDrop{sync::gather_of(1)});
  const auto drops = root.control.heard<wire::Drop>();
  REQUIRE(drops.size() == 1);
  CHECK(drops[0].gather == sync::gather_of(1));
  root.hear(offer); // late
  CHECK(root.failure() == "0 failures");

  wire::CaptureReport report;
  report.version = 1;
  report.digest_changes = {{0, 5}};
  root.hear(report);
  root.system.send(root.actor, CaptureReported{report});
  report.version = 2;
  report.digest_changes = {{0, 7}, {1, 1}};
  root.hear(report);
  root.system.send(root.actor, CaptureReported{report});
  root.system.send(root.actor, GatherDrop{sync::gather_of(2)});
  root.system.send(root.actor, GatherBegin{sync::catch_up_gather_of(2)});
  offer.gather = sync::catch_up_gather_of(2);
  offer.windows_complete = 1;
  root.hear(offer);
  // The share that was granted before the drop still counts as held: max_round is 100.
  CHECK(root.control.heard<wire::Grant>().empty());
  wire::FrameHeader header;
  header.type = round_type;
  header.delivery = sync::gather_of(1);
  header.source = 1;
  header.sequence = grants[0].round;
  root.data.say_data(header, Bytes(60));
  root.system.run();
  CHECK(root.log.count<RoundGathered>() == 0);
  CHECK(root.work->counters.gather_queue.now() == 60); // of the round that was granted now
  grants = root.control.heard<wire::Grant>();
  REQUIRE(grants.size() == 1);
  CHECK(grants[0].gather == sync::catch_up_gather_of(2));
  header.delivery = sync::catch_up_gather_of(2);
  header.sequence = grants[0].round;
  root.data.say_data(header, Bytes(60));
  root.system.run();
  REQUIRE(root.log.count<RoundGathered>() == 1);
  root.system.send(root.actor, RoundConsumed{60});
  grants = root.control.heard<wire::Grant>();
  REQUIRE(grants.size() == 1);
  header.sequence = grants[0].round;
  root.data.say_data(header, Bytes(50));
  root.system.run();
  for (std::uint32_t chunk : {0u, 1u}) { // the root's own part of the catch-up
    auto one = std::make_shared<sync::EncodedChunk>();
    one->gather = sync::catch_up_gather_of(2);
    one->chunk = chunk;
    root.system.send(root.actor, ChunkEncoded{std::move(one)});
  }
  CHECK(root.failure() == "0 failures");
  const auto finished = root.log.all<GatherFinished>();
  REQUIRE(finished.size() == 1);
  CHECK(finished[0].totals.gather == sync::catch_up_gather_of(2));
  CHECK(finished[0].totals.reported);
  // Both ranks' changes of both versions: nothing else had taken those of version 1.
  CHECK(finished[0].totals.digest_changes == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{0, 24}, {1, 2}});
}
