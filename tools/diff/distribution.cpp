#include "distribution.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace deltawire::diff {

namespace {

/// Bits of `count` occurrences among `total`.
double shannon_bits(std::uint64_t count, std::uint64_t total) {
  return static_cast<double>(count) * std::log2(static_cast<double>(total) / static_cast<double>(count));
}

/// How many of `total` are `percent` in a hundred, rounded up.
std::uint64_t rank_of(std::uint64_t total, std::uint64_t percent) {
  return total / 100 * percent + (total % 100 * percent + 99) / 100;
}

} // namespace

void SymbolCounts::add_all(const SymbolCounts& other) {
  for (const std::uint32_t symbol : other.seen_)
    add(symbol, other.counts_[symbol]);
}

void SymbolCounts::clear() {
  for (const std::uint32_t symbol : seen_)
    counts_[symbol] = 0;
  seen_.clear();
}

double SymbolCounts::bits(std::uint64_t total) const {
  double sum = 0;
  for (const std::uint32_t symbol : seen_)
    sum += shannon_bits(counts_[symbol], total);
  return sum;
}

void GapDistribution::add_all(const GapDistribution& other) {
  total_ += other.total_;
  counts_.add_all(other.counts_);
  far_.insert(far_.end(), other.far_.begin(), other.far_.end());
}

void GapDistribution::clear() {
  total_ = 0;
  counts_.clear();
  far_.clear();
}

GapFigures GapDistribution::figures() const {
  std::vector<std::uint64_t> far = far_;
  std::sort(far.begin(), far.end());
  std::vector<std::uint32_t> near_gaps = counts_.seen();
  std::sort(near_gaps.begin(), near_gaps.end());

  const auto quantile = [&](std::uint64_t percent) {
    const std::uint64_t rank = rank_of(total_, percent); // from 1
    std::uint64_t below = 0;
    for (const std::uint32_t gap : near_gaps) {
      below += counts_.count(gap);
      if (below >= rank)
        return std::uint64_t{gap};
    }
    return far[static_cast<std::size_t>(rank - below - 1)];
  };
  std::uint64_t in_u8 = 0;
  for (const std::uint32_t gap : near_gaps)
    in_u8 += gap < 255 ? counts_.count(gap) : 0;
  double bits = counts_.bits(total_);
  for (std::size_t begin = 0; begin < far.size();) {
    std::size_t end = begin;
    while (end < far.size() && far[end] == far[begin])
      ++end;
    bits += shannon_bits(end - begin, total_);
    begin = end;
  }
  const auto total = static_cast<double>(total_);
  return {.median = quantile(50),
          .p90 = quantile(90),
          .p99 = quantile(99),
          .largest = far.empty() ? near_gaps.back() : far.back(),
          .u8_share = static_cast<double>(in_u8) / total,
          .entropy_bytes = bits / 8 / total};
}

void DifferenceDistribution::add_far(Difference difference) {
  const auto length = static_cast<std::size_t>(std::bit_width(difference.steps));
  counts_.add(2 * (near + length) + (difference.down ? 1 : 0));
  plain_bits_ += length - 1;
}

void DifferenceDistribution::add_all(const DifferenceDistribution& other) {
  total_ += other.total_;
  plain_bits_ += other.plain_bits_;
  counts_.add_all(other.counts_);
}

void DifferenceDistribution::clear() {
  total_ = 0;
  plain_bits_ = 0;
  counts_.clear();
}

DifferenceFigures DifferenceDistribution::figures() const {
  const auto total = static_cast<double>(total_);
  return {.one_share = static_cast<double>(counts_.count(2) + counts_.count(3)) / total,
          .entropy_bytes = (counts_.bits(total_) + static_cast<double>(plain_bits_)) / 8 / total};
}

} // namespace deltawire::diff
