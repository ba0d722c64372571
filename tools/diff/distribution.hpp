// How the gaps and the differences of changed elements are distributed: counted while they come, in memory that does
// not grow with their number, and added up over tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltawire::diff {

/// How often each of a fixed range of symbols occurred. Clearing and adding up cost what occurred, not the range.
class SymbolCounts {
public:
  explicit SymbolCounts(std::size_t symbols) : counts_(symbols) {}

  /// Requires symbol < symbols.
  void add(std::size_t symbol) { add(symbol, 1); }
  void add_all(const SymbolCounts& other);
  void clear();

  [[nodiscard]] std::uint64_t count(std::size_t symbol) const noexcept { return counts_[symbol]; }
  /// Symbols that occurred, each once, in any order.
  [[nodiscard]] const std::vector<std::uint32_t>& seen() const noexcept { return seen_; }
  /// Bits of all occurrences together, coded independently by their frequency among `total` (Shannon).
  [[nodiscard]] double bits(std::uint64_t total) const;

private:
  void add(std::size_t symbol, std::uint64_t times) {
    if (counts_[symbol] == 0)
      seen_.push_back(static_cast<std::uint32_t>(symbol));
    counts_[symbol] += times;
  }

  std::vector<std::uint64_t> counts_;
  std::vector<std::uint32_t> seen_;
};

/// What is told of gaps. Quantiles are the smallest gap that at least so many in a hundred do not exceed.
struct GapFigures {
  std::uint64_t median = 0;
  std::uint64_t p90 = 0;
  std::uint64_t p99 = 0;
  std::uint64_t largest = 0;
  double u8_share = 0;      ///< of gaps below 255, which take one byte (255 is the escape)
  double entropy_bytes = 0; ///< a gap, coded by frequency
};

/// Gaps: the unchanged elements between a changed element and the one before it in its tensor (or the tensor's start),
/// row-major. All figures are exact.
class GapDistribution {
public:
  void add(std::uint64_t gap) {
    ++total_;
    if (gap < near)
      counts_.add(static_cast<std::size_t>(gap));
    else
      far_.push_back(gap); // at most one for every `near` elements
  }
  void add_all(const GapDistribution& other);
  void clear();

  /// Requires at least one gap.
  [[nodiscard]] GapFigures figures() const;

private:
  static constexpr std::uint64_t near = 4096;

  std::uint64_t total_ = 0;
  SymbolCounts counts_{near};
  std::vector<std::uint64_t> far_;
};

/// How far an element moved: steps in the order of its dtype's bit patterns, and the direction.
struct Difference {
  std::uint64_t steps = 0;
  bool down = false;
};

struct DifferenceFigures {
  double one_share = 0;     ///< of differences of +1 or -1
  double entropy_bytes = 0; ///< a difference, coded by frequency; see DifferenceDistribution
};

/// Differences. Those of 65536 steps or more, which only elements of 4 and 8 bytes can have, are coded by the frequency
/// of their direction and bit length, and the bits below the top one as they are: so memory has a bound, and the
/// entropy is that of a code that exists.
class DifferenceDistribution {
public:
  void add(Difference difference) {
    ++total_;
    if (difference.steps < near)
      counts_.add(2 * static_cast<std::size_t>(difference.steps) + (difference.down ? 1 : 0));
    else
      add_far(difference);
  }
  void add_all(const DifferenceDistribution& other);
  void clear();

  /// Requires at least one difference.
  [[nodiscard]] DifferenceFigures figures() const;

private:
  void add_far(Difference difference);

  static constexpr std::uint64_t near = 65536;
  static constexpr std::size_t lengths = 64 + 1; ///< bit lengths of 64-bit numbers

  std::uint64_t total_ = 0;
  std::uint64_t plain_bits_ = 0;
  SymbolCounts counts_{2 * (near + lengths)};
};

} // namespace deltawire::diff
