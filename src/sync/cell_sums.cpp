#include "sync/cell_sums.hpp"

#include <algorithm>
#include <cassert>

namespace deltawire::sync {

CellSums::CellSums(std::vector<std::uint32_t> cells) : cells_(std::move(cells)) {
  std::sort(cells_.begin(), cells_.end());
  cells_.erase(std::unique(cells_.begin(), cells_.end()), cells_.end());
  sums_.resize(cells_.size());
  listed_.resize(cells_.size());
  touched_.reserve(cells_.size());
}

std::size_t CellSums::index(std::uint32_t cell) const {
  const auto found = std::lower_bound(cells_.begin(), cells_.end(), cell);
  assert(found != cells_.end() && *found == cell);
  return static_cast<std::size_t>(found - cells_.begin());
}

void CellSums::add(std::uint32_t cell, std::uint64_t change) {
  const std::size_t at = index(cell);
  sums_[at] += change;
  if (listed_[at])
    return;
  listed_[at] = true;
  touched_.push_back(static_cast<std::uint32_t>(at));
}

std::uint64_t CellSums::at(std::uint32_t cell) const {
  return sums_[index(cell)];
}

void CellSums::list(std::vector<std::pair<std::uint32_t, std::uint64_t>>& out) {
  std::sort(touched_.begin(), touched_.end());
  out.clear();
  out.reserve(touched_.size());
  for (const std::uint32_t at : touched_)
    out.emplace_back(cells_[at], sums_[at]);
}

void CellSums::clear() noexcept {
  for (const std::uint32_t at : touched_) {
    sums_[at] = 0;
    listed_[at] = false;
  }
  touched_.clear();
}

} // namespace deltawire::sync
