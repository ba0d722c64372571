// Contract of delta/position_log.hpp: a set of changed elements, small, that folds.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "random.hpp"

#include "delta/position_log.hpp"

#include <set>

namespace {

using namespace deltawire;
using delta::PositionLog;

std::set<std::uint64_t> elements_of(const PositionLog& log) {
  std::set<std::uint64_t> elements;
  std::uint64_t before = 0;
  bool any = false;
  log.for_each_tile([&](std::uint64_t first, std::span<const std::uint16_t> positions) {
    REQUIRE(first % 4096 == 0);
    REQUIRE((!any || first > before));
    REQUIRE_FALSE(positions.empty());
    any = true;
    before = first;
    for (const std::uint16_t position : positions) {
      REQUIRE(position < 4096);
      REQUIRE((elements.empty() || *elements.rbegin() < first + position));
      elements.insert(first + position);
    }
  });
  REQUIRE(elements.size() == log.changed());
  return elements;
}

/// Adds random tile parts that begin at `first` and then on the grid, as capture does.
std::set<std::uint64_t> fill(std::mt19937_64& random, PositionLog& log, std::uint64_t first, int tiles) {
  std::set<std::uint64_t> expected;
  for (int tile = 0; tile < tiles; ++tile) {
    const std::uint64_t end = (first / 4096 + 1) * 4096;
    std::bernoulli_distribution taken(std::vector{0.0, 0.001, 0.02, 0.0625, 0.5, 1.0}[random() % 6]);
    std::vector<std::uint16_t> positions;
    for (std::uint64_t element = first; element < end; ++element)
      if (taken(random)) {
        positions.push_back(static_cast<std::uint16_t>(element - first));
        expected.insert(element);
      }
    if (random() % 2) {
      std::array<std::uint64_t, 64> mask{};
      for (const std::uint16_t position : positions)
        mask[position / 64] |= std::uint64_t{1} << (position % 64);
      log.add_tile(first, positions, mask);
    } else {
      log.add_tile(first, positions);
    }
    first = end;
  }
  return expected;
}

} // namespace

TEST_CASE("a position log returns the elements that were added") {
  auto random = test::generator(20);
  for (int repeat = 0; repeat < 100; ++repeat) {
    CAPTURE(test::seed(), repeat);
    PositionLog log;
    const auto expected = fill(random, log, random() % 20000 + (repeat % 2 ? std::uint64_t{1} << 40 : 0), 8);
    REQUIRE(elements_of(log) == expected);
    REQUIRE(log.empty() == expected.empty());
  }
}

TEST_CASE("merging logs is the union of their elements") {
  auto random = test::generator(21);
  for (int repeat = 0; repeat < 100; ++repeat) {
    CAPTURE(test::seed(), repeat);
    PositionLog one;
    PositionLog other;
    const std::uint64_t first = random() % 9000;
    auto expected = fill(random, one, first, static_cast<int>(random() % 6));
    const auto added = fill(random, other, repeat % 2 ? first : random() % 9000, static_cast<int>(random() % 6));
    expected.insert(added.begin(), added.end());
    one.merge(other);
    REQUIRE(elements_of(one) == expected);
    REQUIRE(elements_of(other) == added);
    one.merge(other); // again changes nothing
    REQUIRE(elements_of(one) == expected);
  }
}

TEST_CASE("a tile takes at most a bit an element and eight bytes") {
  for (const std::size_t count : {0u, 1u, 100u, 255u, 256u, 257u, 4095u, 4096u}) {
    PositionLog log;
    std::vector<std::uint16_t> positions(count);
    std::iota(positions.begin(), positions.end(), std::uint16_t{0});
    log.add_tile(4096 * 7, positions);
    CAPTURE(count);
    REQUIRE(log.bytes() == (count == 0 ? 0 : 8 + std::min<std::size_t>(2 * count, 512)));
    REQUIRE(log.changed() == count);
  }
}

TEST_CASE("tile parts that meet inside a tile join, and one that crosses a tile's end is split") {
  PositionLog log;
  const std::vector<std::uint16_t> low = {0, 5};
  const std::vector<std::uint16_t> across = {0, 10, 4095};
  log.add_tile(4096, low);
  log.add_tile(4096 + 100, across);
  REQUIRE(elements_of(log) == std::set<std::uint64_t>{4096, 4101, 4196, 4206, 8291});
}

TEST_CASE("a chunk's log returns each range's, and takes nothing for a range without changes") {
  auto random = test::generator(76);
  delta::ChunkLog chunk;
  PositionLog read; // what it held before does not matter
  for (int repeat = 0; repeat < 50; ++repeat) {
    CAPTURE(test::seed(), repeat);
    chunk.clear();
    REQUIRE(chunk.bytes() == 0);
    std::vector<std::set<std::uint64_t>> expected;
    for (std::uint32_t range = 0; range < 30; ++range) {
      PositionLog log;
      expected.push_back(random() % 2 ? std::set<std::uint64_t>() : fill(random, log, random() % 9000, 3));
      const std::size_t before = chunk.bytes();
      chunk.add(range, log);
      REQUIRE((chunk.bytes() == before) == log.empty());
      REQUIRE(chunk.bytes() <= before + log.bytes() + 32);
    }
    for (std::uint32_t i = 0; i < 40; ++i) {
      const std::uint32_t range = static_cast<std::uint32_t>(random() % 31);
      chunk.read(range, read);
      REQUIRE(elements_of(read) == (range < expected.size() ? expected[range] : std::set<std::uint64_t>()));
    }
  }
}
