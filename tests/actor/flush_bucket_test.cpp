// FlushBucket: one flush is assembled while one is on the wire, and no more is taken than two buffers hold.

#include "actors/flush_bucket.hpp"
#include "catch.hpp"
#include "testing.hpp"

using namespace deltawire;
using namespace deltawire::actors;
using namespace deltawire::test;

namespace {

struct Bucket {
  Log log;
  TestSystem system;
  layout::Block block = flat_block(0, DType::bf16, 10);
  Bytes piece = seed_piece(block, std::vector<std::uint16_t>(10, 7));
  std::shared_ptr<RankWork> work = RankWork::make(0, {}, 1, 1024, 1024, 1024, std::vector<const std::byte*>{});
  FlushBucketActor actor;
  std::uint64_t gather = sync::gather_of(1);

  /// `pieces` of this size fit a flush, and not one more.
  explicit Bucket(std::size_t pieces) {
    work->recorder = std::make_shared<telemetry::Recorder>();
    const auto colleagues = probes(system, log);
    actor = system.spawn(flush_bucket, work, std::make_shared<const sync::RouteTable>(sync::broadcast(1, 1, 1)),
                         pieces * piece.size() + piece.size() / 2);
    system.send(actor, Meet{colleagues});
    system.send(actor, GatherBegin{sync::gather_of(1)});
  }

  void round(std::size_t pieces) {
    auto bytes = std::make_shared<Bytes>();
    for (std::size_t p = 0; p < pieces; ++p)
      bytes->insert(bytes->end(), piece.begin(), piece.end());
    system.send(actor, RoundGathered{gather, std::move(bytes)});
  }

  std::size_t consumed_pieces() {
    std::uint64_t bytes = 0;
    for (const RoundConsumed& one : log.all<RoundConsumed>())
      bytes += one.bytes;
    CHECK(bytes % piece.size() == 0);
    return bytes / piece.size();
  }
};

} // namespace

TEST_CASE("the next flush is assembled while one is on the wire, and sent only when that one is done") {
  Bucket bucket(2);
  bucket.round(7);
  REQUIRE(bucket.log.count<FlushSealed>() == 1);
  CHECK(bucket.log.all<FlushSealed>()[0].sequence == 0);
  CHECK(bucket.log.all<FlushSealed>()[0].parts.at(0).payload->size() == 2 * bucket.piece.size());
  // Two pieces are on the wire, and two were taken into the next flush while it is.
  CHECK(bucket.consumed_pieces() == 4);
  CHECK(bucket.work->counters.flush_bucket.now() == 4 * bucket.piece.size());

  bucket.system.send(bucket.actor, FlushCredit{bucket.gather});
  REQUIRE(bucket.log.count<FlushSealed>() == 2);
  CHECK(bucket.log.all<FlushSealed>()[1].sequence == 1);
  CHECK(bucket.consumed_pieces() == 6);

  bucket.system.send(bucket.actor, GatherComplete{bucket.gather});
  bucket.system.send(bucket.actor, FlushCredit{bucket.gather});
  CHECK(bucket.log.count<DeliverySealed>() == 0); // the last piece is in a flush that cannot go yet
  bucket.system.send(bucket.actor, FlushCredit{bucket.gather});
  REQUIRE(bucket.log.count<FlushSealed>() == 4);
  CHECK(bucket.log.all<FlushSealed>()[3].parts.at(0).payload->size() == bucket.piece.size());
  CHECK(bucket.consumed_pieces() == 7);
  REQUIRE(bucket.log.count<DeliverySealed>() == 1);
  CHECK(bucket.log.all<DeliverySealed>()[0].flushes == 4);
  CHECK(bucket.work->counters.flush_bucket.peak() <= 2 * (2 * bucket.piece.size() + bucket.piece.size() / 2));
}

TEST_CASE("a window that ends while the wire is idle is sent at once") {
  Bucket bucket(5);
  bucket.round(1);
  CHECK(bucket.log.count<FlushSealed>() == 0);
  bucket.system.send(bucket.actor, WindowGathered{bucket.gather, 0});
  CHECK(bucket.log.count<FlushSealed>() == 1);
  bucket.round(1);
  bucket.system.send(bucket.actor, WindowGathered{bucket.gather, 1});
  CHECK(bucket.log.count<FlushSealed>() == 1); // the wire is busy
}

TEST_CASE("a delivery without a single change has no flush and is sealed") {
  Bucket bucket(1);
  bucket.system.send(bucket.actor, GatherComplete{bucket.gather});
  CHECK(bucket.log.count<FlushSealed>() == 0);
  REQUIRE(bucket.log.count<DeliverySealed>() == 1);
  CHECK(bucket.log.all<DeliverySealed>()[0].flushes == 0);
}

TEST_CASE("a delivery that begins starts over, whatever was left of the last one") {
  Bucket bucket(2);
  bucket.round(5);
  CHECK(bucket.consumed_pieces() == 4);
  CHECK(bucket.log.take().count<FlushSealed>() == 1);
  bucket.system.send(bucket.actor, GatherBegin{sync::gather_of(2)});
  CHECK(bucket.work->counters.flush_bucket.now() == 0);
  CHECK(bucket.consumed_pieces() == 1); // the credit of what was not packed returns
  (void)bucket.log.take();
  // What still comes of the last one changes nothing, but for its credit.
  bucket.round(3);
  bucket.system.send(bucket.actor, WindowGathered{bucket.gather, 0});
  bucket.system.send(bucket.actor, GatherComplete{bucket.gather});
  bucket.system.send(bucket.actor, FlushCredit{bucket.gather});
  CHECK(bucket.consumed_pieces() == 3);
  CHECK(bucket.log.count<FlushSealed>() == 0);
  CHECK(bucket.log.count<DeliverySealed>() == 0);
  bucket.gather = sync::gather_of(2);
  bucket.round(2);
  bucket.system.send(bucket.actor, GatherComplete{bucket.gather});
  REQUIRE(bucket.log.count<FlushSealed>() == 1);
  CHECK(bucket.log.all<FlushSealed>()[0].sequence == 0);
  CHECK(bucket.log.count<DeliverySealed>() == 1);
}

TEST_CASE("gathered bytes that are no pieces are reported") {
  Bucket bucket(2);
  bucket.system.send(bucket.actor, RoundGathered{bucket.gather, std::make_shared<Bytes>(11, std::byte{0xFF})});
  CHECK(bucket.log.count<FailureReport>() == 1);
  CHECK(bucket.log.count<FlushSealed>() == 0);
}
