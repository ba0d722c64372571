#include "proof.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace trainer {

double mann_whitney_p(std::span<const double> earlier, std::span<const double> later) {
  std::vector<double> all(earlier.begin(), earlier.end());
  all.insert(all.end(), later.begin(), later.end());
  // Twice the rank, so that those of ties, which share theirs, are whole numbers.
  const auto twice_rank = [&](double value) {
    std::size_t rank = 1;
    for (const double other : all)
      rank += (other < value ? 2U : 0U) + (other == value ? 1U : 0U);
    return rank;
  };
  std::size_t observed = 0;
  for (const double value : later)
    observed += twice_rank(value);
  // ways[n][s]: to choose n of the numbers with ranks that sum to s
  const std::size_t most = 2 * all.size() * all.size();
  std::vector ways(later.size() + 1, std::vector<double>(most + 1));
  ways[0][0] = 1;
  for (const double value : all) {
    const std::size_t rank = twice_rank(value);
    for (std::size_t n = later.size(); n >= 1; --n)
      for (std::size_t s = most; s >= rank; --s)
        ways[n][s] += ways[n - 1][s - rank];
  }
  double as_large = 0;
  double any = 0;
  for (std::size_t s = 0; s <= most; ++s) {
    any += ways.back()[s];
    as_large += s >= observed ? ways.back()[s] : 0;
  }
  return as_large / any;
}

double reward_rises_p(const std::vector<UpdateRecord>& records) {
  if (records.size() < 1 + 2 * compared_updates)
    throw std::runtime_error(fmt::format("a test of rewards needs {} updates", 2 * compared_updates));
  std::vector<double> rewards;
  for (const UpdateRecord& record : records)
    rewards.push_back(record.reward);
  const std::span all = std::span<const double>(rewards).subspan(1);
  return mann_whitney_p(all.first(compared_updates), all.last(compared_updates));
}

} // namespace trainer
