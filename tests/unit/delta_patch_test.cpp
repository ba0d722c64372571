// Contract of delta/patch.hpp against brute force: slot positions find their elements and no others, and a patch leaves
// snapshot, log and digest as a capture of memory with these values would.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "random.hpp"

#include "delta/patch.hpp"

#include <map>

namespace {

using namespace deltawire;
using test::Sides;
using test::uniform;

constexpr DType dtypes[] = {DType::boolean, DType::bf16, DType::f32, DType::i64};

delta::Digest digest_of(const Sides& sides, const std::vector<std::byte>& snapshot) {
  delta::Digest digest = 0;
  for (std::uint64_t e = 0; e < sides.elements; ++e) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, snapshot.data() + e * sides.size, sides.size);
    digest += delta::mix(sides.slot_position(e), bits);
  }
  return digest;
}

/// A patch of some elements, some of which get the bits that they have.
delta::BlockPatch random_patch(std::mt19937_64& random, const Sides& sides) {
  delta::BlockPatch patch;
  const std::uint64_t one_in = uniform(random, 2, 30);
  for (std::uint64_t e = 0; e < sides.elements; ++e) {
    if (uniform(random, 1, one_in) > 2)
      continue;
    patch.elements.push_back(e);
    const bool same = uniform(random, 0, 3) == 0;
    for (std::size_t i = 0; i < sides.size; ++i)
      patch.values.push_back(same ? sides.snapshot[e * sides.size + i] : static_cast<std::byte>(random()));
  }
  return patch;
}

} // namespace

TEST_CASE("a slot position finds the block's element there, and none where the block has none") {
  CAPTURE(test::seed());
  for (std::uint64_t number = 0; number < 300; ++number) {
    auto random = test::generator(41000 + number);
    CAPTURE(number);
    const Sides sides(random, DType::u8, 2000);
    std::map<std::uint64_t, std::uint64_t> elements;
    for (std::uint64_t e = 0; e < sides.elements; ++e)
      elements.emplace(sides.slot_position(e), e);
    REQUIRE(elements.size() == sides.elements);
    const delta::BlockIndex index(sides.owner);
    const std::uint64_t first = elements.begin()->first, last = elements.rbegin()->first;
    for (std::uint64_t position = first < 20 ? 0 : first - 20; position < last + 20; ++position) {
      const auto expected = elements.find(position);
      const auto element = index.element_at(position);
      REQUIRE(element.has_value() == (expected != elements.end()));
      if (element)
        REQUIRE(*element == expected->second);
    }
    REQUIRE_FALSE(index.element_at(~std::uint64_t{0}));
  }
}

TEST_CASE("a patch changes its elements in the snapshot, and logs and digests those whose bits change") {
  CAPTURE(test::seed());
  std::uint64_t changed = 0, kept = 0;
  for (std::uint64_t number = 0; number < 200; ++number) {
    auto random = test::generator(42000 + number);
    CAPTURE(number);
    Sides sides(random, dtypes[number % std::size(dtypes)], number % 4 == 0 ? 20000 : 600);
    const std::vector<std::byte> before = sides.snapshot;
    const delta::BlockPatch patch = random_patch(random, sides);

    // Applied range by range, as a chunk's ranges are.
    std::map<std::uint64_t, bool> logged;
    delta::Captured captured;
    for (std::uint64_t first = 0; first < sides.elements;) {
      const std::uint64_t count = uniform(random, 1, sides.elements - first);
      delta::PositionLog log;
      const auto one = delta::capture_patch({&sides.owner, nullptr, sides.snapshot.data()}, first, count, patch, log);
      captured.changed += one.changed;
      captured.digest_change += one.digest_change;
      log.for_each_tile([&](std::uint64_t tile, std::span<const std::uint16_t> positions) {
        for (const std::uint16_t position : positions) {
          REQUIRE(tile + position >= first);
          REQUIRE(tile + position < first + count);
          REQUIRE(logged.emplace(tile + position, true).second);
        }
      });
      first += count;
    }

    std::vector<std::byte> expected = before;
    for (std::size_t i = 0; i < patch.elements.size(); ++i)
      std::memcpy(expected.data() + patch.elements[i] * sides.size, patch.values.data() + i * sides.size, sides.size);
    REQUIRE(sides.snapshot == expected);
    for (std::uint64_t e = 0; e < sides.elements; ++e) {
      const bool differs =
        std::memcmp(before.data() + e * sides.size, expected.data() + e * sides.size, sides.size) != 0;
      REQUIRE(logged.contains(e) == differs);
    }
    REQUIRE(captured.changed == logged.size());
    REQUIRE(captured.digest_change == digest_of(sides, expected) - digest_of(sides, before));
    changed += logged.size();
    kept += patch.elements.size() - logged.size();
  }
  REQUIRE(changed > 1000);
  REQUIRE(kept > 100); // patched with the bits that were there
}
