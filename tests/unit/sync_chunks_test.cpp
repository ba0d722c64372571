// Chunks: what a rank hands out under its caps, for random blocks and caps.

#include "catch.hpp"
#include "delta/piece.hpp"
#include "random.hpp"
#include "sync/chunks.hpp"
#include "wire/frame.hpp"

#include <algorithm>
#include <limits>
#include <random>

using namespace deltawire;
using namespace deltawire::test;

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

layout::Block block_of(std::uint32_t id, DType dtype, std::int64_t elements, std::uint32_t window) {
  layout::Block block;
  block.id = id;
  block.dtype = dtype;
  block.window = window;
  block.extents = {elements};
  block.local_strides = {1};
  block.slot_strides = {1};
  return block;
}

std::uint64_t pick(std::mt19937_64& random, std::uint64_t least, std::uint64_t most) {
  return std::uniform_int_distribution<std::uint64_t>(least, most)(random);
}

} // namespace

TEST_CASE("chunks hold every element once, in order, within one window and under both caps") {
  INFO("seed " << seed());
  std::mt19937_64 random = generator(61);
  for (int round = 0; round < 300; ++round) {
    std::vector<layout::Block> blocks;
    std::uint32_t window = 0;
    const std::uint64_t count = pick(random, 0, 6);
    for (std::uint32_t b = 0; b < count; ++b) {
      constexpr DType dtypes[] = {DType::u8, DType::bf16, DType::f32, DType::f64};
      window += static_cast<std::uint32_t>(pick(random, 0, 1));
      blocks.push_back(
        block_of(b, dtypes[pick(random, 0, 3)], static_cast<std::int64_t>(pick(random, 1, 20000)), window));
    }
    const std::uint64_t chunk_bytes = pick(random, 1, 60000);
    const std::uint64_t inflight = pick(random, 100, 60000);
    const std::size_t limit = *sync::piece_limit(inflight, pick(random, 100, 60000), unlimited, 8);
    CAPTURE(round, chunk_bytes, inflight, limit);

    const sync::Chunks cut = sync::cut_chunks(blocks, chunk_bytes, inflight, limit);
    std::uint32_t block = 0;
    std::uint64_t next = 0, elements = 0;
    for (const sync::Chunk& chunk : cut.chunks) {
      std::uint64_t bytes = 0, worst = 0;
      REQUIRE_FALSE(chunk.ranges.empty());
      for (const sync::ChunkRange& range : chunk.ranges) {
        if (next == static_cast<std::uint64_t>(element_count(blocks[block]))) {
          ++block;
          next = 0;
        }
        const std::size_t size = size_of(blocks[block].dtype);
        REQUIRE(range.block == block);
        REQUIRE(range.first == next);
        REQUIRE(range.count >= 1);
        REQUIRE(range.count <= sync::chunk_elements(size, chunk_bytes, inflight, limit));
        REQUIRE(blocks[block].window == chunk.window);
        next += range.count;
        elements += range.count;
        bytes += range.count * size;
        worst += delta::worst_case_bytes(range.count, size, limit);
      }
      CHECK(chunk.worst_case == worst);
      CHECK(worst <= inflight);
      CHECK((bytes <= chunk_bytes || (chunk.ranges.size() == 1 && chunk.ranges[0].count == 1)));
    }
    if (!blocks.empty()) {
      CHECK(block + 1 == blocks.size());
      CHECK(next == static_cast<std::uint64_t>(element_count(blocks.back())));
    }
    CHECK(cut.elements == elements);

    REQUIRE(cut.snapshot_offsets.size() == blocks.size());
    std::uint64_t end = 0;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      CHECK(cut.snapshot_offsets[b] % sync::snapshot_alignment == 0);
      CHECK(cut.snapshot_offsets[b] >= end);
      end = cut.snapshot_offsets[b] + static_cast<std::uint64_t>(element_count(blocks[b])) * size_of(blocks[b].dtype);
    }
    CHECK(cut.snapshot_bytes >= end);
    CHECK(cut.snapshot_bytes < end + sync::snapshot_alignment + blocks.size() * sync::snapshot_alignment);
  }
}

TEST_CASE("the largest piece is the least of the caps on its way") {
  constexpr std::uint64_t mib = 1 << 20;
  CHECK(*sync::piece_limit(5 * mib, 7 * mib, 9 * mib, 2) == 5 * mib);
  CHECK(*sync::piece_limit(7 * mib, 5 * mib, 9 * mib, 2) == 5 * mib);
  CHECK(*sync::piece_limit(7 * mib, 9 * mib, 5 * mib, 2) == 5 * mib - wire::header_bytes);
  CHECK(*sync::piece_limit(unlimited, unlimited, unlimited, 2) == 64 * mib);
  CHECK(*sync::piece_limit(unlimited, unlimited, unlimited, 2, true) == delta::most_plain_bytes);
  CHECK(*sync::piece_limit(mib, unlimited, unlimited, 2, true) == mib);
}

TEST_CASE("a cap that holds no element is named with the least that works, and that works") {
  for (const std::size_t size : {1u, 2u, 4u, 8u}) {
    CAPTURE(size);
    const auto refused = [&](std::uint64_t inflight, std::uint64_t round, std::uint64_t cap, const std::string& key) {
      const auto limit = sync::piece_limit(inflight, round, cap, size);
      REQUIRE_FALSE(limit);
      CHECK(limit.error().code == Code::limit_exceeded);
      CHECK(limit.error().message.starts_with("actors." + key));
      return std::stoull(limit.error().message.substr(limit.error().message.find("at least ") + 9));
    };
    const std::uint64_t inflight = refused(1, unlimited, unlimited, "differ.inflight");
    const std::uint64_t round = refused(unlimited, 1, unlimited, "gather_queue.max_round");
    const std::uint64_t cap = refused(unlimited, unlimited, 1, "flush_bucket.cap");
    CHECK(sync::piece_limit(inflight, round, cap, size));
    CHECK_FALSE(sync::piece_limit(inflight - 1, round, cap, size));
    CHECK_FALSE(sync::piece_limit(inflight, round - 1, cap, size));
    CHECK_FALSE(sync::piece_limit(inflight, round, cap - 1, size));
  }
}

TEST_CASE("the largest element of a catalogue without slots is one byte") {
  CHECK(sync::largest_element({}) == 1);
  const std::vector<layout::SlotSpec> slots{{"a", DType::bf16, {2}}, {"b", DType::f32, {2}}, {"c", DType::u8, {2}}};
  CHECK(sync::largest_element(slots) == 4);
}
