// Sums by cell over cells that are known beforehand: what many captures of chunks do to digests. Adding costs a search
// and no allocation; cells that nobody adds to cost nothing. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace deltawire::sync {

class CellSums {
public:
  CellSums() = default;
  /// `cells`: in any order, with repeats.
  explicit CellSums(std::vector<std::uint32_t> cells);

  /// Requires one of the cells.
  void add(std::uint32_t cell, std::uint64_t change);

  /// Requires one of the cells; 0 where nothing was added.
  [[nodiscard]] std::uint64_t at(std::uint32_t cell) const;

  /// `out` becomes (cell, sum), ascending, of the cells that were added to since clear(), those with a sum of 0 too.
  void list(std::vector<std::pair<std::uint32_t, std::uint64_t>>& out);

  /// All sums are 0.
  void clear() noexcept;

private:
  [[nodiscard]] std::size_t index(std::uint32_t cell) const;

  std::vector<std::uint32_t> cells_; ///< ascending
  std::vector<std::uint64_t> sums_;
  std::vector<bool> listed_;           ///< in touched_
  std::vector<std::uint32_t> touched_; ///< indices; has room for all
};

} // namespace deltawire::sync
