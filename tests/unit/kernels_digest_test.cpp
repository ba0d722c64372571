// Contract of kernels/digest.hpp: sums of mix() over elements, whatever the memory's order and alignment.
#include "catch.hpp"
#include "instruction_set.hpp"
#include "random.hpp"

#include "kernels/digest.hpp"

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
      }
}
