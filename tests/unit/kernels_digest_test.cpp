// Contract of kernels/digest.hpp: sums of mix() over elements, whatever the memory's order and alignment.
#include "catch.hpp"
#include "instruction_set.hpp"
#include "random.hpp"

#include "kernels/digest.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

namespace {

using namespace deltawire;

std::uint64_t bits_at(const std::byte* at, std::size_t size) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < size; ++i)
    bits |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  return bits;
}

} // namespace

TEST_CASE("mix keeps the values that FORMAT.md names") {
  ON_EVERY_INSTRUCTION_SET();
  // Computed from the formula with unbounded integers, outside this library.
  REQUIRE(kernels::mix(0, 0) == 0x8A10D2F8FFC4B513ull);
  REQUIRE(kernels::mix(1, 0x3F80) == 0xE86C263C2A8920D8ull);
  REQUIRE(kernels::mix(0x123456789ABC, 0xFFFFFFFFFFFFFFFF) == 0x4693CAEC1660963Cull);
}

TEST_CASE("mix tells positions and bits apart") {
  ON_EVERY_INSTRUCTION_SET();
  std::set<std::uint64_t> seen;
  for (std::uint64_t position = 0; position < 128; ++position)
    for (std::uint64_t bits = 0; bits < 128; ++bits)
      seen.insert(kernels::mix(position, bits));
  REQUIRE(seen.size() == 128u * 128u);
}

TEST_CASE("digest_run is the sum of mix over its elements, at every length up to 513") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(5);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t count = 0; count <= 513; ++count) {
      const auto stride = static_cast<std::ptrdiff_t>(1 + random() % 3);
      const auto slot_stride = static_cast<std::ptrdiff_t>(1 + random() % 5000);
      const std::uint64_t slot_first = random() >> (random() % 40 + 8);
      const std::size_t shift = random() % 8;
      CAPTURE(test::seed(), size, count, stride, slot_stride, slot_first, shift);
      std::vector<std::byte> memory(shift + count * static_cast<std::size_t>(stride) * size);
      for (std::byte& byte : memory)
        byte = static_cast<std::byte>(random());
      std::uint64_t expected = 0;
      for (std::size_t i = 0; i < count; ++i)
        expected += kernels::mix(slot_first + i * static_cast<std::size_t>(slot_stride),
                                 bits_at(memory.data() + shift + i * static_cast<std::size_t>(stride) * size, size));
      REQUIRE(kernels::digest_run(memory.data() + shift, stride, count, size, slot_first, slot_stride) == expected);
    }
}

TEST_CASE("digest_change_at is what the digest changes by when values are replaced") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(6);
  std::size_t runs = 0;
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (const double density : {0.0, 0.01, 0.5, 1.0})
      for (int repeat = 0; repeat < 10; ++repeat) {
        const std::size_t count = 1 + random() % 4096;
        const std::ptrdiff_t origin = -static_cast<std::ptrdiff_t>(random() % 1000);
        const auto slot_stride = static_cast<std::ptrdiff_t>(1 + random() % 5000);
        const std::uint64_t slot_first = random() >> 20;
        CAPTURE(test::seed(), size, density, count, origin, slot_stride, slot_first);
        std::vector<std::uint16_t> positions;
        std::bernoulli_distribution taken(density);
        for (std::size_t i = 0; i < count; ++i)
          if (taken(random))
            positions.push_back(static_cast<std::uint16_t>(i));
        std::vector<std::byte> before(positions.size() * size + 1);
        std::vector<std::byte> after(positions.size() * size + 3);
        for (std::byte& byte : before)
          byte = static_cast<std::byte>(random());
        for (std::byte& byte : after)
          byte = static_cast<std::byte>(random());
        std::uint64_t expected = 0;
        for (std::size_t i = 0; i < positions.size(); ++i) {
          const auto slot =
            slot_first + static_cast<std::uint64_t>((positions[i] - origin)) * static_cast<std::uint64_t>(slot_stride);
          expected += kernels::mix(slot, bits_at(after.data() + 3 + i * size, size));
          expected -= kernels::mix(slot, bits_at(before.data() + 1 + i * size, size));
        }
        REQUIRE(kernels::digest_change_at(slot_first, {slot_stride, origin}, positions, size, before.data() + 1,
                                          after.data() + 3) == expected);
        const bool run = !positions.empty() && positions.back() - positions.front() + 1u == positions.size();
        runs += run;
        if (run)
          REQUIRE(kernels::digest_change_of_run(slot_first + static_cast<std::uint64_t>(positions.front() - origin) *
                                                               static_cast<std::uint64_t>(slot_stride),
                                                slot_stride, positions.size(), size, before.data() + 1,
                                                after.data() + 3) == expected);
      }
  REQUIRE(runs >= 40);
}

namespace {

/// The scalar reference of the exchanges and digests at given places: one element after the other, byte for byte.
struct Reference {
  std::vector<std::byte> memory;
  std::vector<std::byte> values;
  std::uint64_t before = 0; ///< digest of what memory held
  std::uint64_t after = 0;  ///< and of what it holds

  void swap(std::size_t at, std::size_t i, std::uint64_t slot, std::size_t size) {
    before += kernels::mix(slot, bits_at(memory.data() + at, size));
    for (std::size_t byte = 0; byte < size; ++byte)
      std::swap(memory[at + byte], values[i * size + byte]);
    after += kernels::mix(slot, bits_at(memory.data() + at, size));
  }
};

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

} // namespace

TEST_CASE(
  "an exchange at positions swaps exactly those elements and digests what was there, at every length up to 513") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(7);
  constexpr std::ptrdiff_t strides[] = {1, 1, 2, 7, -1, -3};
  constexpr double densities[] = {0.01, 0.1, 0.5, 0.9, 1.0};
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t count = 0; count <= 513; ++count) {
      const std::ptrdiff_t stride = strides[random() % std::size(strides)];
      const double density = densities[random() % std::size(densities)];
      const std::ptrdiff_t origin = static_cast<std::ptrdiff_t>(random() % 700) - 350;
      const auto slot_stride = static_cast<std::ptrdiff_t>(random() % 5000) - 1000;
      const std::uint64_t slot_first = random() >> (random() % 40 + 8);
      CAPTURE(test::seed(), size, count, stride, density, origin, slot_stride, slot_first);
      std::vector<std::uint16_t> positions;
      std::bernoulli_distribution taken(density);
      const auto first = static_cast<std::uint16_t>(std::max<std::ptrdiff_t>(origin, 0));
      for (std::uint16_t p = first; positions.size() < count && p < 60000; ++p)
        if (taken(random))
          positions.push_back(p);
      // Exactly the bytes that are reached, behind an odd shift: a sanitizer sees any other.
      const std::size_t shift = random() % 8;
      const std::ptrdiff_t reach = positions.empty() ? 0 : positions.back() - origin;
      const auto bytes = static_cast<std::size_t>((reach * std::abs(stride) + 1) * static_cast<std::ptrdiff_t>(size));
      const std::size_t begin = shift + (stride < 0 ? bytes - size : 0);
      Reference reference{random_bytes(random, shift + bytes), random_bytes(random, positions.size() * size)};
      auto memory = reference.memory;
      auto values = random_bytes(random, 3 + reference.values.size());
      std::copy(reference.values.begin(), reference.values.end(), values.begin() + 3);
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::ptrdiff_t at = positions[i] - origin;
        reference.swap(static_cast<std::size_t>(static_cast<std::ptrdiff_t>(begin) +
                                                at * stride * static_cast<std::ptrdiff_t>(size)),
                       i, slot_first + static_cast<std::uint64_t>(at * slot_stride), size);
      }
      const auto digest = [&] {
        return kernels::digest_at(memory.data() + begin, {stride, origin}, slot_first, {slot_stride, origin}, positions,
                                  size);
      };
      REQUIRE(digest() == reference.before);
      REQUIRE(kernels::exchange_and_digest(memory.data() + begin, {stride, origin}, slot_first, {slot_stride, origin},
                                           positions, size, values.data() + 3) == reference.before);
      REQUIRE(memory == reference.memory);
      REQUIRE(std::equal(values.begin() + 3, values.end(), reference.values.begin(), reference.values.end()));
      REQUIRE(digest() == reference.after);
    }
}

TEST_CASE("an exchange at listed places swaps exactly those elements and digests what was there, at every length up to "
          "513") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(8);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t count = 0; count <= 513; ++count) {
      const std::uint32_t gap = 1 + static_cast<std::uint32_t>(random() % 90);
      const bool ascending = random() % 2 != 0;
      CAPTURE(test::seed(), size, count, gap, ascending);
      std::vector<std::uint32_t> addresses;
      std::vector<std::uint32_t> slots;
      std::uint32_t next = 0;
      for (std::size_t i = 0; i < count; ++i) {
        next += static_cast<std::uint32_t>(random() % gap);
        addresses.push_back(next++);
        slots.push_back(static_cast<std::uint32_t>(random()));
      }
      if (!ascending)
        std::shuffle(addresses.begin(), addresses.end(), random);
      const std::uint64_t slot_first = random() >> 8;
      const std::size_t shift = random() % 8;
      Reference reference{random_bytes(random, shift + next * size), random_bytes(random, count * size)};
      auto memory = reference.memory;
      auto values = reference.values;
      for (std::size_t i = 0; i < count; ++i)
        reference.swap(shift + addresses[i] * size, i, slot_first + slots[i], size);
      const kernels::ListedPlaces places{addresses, slots, slot_first};
      REQUIRE(kernels::digest_at(memory.data() + shift, places, size) == reference.before);
      REQUIRE(kernels::exchange_and_digest(memory.data() + shift, places, size, values.data()) == reference.before);
      REQUIRE(memory == reference.memory);
      REQUIRE(values == reference.values);
      REQUIRE(kernels::digest_at(memory.data() + shift, places, size) == reference.after);
      kernels::exchange(memory.data() + shift, addresses, size, values.data()); // and back
      REQUIRE(kernels::digest_at(memory.data() + shift, places, size) == reference.before);
    }
}
