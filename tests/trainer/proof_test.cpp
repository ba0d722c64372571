// The statistics and comparisons that the trainer's proof rests on, against counting by brute force.
#include "catch.hpp"
#include "proof.hpp"
#include "random.hpp"
#include "record.hpp"

#include <bit>
#include <cmath>
#include <random>

using namespace trainer;

namespace {

/// Pairs in which the later number is larger, ties counting half, doubled: Mann and Whitney's own statistic.
int twice_wins(const std::vector<double>& earlier, const std::vector<double>& later) {
  int wins = 0;
  for (const double a : earlier)
    for (const double b : later)
      wins += b > a ? 2 : b == a ? 1 : 0;
  return wins;
}

double p_by_counting(const std::vector<double>& earlier, const std::vector<double>& later) {
  std::vector<double> all = earlier;
  all.insert(all.end(), later.begin(), later.end());
  const int observed = twice_wins(earlier, later);
  int divisions = 0;
  int as_large = 0;
  for (unsigned chosen = 0; chosen < 1U << all.size(); ++chosen) {
    if (std::popcount(chosen) != static_cast<int>(later.size()))
      continue;
    std::vector<double> a;
    std::vector<double> b;
    for (std::size_t i = 0; i < all.size(); ++i)
      ((chosen >> i & 1U) != 0 ? b : a).push_back(all[i]);
    ++divisions;
    as_large += twice_wins(a, b) >= observed ? 1 : 0;
  }
  return static_cast<double>(as_large) / divisions;
}

std::vector<UpdateRecord> records_with_rewards(const std::vector<double>& rewards) {
  std::vector<UpdateRecord> records;
  for (const double reward : rewards)
    records.push_back({.update = records.size(), .reward = reward, .elements = 10});
  return records;
}

} // namespace

TEST_CASE("the Mann-Whitney probability is what counting all divisions gives, ties included") {
  CAPTURE(deltawire::test::seed());
  auto random = deltawire::test::generator(20);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> earlier(1 + random() % 6);
    std::vector<double> later(1 + random() % 6);
    const std::uint64_t values = 2 + random() % 10; // few: many ties
    for (auto* group : {&earlier, &later})
      for (double& value : *group)
        value = static_cast<double>(random() % values) / 8;
    CAPTURE(round, earlier, later);
    CHECK(std::abs(mann_whitney_p(earlier, later) - p_by_counting(earlier, later)) < 1e-12);
  }
}

TEST_CASE("rewards that rise are told from rewards that do not, and the seed's is left out") {
  auto random = deltawire::test::generator(21);
  std::vector<double> rising{1.0}; // the seed: would spoil the first group
  std::vector<double> level{0.0};
  for (int update = 0; update < 100; ++update) {
    const double noise = std::uniform_real_distribution(0.0, 0.1)(random);
    rising.push_back(0.5 + 0.002 * update + noise);
    level.push_back(0.5 + noise);
  }
  CHECK(reward_rises_p(records_with_rewards(rising)) < significance);
  CHECK(reward_rises_p(records_with_rewards(level)) > 0.01);
  CHECK_THROWS(reward_rises_p(records_with_rewards(std::vector<double>(40))));
}

TEST_CASE("two runs differ when any number of any update does, and not by what the delivery cost") {
  std::vector<UpdateRecord> a = records_with_rewards({0.25, 0.5, 0.75});
  std::vector<UpdateRecord> b = a;
  CHECK(difference(a, b).empty());
  b[1].delivery = {.changed = 7, .wire_bytes = 99, .committed_s = 1, .pause_s = 1};
  CHECK(difference(a, b).empty());

  using Change = void (*)(UpdateRecord&);
  const Change changes[] = {
    [](UpdateRecord& r) { r.update = 9; },
    [](UpdateRecord& r) { r.reward = std::nextafter(r.reward, 1.0); },
    [](UpdateRecord& r) { r.loss = -0.0; },
    [](UpdateRecord& r) { r.largest_gap = 1e-300; },
    [](UpdateRecord& r) { r.rollouts ^= 1; },
    [](UpdateRecord& r) { r.weights ^= 1; },
    [](UpdateRecord& r) { r.worker_weights[1] ^= 1; },
    [](UpdateRecord& r) { r.changed = 1; },
    [](UpdateRecord& r) { r.elements = 11; },
  };
  for (const Change change : changes) {
    b = a;
    change(b[2]);
    CHECK(difference(a, b).find("update 2: ") == 0);
  }
  b = a;
  b.pop_back();
  CHECK_FALSE(difference(a, b).empty());
}
