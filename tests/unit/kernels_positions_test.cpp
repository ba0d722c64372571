// Contract of kernels/positions.hpp: every code is what its description says, bit by bit, reads back as the positions
// it was made from, and arbitrary bits never as anything outside the span.
#include "catch.hpp"
#include "random.hpp"

#include "kernels/positions.hpp"

#include <algorithm>
#include <vector>

namespace {

using namespace deltawire;
using Positions = std::vector<std::uint16_t>;
using Bits = std::vector<bool>;

Positions random_positions(std::mt19937_64& random, double density, std::size_t span) {
  std::bernoulli_distribution taken(density);
  Positions positions;
  for (std::size_t i = 0; i < span; ++i)
    if (taken(random))
      positions.push_back(static_cast<std::uint16_t>(i));
  if (positions.empty())
    positions.push_back(static_cast<std::uint16_t>(random() % span));
  return positions;
}

Positions gaps_of(const Positions& positions) {
  Positions gaps;
  unsigned next = 0;
  for (const unsigned position : positions) {
    gaps.push_back(static_cast<std::uint16_t>(position - next));
    next = position + 1;
  }
  return gaps;
}

/// The Rice code from its description.
Bits reference_rice(const Positions& gaps, unsigned parameter) {
  Bits bits;
  for (const unsigned gap : gaps) {
    bits.insert(bits.end(), gap >> parameter, false);
    bits.push_back(true);
  }
  for (const unsigned gap : gaps)
    for (unsigned bit = 0; bit < parameter; ++bit)
      bits.push_back((gap >> bit & 1) != 0);
  return bits;
}

Bits bits_of(const std::vector<std::byte>& bytes, std::size_t first, std::size_t count) {
  Bits bits;
  for (std::size_t i = first; i < first + count; ++i)
    bits.push_back((std::to_integer<unsigned>(bytes[i / 8]) >> (i % 8) & 1) != 0);
  return bits;
}

void strictly_increasing_below(const Positions& positions, std::size_t span) {
  for (std::size_t i = 1; i < positions.size(); ++i)
    REQUIRE(positions[i - 1] < positions[i]);
  REQUIRE(positions.back() < span);
}

constexpr double densities[] = {0.0003, 0.003, 0.02, 0.1, 0.5, 0.9, 0.999, 1.0};

} // namespace

TEST_CASE("bits of any width come back from wherever they were put") {
  auto random = test::generator(50);
  for (int repeat = 0; repeat < 300; ++repeat) {
    CAPTURE(test::seed(), repeat);
    std::vector<std::pair<std::uint64_t, unsigned>> parts(1 + random() % 200);
    std::size_t total = 0;
    for (auto& [bits, count] : parts) {
      count = static_cast<unsigned>(random() % (repeat % 2 ? 57 : 5));
      bits = random() & ((std::uint64_t{1} << count) - 1);
      total += count;
    }
    std::vector<std::byte> bytes((total + 7) / 8 + 8);
    kernels::BitWriter writer(bytes.data());
    for (const auto& [bits, count] : parts)
      writer.put(bits, count);
    REQUIRE(writer.align() == bytes.data() + (total + 7) / 8);
    bytes.resize((total + 7) / 8);
    bytes.shrink_to_fit();
    kernels::BitReader reader(bytes);
    for (std::size_t i = 0; i + 1 < total; i += 1 + random() % 60) {
      const std::size_t length = std::min<std::size_t>(64, 8 * bytes.size() - i);
      std::uint64_t word = 0;
      for (std::size_t bit = 0; bit < length; ++bit)
        word |= std::uint64_t{bits_of(bytes, i + bit, 1)[0]} << bit;
      REQUIRE(reader.peek_word(i) == word);
    }
    for (const auto& [bits, count] : parts)
      REQUIRE(reader.take(count) == bits);
    REQUIRE(reader.align());
    REQUIRE(reader.left() == 0);
  }
}

TEST_CASE("Rice codes are their description's, bit by bit, and read back with every parameter") {
  auto random = test::generator(51);
  for (const double density : densities)
    for (int repeat = 0; repeat < 30; ++repeat) {
      const std::size_t span = repeat % 2 ? 4096 : 1 + random() % 4096;
      const Positions positions = random_positions(random, density, span);
      const Positions gaps = gaps_of(positions);
      Positions found(gaps.size());
      kernels::to_gaps(positions, 0, found.data());
      REQUIRE(found == gaps);
      std::size_t smallest = ~std::size_t{0};
      for (unsigned parameter = 0; parameter <= kernels::most_rice_parameter; ++parameter) {
        CAPTURE(test::seed(), density, span, positions.size(), parameter);
        const Bits expected = reference_rice(gaps, parameter);
        smallest = std::min(smallest, expected.size());
        const auto lead = static_cast<unsigned>(random() % 8);
        std::vector<std::byte> bytes((lead + expected.size() + 7) / 8 + 8);
        kernels::BitWriter writer(bytes.data());
        writer.put(0, lead);
        kernels::encode_rice(gaps, parameter, writer);
        writer.put(random() % 2, 1);
        bytes.resize((lead + expected.size() + 8) / 8);
        bytes.shrink_to_fit();
        REQUIRE(bits_of(bytes, lead, expected.size()) == expected);
        kernels::BitReader reader(bytes);
        reader.skip(lead);
        Positions decoded(positions.size());
        REQUIRE(kernels::decode_rice(reader, parameter, positions.size(), span, decoded.data()));
        REQUIRE(decoded == positions);
        REQUIRE(reader.position() == lead + expected.size());
      }
      const kernels::RiceSize best = kernels::best_rice(gaps, 0, 0);
      REQUIRE(best.bits == reference_rice(gaps, best.parameter).size());
      REQUIRE(static_cast<double>(best.bits) <= static_cast<double>(smallest) * 1.03 + 2);
      // Where others than one parameter take more bits to state.
      for (int far = 0; far < 2; ++far) {
        const auto expected = static_cast<unsigned>(random() % 12);
        const auto more = static_cast<unsigned>(random() % 20);
        const kernels::RiceSize stated = kernels::best_rice(gaps, expected, more);
        REQUIRE(stated.bits ==
                reference_rice(gaps, stated.parameter).size() + (stated.parameter == expected ? 0 : more));
        REQUIRE(stated.bits <= best.bits + (best.parameter == expected ? 0 : more));
      }
      const auto is_kept = [&](unsigned expected) {
        return kernels::best_rice(gaps, expected, 1 << 20).parameter == expected;
      };
      REQUIRE(is_kept(best.parameter));
      REQUIRE((is_kept(best.parameter + 1) || (best.parameter > 0 && is_kept(best.parameter - 1))));
    }
}

TEST_CASE("runs and u16 gaps read back, and sizes are known beforehand") {
  auto random = test::generator(52);
  for (const double density : densities)
    for (int repeat = 0; repeat < 40; ++repeat) {
      const std::size_t span = repeat % 2 ? 4096 : 1 + random() % 4096;
      const Positions positions = random_positions(random, density, span);
      const Positions gaps = gaps_of(positions);
      CAPTURE(test::seed(), density, span, positions.size());
      std::size_t runs = 0;
      std::size_t u8 = 0;
      for (std::size_t i = 0; i < gaps.size(); ++i) {
        runs += i == 0 || gaps[i] != 0;
        u8 += 1 + gaps[i] / 255;
      }
      REQUIRE(kernels::gap_sizes(gaps).runs == runs);
      REQUIRE(kernels::gap_sizes(gaps).u8 == u8);

      std::vector<std::byte> codes(kernels::run_bytes(gaps));
      REQUIRE(codes.size() >= 2 * runs);
      REQUIRE(codes.size() <= 4 * runs);
      REQUIRE(kernels::encode_runs(gaps, codes.data()) == codes.size());
      Positions decoded(positions.size());
      REQUIRE(kernels::decode_runs(codes, positions.size(), span, decoded.data()) == codes.size());
      REQUIRE(decoded == positions);
      REQUIRE(kernels::decode_runs(codes, positions.size(), positions.back(), decoded.data()) == 0);

      REQUIRE(kernels::decode_wide_gaps(std::as_bytes(std::span(gaps)).data(), positions.size(), span, decoded.data()));
      REQUIRE(decoded == positions);
      REQUIRE_FALSE(kernels::decode_wide_gaps(std::as_bytes(std::span(gaps)).data(), positions.size(), positions.back(),
                                              decoded.data()));
    }
}

TEST_CASE("arbitrary bits never decode to a position outside the span or more than declared") {
  auto random = test::generator(53);
  std::size_t accepted = 0;
  for (int repeat = 0; repeat < 40000; ++repeat) {
    CAPTURE(test::seed(), repeat);
    std::vector<std::byte> bytes(random() % 60);
    for (std::byte& byte : bytes)
      byte = random() % 3 == 0 ? std::byte{0} : static_cast<std::byte>(random());
    const std::size_t count = 1 + random() % (repeat % 2 ? 5 : 60);
    const std::size_t span = 1 + random() % 4096;
    Positions positions(count); // exactly: a sanitizer sees a write past it
    bool valid = false;
    switch (random() % 3) {
    case 0: {
      kernels::BitReader reader(bytes);
      reader.skip(std::min(reader.left(), random() % 8));
      valid = kernels::decode_rice(reader, static_cast<unsigned>(random() % 12), count, span, positions.data());
      REQUIRE(reader.position() <= 8 * bytes.size());
      break;
    }
    case 1: {
      const std::size_t taken = kernels::decode_runs(bytes, count, span, positions.data());
      REQUIRE(taken <= bytes.size());
      valid = taken != 0;
      break;
    }
    default:
      valid = 2 * count <= bytes.size() && kernels::decode_wide_gaps(bytes.data(), count, span, positions.data());
    }
    if (!valid)
      continue;
    ++accepted;
    strictly_increasing_below(positions, span);
  }
  REQUIRE(accepted > 1000);
}
