// Contract: tools/bench/telemetry_bench.hpp, the confidence interval of a median.
#include "bench/telemetry_bench.hpp"

#include "catch.hpp"
#include "random.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace deltawire::bench {

TEST_CASE("the interval of a median leaves out as many values as tables of the sign test say") {
  // n, and the rank of the lower bound (1: the least) at 95 %.
  for (const auto& [count, rank] :
       {std::pair(1, 1), std::pair(2, 1), std::pair(5, 1), std::pair(6, 1), std::pair(8, 1), std::pair(9, 2),
        std::pair(10, 2), std::pair(15, 4), std::pair(20, 6), std::pair(21, 6), std::pair(30, 10), std::pair(50, 18)}) {
    CAPTURE(count);
    std::vector<double> values(static_cast<std::size_t>(count));
    std::iota(values.rbegin(), values.rend(), 1.0);
    const auto [low, high] = median_interval(values);
    CHECK(low == rank);
    CHECK(high == count + 1 - rank);
  }
}

TEST_CASE("the interval of a median holds it in 95 of 100 draws, or somewhat more") {
  CAPTURE(test::seed());
  auto random = test::generator(17);
  std::exponential_distribution<double> skewed;
  const double median = std::log(2.0);
  int held = 0;
  constexpr int draws = 4000;
  for (int draw = 0; draw < draws; ++draw) {
    std::vector<double> values(21);
    std::generate(values.begin(), values.end(), [&] { return skewed(random); });
    const auto [low, high] = median_interval(values);
    held += low <= median && median <= high ? 1 : 0;
  }
  CHECK(held > 0.95 * draws);
  CHECK(held < 0.99 * draws); // 97.3 % are expected: it is no wider than it must be
}

} // namespace deltawire::bench
