// Contract of kernels/ulp.hpp: differences are those between ranks in the order of values, and adding them gives back
// every bit, whatever the pair.
#include "catch.hpp"
#include "instruction_set.hpp"
#include "random.hpp"

#include "kernels/ulp.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

namespace {

using namespace deltawire;
using kernels::UlpOrder;
using Bytes = std::vector<std::byte>;

std::uint64_t low_bits(std::size_t size) {
  return size == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size)) - 1;
}

/// The rank of a bit pattern, from its description.
std::uint64_t rank(std::uint64_t bits, std::size_t size, UlpOrder order) {
  if (order == UlpOrder::plain)
    return bits;
  const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
  const std::uint64_t magnitude = bits & ~sign;
  return (bits & sign) != 0 ? sign - 1 - magnitude : sign + magnitude;
}

void put(Bytes& bytes, std::uint64_t bits, std::size_t size) {
  const std::size_t at = bytes.size();
  bytes.resize(at + size);
  std::memcpy(bytes.data() + at, &bits, size);
}

/// Splits the differences of up to 4096 pairs, compares them with ranks, and adds those up again that it can.
void check(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& pairs, std::size_t size, UlpOrder order) {
  Bytes before;
  Bytes after;
  for (const auto& [old, now] : pairs) {
    put(before, old, size);
    put(after, now, size);
  }
  std::array<std::uint64_t, 64> signs{};
  std::array<std::uint16_t, 4096> exceptions{};
  std::array<std::uint16_t, 4096> magnitudes{};
  const std::size_t found = kernels::split_differences(before.data(), after.data(), pairs.size(), size, order,
                                                       signs.data(), exceptions.data(), magnitudes.data());
  if (pairs.size() % 64 != 0)
    REQUIRE(signs[pairs.size() / 64] >> (pairs.size() % 64) == 0);
  std::size_t next = 0;
  std::size_t wrong = 0;
  std::vector<bool> too_large(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint64_t mask = low_bits(size);
    const std::uint64_t difference = (rank(pairs[i].second, size, order) - rank(pairs[i].first, size, order)) & mask;
    const bool negative = difference >> (8 * size - 1) != 0;
    const std::uint64_t magnitude = negative ? (0 - difference) & mask : difference;
    wrong += ((signs[i / 64] >> (i % 64) & 1) != 0) != negative;
    if (magnitude == 1)
      continue;
    wrong += next == found || exceptions[next] != i || magnitudes[next] != std::min<std::uint64_t>(magnitude, 0xFFFF);
    too_large[i] = magnitude > kernels::most_small_difference;
    ++next;
  }
  REQUIRE(wrong == 0);
  REQUIRE(next == found);
  kernels::add_differences(before.data(), pairs.size(), size, order, signs.data(), std::span(exceptions).first(found),
                           magnitudes.data());
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (!too_large[i] && std::memcmp(before.data() + i * size, after.data() + i * size, size) != 0)
      FAIL("pair " << pairs[i].first << " -> " << pairs[i].second << " of " << size << " bytes came back otherwise");
}

constexpr UlpOrder orders[] = {UlpOrder::plain, UlpOrder::sign_magnitude};

} // namespace

TEST_CASE("every pair of one-byte patterns has a difference, and it adds up") {
  ON_EVERY_INSTRUCTION_SET();
  for (const UlpOrder order : orders) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
    for (unsigned old = 0; old < 256; ++old)
      for (unsigned now = 0; now < 256; ++now)
        if (old != now) {
          pairs.emplace_back(old, now);
          if (pairs.size() == 4001) {
            check(pairs, 1, order);
            pairs.clear();
          }
        }
    check(pairs, 1, order);
  }
}

TEST_CASE("every two-byte pattern and its neighbours, special values and random pairs add up at every width") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(54);
  for (const UlpOrder order : orders) {
    for (std::uint64_t first = 0; first < 65536; first += 4096) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
      for (std::uint64_t bits = first; bits < first + 4096; ++bits)
        pairs.emplace_back(bits, (bits + (random() % 2 ? 1 : 0xFFFF)) & 0xFFFF);
      check(pairs, 2, order);
    }
    for (const std::size_t size : {1u, 2u, 4u, 8u})
      for (int repeat = 0; repeat < 100; ++repeat) {
        CAPTURE(test::seed(), size, repeat);
        const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
        std::vector<std::uint64_t> special = {
          0,      1,      2,      sign - 1,   sign,       sign + 1,   sign + 2,           sign * 2 - 1,
          0x7F80, 0x7FC0, 0xFF80, 0x7F800000, 0x7FC00001, 0xFF800000, 0x7FF0000000000000, 0xFFF8000000000000};
        std::vector<std::pair<std::uint64_t, std::uint64_t>> pairs;
        const std::size_t count = 1 + random() % 4096;
        while (pairs.size() < count) {
          const std::uint64_t mask = low_bits(size);
          const std::uint64_t old = (random() % 2 ? random() : special[random() % special.size()]) & mask;
          const std::uint64_t near = old + random() % 600 - 300;
          const std::uint64_t now = (random() % 2   ? near
                                     : random() % 2 ? random()
                                                    : special[random() % special.size()]) &
                                    mask;
          if (old != now)
            pairs.emplace_back(old, now);
        }
        check(pairs, size, order);
      }
  }
}

TEST_CASE("neighbouring floating-point values differ by one, across zero and into infinity") {
  ON_EVERY_INSTRUCTION_SET();
  const auto step = [](float value) {
    const auto old = std::bit_cast<std::uint32_t>(value);
    const auto now = std::bit_cast<std::uint32_t>(std::nextafter(value, INFINITY));
    std::uint64_t sign = 0;
    std::uint16_t exception = 0;
    std::uint16_t magnitude = 0;
    Bytes before;
    Bytes after;
    put(before, old, 4);
    put(after, now, 4);
    const std::size_t exceptions = kernels::split_differences(before.data(), after.data(), 1, 4,
                                                              UlpOrder::sign_magnitude, &sign, &exception, &magnitude);
    REQUIRE(sign == 0);
    return exceptions == 0 ? 1 : magnitude;
  };
  for (const float value : {1.0f, 0.99999994f, -1.0f, -1.0000001f, 3.4028235e38f, -3.4e38f, 1e-45f, 1.1754942e-38f})
    REQUIRE(step(value) == 1);
  REQUIRE(step(0.0f) == 1);
  REQUIRE(step(-1e-45f) == 1); // to -0
  REQUIRE(step(-0.0f) == 2);   // to the least positive one, past +0
}
