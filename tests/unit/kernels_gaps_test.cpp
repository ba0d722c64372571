// Contract of kernels/gaps.hpp: codes of any positions read back as they were, and arbitrary codes never as anything
// outside the span.
#include "catch.hpp"
#include "random.hpp"

#include "kernels/gaps.hpp"

#include <algorithm>
#include <vector>

namespace {

using namespace deltawire;

std::vector<std::byte> codes_of(std::initializer_list<int> values) {
  std::vector<std::byte> codes;
  for (const int value : values)
    codes.push_back(static_cast<std::byte>(value));
  return codes;
}

/// The codec once more, from its description: counts elements one by one.
std::vector<std::byte> reference_codes(const std::vector<std::uint16_t>& positions, std::uint16_t origin) {
  std::vector<std::byte> codes;
  unsigned gap = 0;
  for (unsigned element = origin, next = 0; next < positions.size(); ++element) {
    if (element == positions[next]) {
      codes.push_back(static_cast<std::byte>(gap));
      gap = 0;
      ++next;
    } else if (++gap == 255) {
      codes.push_back(std::byte{255});
      gap = 0;
    }
  }
  return codes;
}

bool decodes(const std::vector<std::byte>& codes, std::size_t count, std::size_t span) {
  std::vector<std::uint16_t> positions(count);
  return kernels::decode_gaps(codes, count, span, positions.data()) == codes.size();
}

} // namespace

TEST_CASE("gap codes read back as the positions they were made from") {
  auto random = test::generator(7);
  for (const double density : {0.0005, 0.002, 0.004, 0.01, 0.1, 0.5, 1.0})
    for (int repeat = 0; repeat < 60; ++repeat) {
      const std::size_t span = repeat % 2 ? 4096 : 1 + random() % 4096;
      const auto origin = static_cast<std::uint16_t>(random() % span);
      CAPTURE(test::seed(), density, span, origin);
      std::bernoulli_distribution taken(density);
      std::vector<std::uint16_t> positions;
      for (std::size_t i = origin; i < span; ++i)
        if (taken(random))
          positions.push_back(static_cast<std::uint16_t>(i));
      std::vector<std::byte> codes(span - origin);
      codes.resize(kernels::encode_gaps(positions, origin, codes.data()));
      REQUIRE(codes == reference_codes(positions, origin));
      if (positions.empty())
        continue;
      const std::size_t bytes = codes.size();
      codes.resize(bytes + random() % 3, std::byte{7}); // what follows is not looked at
      std::vector<std::uint16_t> decoded(positions.size());
      REQUIRE(kernels::decode_gaps(codes, positions.size(), span - origin, decoded.data()) == bytes);
      for (std::uint16_t& position : decoded)
        position = static_cast<std::uint16_t>(position + origin);
      REQUIRE(decoded == positions);
    }
}

TEST_CASE("a gap of 255 and its neighbours take the escapes they need") {
  for (const std::uint16_t position : {0, 254, 255, 256, 509, 510, 511, 4095}) {
    const std::vector<std::uint16_t> positions = {position};
    std::vector<std::byte> codes(4096);
    codes.resize(kernels::encode_gaps(positions, 0, codes.data()));
    REQUIRE(codes.size() == 1 + position / 255u);
    REQUIRE(codes.size() == 1 + kernels::gap_escapes(position));
    REQUIRE(std::to_integer<unsigned>(codes.back()) == position % 255u);
  }
}

TEST_CASE("codes that are not exactly the positions declared are refused") {
  REQUIRE(kernels::decode_gaps({}, 1, 10, nullptr) == 0);
  REQUIRE(decodes(codes_of({9}), 1, 10));
  SECTION("a position past the span") {
    REQUIRE_FALSE(decodes(codes_of({10}), 1, 10));
  }
  SECTION("a second position past the span") {
    REQUIRE_FALSE(decodes(codes_of({9, 0}), 2, 10));
  }
  SECTION("fewer positions than declared") {
    REQUIRE_FALSE(decodes(codes_of({1}), 2, 10));
  }
  SECTION("more positions than declared") {
    REQUIRE_FALSE(decodes(codes_of({1, 1}), 1, 10));
  }
  SECTION("an escape that nothing follows") {
    REQUIRE_FALSE(decodes(codes_of({1, 255}), 1, 4096));
  }
  SECTION("an escape past the span") {
    REQUIRE_FALSE(decodes(codes_of({255, 0}), 1, 255));
  }
}

TEST_CASE("arbitrary codes never decode to a position outside the span or more than declared") {
  auto random = test::generator(8);
  for (int repeat = 0; repeat < 20000; ++repeat) {
    std::vector<std::byte> codes(random() % 40);
    for (std::byte& code : codes)
      code = random() % 4 == 0 ? std::byte{255} : static_cast<std::byte>(random() % (random() % 2 ? 256 : 4));
    const std::size_t count = 1 + random() % 40;
    const std::size_t span = 1 + random() % 4096;
    std::vector<std::uint16_t> positions(count); // exactly: a sanitizer sees a write past it
    const std::size_t bytes = kernels::decode_gaps(codes, count, span, positions.data());
    if (bytes == 0)
      continue;
    REQUIRE(bytes <= codes.size());
    codes.resize(bytes);
    REQUIRE(std::is_sorted(positions.begin(), positions.end()));
    REQUIRE(std::adjacent_find(positions.begin(), positions.end()) == positions.end());
    REQUIRE(positions.back() < span);
    REQUIRE(reference_codes(positions, 0) == codes);
  }
}
