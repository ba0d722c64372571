// The plan command's own arithmetic. The command as a whole: tests/process.

#include "catch.hpp"
#include "delta/position_log.hpp"
#include "plan/coverage.hpp"
#include "plan/memory.hpp"
#include "random.hpp"

#include <algorithm>
#include <numeric>

using namespace deltawire;
using namespace deltawire::test;

TEST_CASE("the bound of a position log is what a log takes in which every element changed") {
  INFO("seed " << seed());
  std::mt19937_64 random = generator(71);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t first = random() % 20000;
    const std::uint64_t count = 1 + random() % (round % 2 == 0 ? 20000 : 400);
    CAPTURE(first, count);
    delta::PositionLog all, some;
    for (std::uint64_t at = first; at < first + count;) {
      const std::uint64_t end = std::min(first + count, (at / 4096 + 1) * 4096);
      std::vector<std::uint16_t> positions(end - at);
      std::iota(positions.begin(), positions.end(), std::uint16_t{0});
      all.add_tile(at, positions);
      std::erase_if(positions, [&](std::uint16_t) { return random() % 3 == 0; });
      if (!positions.empty())
        some.add_tile(at, positions);
      at = end;
    }
    CHECK(plan::position_log_bytes(first, count) == all.bytes());
    CHECK(some.bytes() <= plan::position_log_bytes(first, count));
  }
  CHECK(plan::position_log_bytes(0, 0) == 0);
  // Closed form: a slot of 2^40 elements takes no longer than one of ten.
  CHECK(plan::position_log_bytes(0, std::uint64_t{1} << 40) == (std::uint64_t{1} << 28) * 520);
}

TEST_CASE("sums of caps stop at unlimited") {
  using config::unlimited;
  CHECK(plan::add_caps(3, 4) == 7);
  CHECK(plan::add_caps(unlimited, 0) == unlimited);
  CHECK(plan::add_caps(unlimited, 1) == unlimited);
  CHECK(plan::add_caps(1, unlimited) == unlimited);
  CHECK(plan::add_caps(unlimited - 1, 5) == unlimited);
  CHECK(plan::multiply_cap(3, 4) == 12);
  CHECK(plan::multiply_cap(unlimited, 0) == 0);
  CHECK(plan::multiply_cap(unlimited, 2) == unlimited);
  CHECK(plan::multiply_cap(unlimited / 2 + 1, 2) == unlimited);
}

TEST_CASE("caps are written without zeros that say nothing") {
  CHECK(plan::cap_text(64ull << 20) == "64MiB");
  CHECK(plan::cap_text(1ull << 30) == "1GiB");
  CHECK(plan::cap_text(7) == "7B");
  CHECK(plan::cap_text(1500) == "1.46KiB");
  CHECK(plan::cap_text(10ull << 20) == "10MiB");
  CHECK(plan::cap_text(100ull << 20) == "100MiB");
  CHECK(plan::cap_text(config::unlimited) == "unlimited");
}
