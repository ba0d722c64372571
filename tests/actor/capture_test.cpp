// Snapshotter and Differ: a capture waits for nobody; what credit does not allow is read from the snapshot later, in
// walk order.

#include "actors/differ.hpp"
#include "actors/snapshotter.hpp"
#include "catch.hpp"
#include "delta/stage.hpp"
#include "testing.hpp"
#include "unit/text_matchers.hpp"

#include <cstring>

using namespace deltawire;
using namespace deltawire::actors;
using namespace deltawire::test;

namespace {

constexpr std::uint64_t chunk_elements = 64;
constexpr std::size_t chunks = 4;
constexpr std::size_t piece_bytes = 1 << 16;

std::uint64_t worst_case() {
  return delta::worst_case_bytes(chunk_elements, 2, piece_bytes);
}

/// One rank with one parameter of four chunks, and credit for the worst case of one of them.
struct Rank {
  Log log;
  TestSystem system;
  std::vector<std::uint16_t> weights = std::vector<std::uint16_t>(chunks * chunk_elements);
  std::shared_ptr<RankWork> work;
  std::shared_ptr<Colleagues> colleagues;

  explicit Rank(std::uint64_t inflight = worst_case(), bool fold = false, std::uint64_t audit_every = 0) {
    const SnapshotterSettings settings{1, inflight, 1 << 20, fold, audit_every};
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = static_cast<std::uint16_t>(i);
    work =
      RankWork::make(0, {flat_block(0, DType::bf16, static_cast<std::int64_t>(weights.size()))}, 1, 2 * chunk_elements,
                     inflight, piece_bytes, {reinterpret_cast<const std::byte*>(weights.data())});
    work->recorder = std::make_shared<telemetry::Recorder>();
    work->slots = {{"w", DType::bf16, {static_cast<std::int64_t>(weights.size())}}};
    REQUIRE(work->chunks.size() == chunks);
    colleagues = probes(system, log);
    colleagues->snapshotter = system.spawn(snapshotter, work, settings);
    colleagues->differs = {system.spawn(differ, work, 0u)};
    system.send(colleagues->snapshotter, Meet{colleagues});
    system.send(colleagues->differs[0], Meet{colleagues});
  }

  void capture(std::uint64_t version) { system.send(colleagues->snapshotter, CaptureRequest{version, 10 * version}); }
  void give_back(std::uint64_t bytes) { system.send(colleagues->snapshotter, CreditReturned{bytes}); }

  /// Returns the credit of each chunk that comes, until none does; the chunks' numbers in order.
  std::vector<std::uint32_t> drain(std::vector<ChunkEncoded>& all) {
    std::vector<std::uint32_t> order;
    for (;;) {
      const auto encoded = log.take().all<ChunkEncoded>();
      if (encoded.empty())
        return order;
      for (const ChunkEncoded& one : encoded) {
        order.push_back(one.chunk->chunk);
        all.push_back(one);
        if (!one.chunk->bytes.empty())
          give_back(one.chunk->bytes.size());
      }
    }
  }

  /// Writes the pieces over `values`, as a worker would.
  void apply(const std::vector<ChunkEncoded>& encoded, std::vector<std::uint16_t>& values) const {
    const delta::BoundBlock bound{&work->blocks[0], reinterpret_cast<std::byte*>(values.data())};
    delta::Stage stage({&bound, 1}, 1 << 20);
    for (const ChunkEncoded& one : encoded)
      for (std::size_t at = 0; at < one.chunk->bytes.size();) {
        const auto piece =
          delta::read_piece(std::span<const std::byte>(one.chunk->bytes).subspan(at), work->blocks[0]).value();
        REQUIRE(stage.add(0, piece));
        stage.exchange({});
        stage.clear();
        at += piece.bytes;
      }
  }
};

} // namespace

TEST_CASE("a capture is complete before any credit comes back, and what was captured is what travels") {
  Rank rank;
  const std::vector<std::uint16_t> captured = rank.weights;
  rank.capture(1);
  // No credit was returned so far: the capture waited for none.
  REQUIRE(rank.log.count<CaptureDone>() == 1);
  const auto reports = rank.log.all<CaptureReported>();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].report.version == 1);
  CHECK(reports[0].report.step == 10);
  CHECK(reports[0].report.kind == wire::DeliveryKind::seed);
  CHECK(reports[0].report.changed == rank.weights.size());
  REQUIRE(reports[0].report.digest_changes.size() == 1);
  CHECK(reports[0].report.digest_changes[0].second == digest_of(captured));
  CHECK(rank.log.count<ChunkEncoded>() == 1); // credit for one

  // The weights may change now.
  std::fill(rank.weights.begin(), rank.weights.end(), std::uint16_t{0xDEAD});
  std::vector<ChunkEncoded> encoded;
  CHECK(rank.drain(encoded) == std::vector<std::uint32_t>{0, 1, 2, 3});
  std::vector<std::uint16_t> received(rank.weights.size());
  rank.apply(encoded, received);
  CHECK(received == captured);
}

TEST_CASE("beyond inflight only the log is kept, and the rest is encoded in walk order as credit returns") {
  Rank rank;
  std::vector<ChunkEncoded> seed;
  std::vector<std::uint16_t> received(rank.weights.size());
  rank.capture(1);
  rank.drain(seed);
  rank.apply(seed, received);

  for (std::size_t c = 0; c < chunks; ++c)
    rank.weights[c * chunk_elements + c] = static_cast<std::uint16_t>(0x8000 + c);
  const std::vector<std::uint16_t> captured = rank.weights;
  rank.capture(2);
  REQUIRE(rank.log.count<CaptureDone>() == 1);
  CHECK(rank.log.all<CaptureReported>()[0].report.changed == chunks);
  CHECK(rank.log.all<CaptureReported>()[0].report.kind == wire::DeliveryKind::delta);
  const auto first = rank.log.all<ChunkEncoded>();
  REQUIRE(first.size() == 1);
  CHECK(first[0].chunk->chunk == 0);
  std::fill(rank.weights.begin(), rank.weights.end(), std::uint16_t{0xDEAD});

  // Half of what it took is not enough for the next one's worst case.
  (void)rank.log.take();
  const std::uint64_t bytes = first[0].chunk->bytes.size();
  rank.give_back(bytes / 2);
  CHECK(rank.log.count<ChunkEncoded>() == 0);
  rank.give_back(bytes - bytes / 2);
  REQUIRE(rank.log.count<ChunkEncoded>() == 1);
  std::vector<ChunkEncoded> rest = first;
  CHECK(rank.drain(rest) == std::vector<std::uint32_t>{1, 2, 3});
  rank.apply(rest, received);
  CHECK(received == captured);
}

TEST_CASE("a chunk without changes needs no credit to say so") {
  Rank rank;
  std::vector<ChunkEncoded> seed;
  rank.capture(1);
  rank.drain(seed);
  rank.weights[0] = 0x8000;
  rank.weights[3 * chunk_elements] = 0x8001;
  rank.capture(2);
  const auto encoded = rank.log.take().all<ChunkEncoded>();
  REQUIRE(encoded.size() == 3);
  CHECK(encoded[0].chunk->chunk == 0);
  CHECK(!encoded[0].chunk->bytes.empty());
  CHECK(encoded[1].chunk->chunk == 1);
  CHECK(encoded[1].chunk->bytes.empty());
  CHECK(encoded[2].chunk->chunk == 2);
  CHECK(encoded[2].chunk->bytes.empty());
  rank.give_back(encoded[0].chunk->bytes.size());
  REQUIRE(rank.log.count<ChunkEncoded>() == 1);
  CHECK(rank.log.all<ChunkEncoded>()[0].chunk->chunk == 3);
}

TEST_CASE("with credit for everything nothing is put off") {
  Rank rank(chunks * worst_case());
  rank.capture(1);
  CHECK(rank.log.count<ChunkEncoded>() == chunks);
  CHECK(rank.log.count<CaptureDone>() == 1);
}

TEST_CASE("the next capture starts when nothing of the last one is left to be read from the snapshot") {
  Rank rank;
  rank.capture(1);
  rank.capture(2);
  CHECK(rank.log.count<CaptureDone>() == 1);
  for (std::size_t c = 0; c + 1 < chunks; ++c) {
    const auto encoded = rank.log.take().all<ChunkEncoded>();
    REQUIRE(encoded.size() == 1);
    CHECK(encoded[0].chunk->gather == sync::gather_of(1));
    CHECK(encoded[0].chunk->chunk == c);
    rank.give_back(encoded[0].chunk->bytes.size());
  }
  // The last chunk of version 1 is encoded: its bytes have left the snapshot, so version 2 was captured at once.
  const auto done = rank.log.all<CaptureDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].version == 2);
}

TEST_CASE("a capture that is planned to catch workers up encodes everything that changed since their version") {
  Rank rank(chunks * worst_case());
  std::vector<ChunkEncoded> ignored;
  std::vector<std::uint16_t> behind(rank.weights.size()), current(rank.weights.size());
  std::vector<ChunkEncoded> seed;
  rank.capture(1);
  rank.drain(seed);
  rank.apply(seed, behind);
  current = behind;
  const auto only = [](const std::vector<ChunkEncoded>& all, std::uint64_t gather) {
    std::vector<ChunkEncoded> found;
    for (const ChunkEncoded& one : all)
      if (one.chunk->gather == gather)
        found.push_back(one);
    return found;
  };
  const auto change = [&](std::size_t position, std::uint16_t bits) { rank.weights[position] = bits; };

  change(3, 0x7FC0);
  change(200, 0x1234);
  rank.capture(2);
  std::vector<ChunkEncoded> second;
  rank.drain(second);
  rank.apply(second, current);
  REQUIRE(only(second, sync::catch_up_gather_of(2)).empty());

  wire::NextUpdate next;
  next.version = 3;
  next.catch_up = 1;
  next.kind = wire::DeliveryKind::fold;
  next.base = 1;
  change(200, 0x4321); // the snapshot's value counts, not the one that was logged
  change(70, 0x8000);
  std::vector<ChunkEncoded> third;
  bool reaches = true;
  SECTION("planned before the capture") {
    next.keep_logs_after = 1;
    rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
    rank.capture(3);
    rank.drain(third);
  }
  SECTION("planned after it") {
    next.keep_logs_after = 1;
    rank.capture(3);
    rank.drain(third);
    rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
    rank.drain(third);
  }
  SECTION("with logs that do not reach back: all values") {
    next.keep_logs_after = 2;
    rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
    rank.capture(3);
    rank.drain(third);
    reaches = false;
  }
  SECTION("as a seed: all values") {
    next.kind = wire::DeliveryKind::seed;
    next.keep_logs_after = 1;
    rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
    rank.capture(3);
    rank.drain(third);
    reaches = false;
  }
  rank.apply(only(third, sync::gather_of(3)), current);
  CHECK(current == rank.weights);
  const auto catch_up = only(third, sync::catch_up_gather_of(3));
  REQUIRE(catch_up.size() == chunks);
  if (!reaches)
    std::fill(behind.begin(), behind.end(), std::uint16_t{0xDEAD}); // whatever was there
  rank.apply(catch_up, behind);
  CHECK(behind == rank.weights);
  std::size_t bytes = 0;
  for (const ChunkEncoded& one : catch_up)
    bytes += one.chunk->bytes.size();
  CHECK((bytes < chunks * chunk_elements) == reaches); // three changes, or all values

  // Nothing is left of it: the next capture begins.
  rank.capture(4);
  CHECK(rank.log.count<CaptureDone>() == 1);
}

TEST_CASE("the next capture waits for a catch-up to be read, and not for one that is dropped") {
  Rank rank;
  rank.capture(1);
  std::vector<ChunkEncoded> seed;
  rank.drain(seed);
  std::fill(rank.weights.begin(), rank.weights.end(), std::uint16_t{0x1111});
  wire::NextUpdate next;
  next.version = 2;
  next.catch_up = 1;
  next.kind = wire::DeliveryKind::seed;
  rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
  rank.capture(2); // credit for one chunk, and nobody takes it
  rank.capture(3);
  (void)rank.log.take();
  rank.system.send(rank.colleagues->snapshotter, GatherDropped{sync::gather_of(2)});
  CHECK(rank.log.take().count<CaptureDone>() == 0);
  rank.system.send(rank.colleagues->snapshotter, GatherDropped{sync::catch_up_gather_of(2)});
  const auto done = rank.log.all<CaptureDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].version == 3);
}

TEST_CASE("with busy = fold a capture does not wait for the last one to be read: that update is given up") {
  Rank rank(worst_case(), true);
  rank.capture(1);
  rank.capture(2);
  CHECK(rank.log.count<CaptureDone>() == 1); // a seed is waited for
  CHECK(rank.log.count<UpdateAbandoned>() == 0);
  std::vector<ChunkEncoded> seed;
  rank.drain(seed);
  std::fill(rank.weights.begin(), rank.weights.end(), std::uint16_t{0x1111});
  rank.capture(3);
  (void)rank.log.take();
  rank.capture(4);
  const Log log = rank.log.take();
  const auto done = log.all<CaptureDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].version == 4);
  const auto abandoned = log.all<UpdateAbandoned>(); // the supervisor's and GatherQueue's
  REQUIRE(abandoned.size() == 2);
  CHECK(abandoned[0].version == 3);
  CHECK(abandoned[1].version == 3);
  // One that carries the changes of another is waited for.
  wire::NextUpdate next;
  next.version = 4;
  next.catch_up = 1;
  next.kind = wire::DeliveryKind::fold;
  next.base = 2;
  next.keep_logs_after = 2;
  rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
  rank.capture(5);
  CHECK(rank.log.count<CaptureDone>() == 0);
  CHECK(rank.log.count<UpdateAbandoned>() == 0);
}

TEST_CASE("captures that have not started are answered when they are cancelled") {
  Rank rank;
  rank.capture(1);
  rank.capture(2);
  rank.capture(3);
  (void)rank.log.take();
  rank.system.send(rank.colleagues->snapshotter, CaptureCancel{});
  const auto done = rank.log.all<CaptureDone>();
  REQUIRE(done.size() == 2);
  CHECK(done[0].version == 2);
  CHECK(done[1].version == 3);
}

// Updates in parts
// ---------------------------------------------------------------------------------------------------

namespace {

/// One rank with three parameters in two chunks: 0 and 1 share the first one.
struct PartsRank {
  static constexpr std::size_t elements[] = {32, 32, 64};
  Log log;
  TestSystem system;
  std::vector<std::vector<std::uint16_t>> weights;
  std::shared_ptr<RankWork> work;
  std::shared_ptr<Colleagues> colleagues;

  PartsRank() {
    std::vector<layout::Block> blocks;
    std::vector<const std::byte*> bases;
    for (std::uint32_t p = 0; p < 3; ++p) {
      weights.emplace_back(elements[p], static_cast<std::uint16_t>(p));
      blocks.push_back(flat_block(p, DType::bf16, static_cast<std::int64_t>(elements[p])));
      blocks.back().parameter = p;
      bases.push_back(reinterpret_cast<const std::byte*>(weights[p].data()));
    }
    work = RankWork::make(0, std::move(blocks), 1, 2 * chunk_elements, 1 << 20, piece_bytes, std::move(bases));
    work->recorder = std::make_shared<telemetry::Recorder>();
    REQUIRE(work->chunks.size() == 2);
    colleagues = probes(system, log);
    colleagues->snapshotter = system.spawn(snapshotter, work, SnapshotterSettings{1, 1 << 20, 1 << 20, false});
    colleagues->differs = {system.spawn(differ, work, 0u)};
    system.send(colleagues->snapshotter, Meet{colleagues});
    system.send(colleagues->differs[0], Meet{colleagues});
  }

  void capture(std::uint64_t version, bool in_parts = false) {
    system.send(colleagues->snapshotter, CaptureRequest{version, version, in_parts});
  }
  void sent(std::uint64_t version, std::vector<std::uint32_t> parameters) {
    system.send(colleagues->snapshotter, UpdatePart{version, UpdatePart::Kind::sent, std::move(parameters), nullptr});
  }
  void finished(std::uint64_t version, sync::CaptureParts parts) {
    system.send(colleagues->snapshotter, UpdatePart{version,
                                                    UpdatePart::Kind::finished,
                                                    {},
                                                    std::make_shared<const sync::CaptureParts>(std::move(parts))});
  }
  void aborted(std::uint64_t version) {
    system.send(colleagues->snapshotter, UpdatePart{version, UpdatePart::Kind::aborted, {}, nullptr});
  }
  void fold(std::uint64_t version, std::uint64_t base) {
    wire::NextUpdate next;
    next.version = version;
    next.catch_up = 1;
    next.kind = wire::DeliveryKind::fold;
    next.base = base;
    next.keep_logs_after = base;
    system.send(colleagues->snapshotter, UpdatePlanned{next});
  }

  /// Chunks of a gather that have come since the last take, in order; their pieces go into `values`.
  std::vector<std::uint32_t> apply(const Log& taken, std::uint64_t gather,
                                   std::vector<std::vector<std::uint16_t>>& values) const {
    std::vector<std::uint32_t> order;
    for (const ChunkEncoded& one : taken.all<ChunkEncoded>()) {
      if (one.chunk->gather != gather)
        continue;
      order.push_back(one.chunk->chunk);
      for (std::size_t at = 0; at < one.chunk->bytes.size();) {
        const auto bytes = std::span<const std::byte>(one.chunk->bytes).subspan(at);
        std::uint32_t id = 0;
        while (!delta::read_piece(bytes, work->blocks[id]))
          ++id;
        const auto piece = delta::read_piece(bytes, work->blocks[id]).value();
        const delta::BoundBlock bound{&work->blocks[id], reinterpret_cast<std::byte*>(values[id].data())};
        delta::Stage stage({&bound, 1}, 1 << 20);
        REQUIRE(stage.add(0, piece));
        stage.exchange({});
        at += piece.bytes;
      }
    }
    return order;
  }

  void change_all() {
    for (auto& parameter : weights)
      for (std::uint16_t& weight : parameter)
        weight = static_cast<std::uint16_t>(weight + 0x100);
  }
};

} // namespace

TEST_CASE("chunks are captured as their parameters are sent, and what is never sent keeps its bits") {
  PartsRank rank;
  rank.capture(1);
  auto received = rank.weights;
  (void)rank.log.take();
  const auto first = rank.weights;
  rank.change_all();
  rank.capture(2, true);
  CHECK(rank.log.count<CaptureDone>() == 0);
  rank.sent(2, {2});
  rank.weights[2].assign(64, 0xDEAD); // captured: the second chunk was ready, ahead of the first
  CHECK(rank.log.count<ChunkEncoded>() == 0);
  rank.sent(2, {0}); // the first chunk waits for parameter 1
  CHECK(rank.log.count<CaptureDone>() == 0);
  rank.finished(2, {{true, false, true}, {}});
  const Log log = rank.log.take();
  REQUIRE(log.count<CaptureDone>() == 1);
  const wire::CaptureReport report = log.all<CaptureReported>()[0].report;
  CHECK(report.changed == 96);
  CHECK(report.aborted == 0);
  CHECK(rank.apply(log, sync::gather_of(2), received) == std::vector<std::uint32_t>{0, 1});
  auto expected = first;
  for (const std::size_t p : {0u, 2u})
    for (std::uint16_t& weight : expected[p])
      weight = static_cast<std::uint16_t>(weight + 0x100);
  CHECK(received == expected);

  rank.capture(3); // whole: parameter 1 and what became of 2
  CHECK(rank.apply(rank.log.take(), sync::gather_of(3), received) == std::vector<std::uint32_t>{0, 1});
  CHECK(received == rank.weights);
}

TEST_CASE("a patch is captured without a look at memory, and later diffs go by it") {
  PartsRank rank;
  rank.capture(1);
  auto received = rank.weights;
  auto expected = received;
  (void)rank.log.take();
  rank.weights[1].assign(32, 0xDEAD);
  rank.capture(2, true);
  sync::CaptureParts parts{{false, false, false}, {}};
  parts.patches[1] = {{3, 31}, {std::byte{0x11}, std::byte{0x22}, std::byte{0x01}, std::byte{0x00}}};
  rank.finished(2, parts); // the second of them is what was there
  const Log log = rank.log.take();
  CHECK(log.all<CaptureReported>()[0].report.changed == 1);
  CHECK(rank.apply(log, sync::gather_of(2), received) == std::vector<std::uint32_t>{0, 1});
  expected[1][3] = 0x2211;
  CHECK(received == expected);
  rank.weights[1] = expected[1]; // memory was changed too
  rank.capture(3);
  CHECK(rank.log.take().all<CaptureReported>()[0].report.changed == 0);
  rank.weights[1][3] = 1; // and back
  rank.capture(4);
  const Log last = rank.log.take();
  CHECK(last.all<CaptureReported>()[0].report.changed == 1);
  (void)rank.apply(last, sync::gather_of(4), received);
  CHECK(received == rank.weights);
}

TEST_CASE("a capture that is left half done is told as such, and what it captured comes with the next one") {
  PartsRank rank;
  rank.capture(1);
  auto received = rank.weights;
  (void)rank.log.take();
  rank.change_all();
  rank.capture(2, true);
  rank.sent(2, {1, 0});
  CHECK(rank.log.take().count<ChunkEncoded>() == 1); // on its way already
  rank.aborted(2);
  Log log = rank.log.take();
  REQUIRE(log.count<CaptureDone>() == 1);
  REQUIRE(log.count<CaptureReported>() == 1);
  const wire::CaptureReport report = log.all<CaptureReported>()[0].report;
  CHECK(report.aborted == 1);
  CHECK(report.changed == 64);
  CHECK(log.count<ChunkEncoded>() == 0);
  REQUIRE(log.count<UpdateAbandoned>() == 1); // GatherQueue gives back what it has
  CHECK(log.all<UpdateAbandoned>()[0].version == 2);

  // A catch-up that is planned for it comes to nothing; the next one has all that was captured since version 1.
  rank.fold(2, 1);
  CHECK(rank.log.take().count<ChunkEncoded>() == 0);
  rank.fold(3, 1);
  rank.weights[1][0] = 0x7777; // not sent
  rank.capture(3, true);
  rank.sent(3, {2});
  rank.finished(3, {{false, false, true}, {}});
  log = rank.log.take();
  CHECK(log.all<CaptureReported>()[0].report.aborted == 0);
  CHECK(rank.apply(log, sync::catch_up_gather_of(3), received) == std::vector<std::uint32_t>{0, 1});
  auto expected = rank.weights;
  expected[1][0] = 0x101;
  CHECK(received == expected);
}

TEST_CASE("a first capture that is left half done is made whole by the next, all values") {
  PartsRank rank;
  rank.capture(1, true);
  rank.sent(1, {2});
  rank.aborted(1);
  const wire::CaptureReport first = rank.log.all<CaptureReported>().at(0).report;
  CHECK(first.kind == wire::DeliveryKind::seed);
  CHECK(first.changed == 64);
  (void)rank.log.take();
  wire::NextUpdate next;
  next.version = 2;
  next.catch_up = 1;
  next.kind = wire::DeliveryKind::seed;
  rank.system.send(rank.colleagues->snapshotter, UpdatePlanned{next});
  rank.weights[2][5] = 0x1234;
  rank.capture(2);
  const Log log = rank.log.take();
  const wire::CaptureReport second = log.all<CaptureReported>().at(0).report;
  CHECK(second.changed == 65); // 64 for the first time, one against version 1's capture
  std::vector<std::vector<std::uint16_t>> received;
  for (const std::size_t elements : PartsRank::elements)
    received.emplace_back(elements, std::uint16_t{0xDEAD});
  CHECK(rank.apply(log, sync::catch_up_gather_of(2), received) == std::vector<std::uint32_t>{0, 1});
  CHECK(received == rank.weights);
  delta::Digest digest = 0;
  for (const auto& weights : rank.weights)
    digest += digest_of(weights);
  std::uint64_t told = 0;
  for (const auto& report : {first, second})
    for (const auto& [cell, change] : report.digest_changes)
      told += change;
  CHECK(told == digest);
}

TEST_CASE("parts of a capture that has not begun wait for it, and its abort for nobody") {
  PartsRank rank;
  rank.capture(1, true);
  rank.sent(2, {0, 1, 2});
  rank.aborted(2);
  const auto done = rank.log.take().all<CaptureDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].version == 2);
  rank.capture(2, true);
  rank.change_all();
  rank.sent(1, {0, 1, 2});
  rank.finished(1, {{true, true, true}, {}});
  const Log log = rank.log.take();
  const auto reports = log.all<CaptureReported>();
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].report.changed == 128);
  CHECK(reports[1].report.aborted == 1);
  CHECK(reports[1].report.changed == 0);
}

TEST_CASE("an open capture ends with the session") {
  PartsRank rank;
  rank.capture(1, true);
  rank.sent(1, {2});
  CHECK(rank.log.count<CaptureDone>() == 0);
  rank.system.send(rank.colleagues->snapshotter, CaptureCancel{});
  CHECK(rank.log.count<CaptureDone>() == 1);
  rank.sent(1, {0}); // the caller does not know yet
  rank.finished(1, {{true, true, true}, {}});
  rank.aborted(2);
  CHECK(rank.log.count<CaptureReported>() == 1);
}

TEST_CASE("an audit of every second capture reads the snapshot once nothing else needs it, before the next capture") {
  Rank rank(worst_case(), false, 2);
  std::vector<ChunkEncoded> encoded;
  rank.capture(1);
  rank.drain(encoded);
  CHECK(rank.log.count<SnapshotAudited>() == 0);
  rank.weights[7] = 0x1234;
  rank.weights[200] = 0x4321;
  rank.capture(2);
  rank.weights[7] = 0x7777;
  rank.capture(3); // waits for the last one to be read, and audited
  CHECK(rank.log.count<SnapshotAudited>() == 0);
  CHECK(rank.log.count<CaptureDone>() == 1);
  std::vector<SnapshotAudited> audits;
  for (bool more = true; more;) {
    const Log log = rank.log.take();
    for (const SnapshotAudited& audit : log.all<SnapshotAudited>())
      audits.push_back(audit);
    for (const ChunkEncoded& one : log.all<ChunkEncoded>())
      if (!one.chunk->bytes.empty())
        rank.give_back(one.chunk->bytes.size());
    more = log.count<ChunkEncoded>() > 0;
  }
  REQUIRE(audits.size() == 1);
  CHECK(audits[0].report.audit == 1);
  CHECK(audits[0].report.version == 2);
  CHECK(audits[0].report.error == "");
  // One that is asked for counts on.
  rank.system.send(rank.colleagues->snapshotter, SnapshotAudit{});
  audits = rank.log.all<SnapshotAudited>();
  REQUIRE(audits.size() == 1);
  CHECK(audits[0].report.audit == 2);
  CHECK(audits[0].report.version == 3);
  CHECK(audits[0].report.error == "");
}

TEST_CASE("an audit finds a bit of the snapshot that no capture has changed, and names slot and cell") {
  Rank rank;
  std::vector<ChunkEncoded> encoded;
  rank.capture(1);
  rank.drain(encoded);
  const std::size_t byte = static_cast<std::size_t>(GENERATE(0, 101, 511));
  rank.work->memory.snapshot.data()[byte] ^= std::byte{1};
  rank.system.send(rank.colleagues->snapshotter, SnapshotAudit{});
  const auto audits = rank.log.all<SnapshotAudited>();
  REQUIRE(audits.size() == 1);
  CHECK_THAT(audits[0].report.error, contains("slot 'w', cell 0: the snapshot has digest"));
}

TEST_CASE("a Differ compares bits: minus zero is a change, an unchanged NaN is none") {
  Log log;
  TestSystem system;
  std::vector<std::uint16_t> weights{0x0000, 0x7FC0, 0x3F80};
  const auto work = RankWork::make(0, {flat_block(0, DType::bf16, 3)}, 1, 1024, 1024, 1024,
                                   {reinterpret_cast<const std::byte*>(weights.data())});
  work->recorder = std::make_shared<telemetry::Recorder>();
  const auto colleagues = probes(system, log);
  const DifferActor actor = system.spawn(differ, work, 0u);
  system.send(actor, Meet{colleagues});
  using Work = sync::CaptureWalk::Work;
  system.send(actor, ChunkTask{1, {0, Work::capture}, true, 0, 0});
  REQUIRE(log.count<ChunkWorked>() == 1);
  CHECK(log.all<ChunkWorked>()[0].changed == 3);
  CHECK(log.count<ChunkEncoded>() == 0); // into snapshot and log only

  const std::vector<std::uint16_t> before = weights;
  weights[0] = 0x8000;
  (void)log.take();
  system.send(actor, ChunkTask{2, {0, Work::capture_and_encode}, false, 0, 0});
  REQUIRE(log.count<ChunkWorked>() == 1);
  const ChunkWorked worked = log.all<ChunkWorked>()[0];
  CHECK(worked.changed == 1);
  REQUIRE(log.count<ChunkEncoded>() == 1);
  CHECK(worked.encoded == log.all<ChunkEncoded>()[0].chunk->bytes.size());
  REQUIRE(work->memory.digest_changes[0].size() == 1);
  CHECK(work->memory.digest_changes[0][0].second == digest_of(weights) - digest_of(before));
}
