#include "delta/position_log.hpp"

#include <algorithm>
#include <cassert>

namespace deltawire::delta {

void PositionLog::add_tile(std::uint64_t tile_first, std::span<const std::uint16_t> positions) {
  // A caller's tile part may begin anywhere: it is moved to the grid here, so that logs of differently cut captures of
  // a block fold into each other.
  const auto shift = static_cast<std::size_t>(tile_first % tile_span);
  std::uint64_t index = tile_first / tile_span;
  if (shift == 0) {
    append(index, positions);
    return;
  }
  std::array<std::uint16_t, tile_span> moved;
  while (!positions.empty()) {
    const std::uint64_t end = (index + 1) * tile_span;
    std::size_t count = 0;
    while (count < positions.size() && tile_first + positions[count] < end) {
      moved[count] = static_cast<std::uint16_t>(tile_first + positions[count] - index * tile_span);
      ++count;
    }
    append(index, std::span(moved).first(count));
    positions = positions.subspan(count);
    ++index;
  }
}

void PositionLog::add_tile(std::uint64_t tile_first, std::span<const std::uint16_t> positions,
                           std::span<const std::uint64_t, tile_span / 64> mask) {
  const std::uint64_t index = tile_first / tile_span;
  const bool joins = !tiles_.empty() && tiles_.back().index == index;
  if (tile_first % tile_span != 0 || joins || !is_bitmap(positions.size())) {
    add_tile(tile_first, positions);
    return;
  }
  const std::size_t at = words_.size();
  words_.resize(at + bitmap_words);
  std::memcpy(words_.data() + at, mask.data(), mask.size_bytes());
  tiles_.push_back({index, positions.size()});
  changed_ += positions.size();
}

void PositionLog::append(std::uint64_t index, std::span<const std::uint16_t> positions) {
  if (positions.empty())
    return;
  assert(tiles_.empty() || tiles_.back().index <= index);
  std::array<std::uint16_t, tile_span> joined;
  if (!tiles_.empty() && tiles_.back().index == index) {
    const Tile last = tiles_.back();
    const std::size_t words = stored_words(last.count);
    std::array<std::uint16_t, tile_span> unpacked;
    const auto before = PositionLog::positions(last, words_.data() + (words_.size() - words), unpacked);
    std::copy(before.begin(), before.end(), joined.begin());
    std::copy(positions.begin(), positions.end(), joined.begin() + static_cast<std::ptrdiff_t>(before.size()));
    positions = std::span(joined).first(before.size() + positions.size());
    tiles_.pop_back();
    words_.resize(words_.size() - words);
    changed_ -= last.count;
  }
  assert(std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>{}) == positions.end());
  if (is_bitmap(positions.size())) {
    std::array<std::uint64_t, tile_span / 64> mask{};
    kernels::set_positions(positions, mask);
    const std::size_t at = words_.size();
    words_.resize(at + bitmap_words);
    std::memcpy(words_.data() + at, mask.data(), sizeof(mask));
  } else {
    words_.insert(words_.end(), positions.begin(), positions.end());
  }
  tiles_.push_back({index, positions.size()});
  changed_ += positions.size();
}

void PositionLog::merge(const PositionLog& other) {
  if (other.empty())
    return;
  if (empty()) {
    *this = other;
    return;
  }
  PositionLog united;
  auto mine = tiles_.begin();
  auto theirs = other.tiles_.begin();
  const std::uint16_t* my_words = words_.data();
  const std::uint16_t* their_words = other.words_.data();
  std::array<std::uint16_t, tile_span> my_unpacked;
  std::array<std::uint16_t, tile_span> their_unpacked;
  std::array<std::uint16_t, tile_span> both;
  while (mine != tiles_.end() || theirs != other.tiles_.end()) {
    const bool take_mine = mine != tiles_.end() && (theirs == other.tiles_.end() || mine->index <= theirs->index);
    const bool take_theirs = theirs != other.tiles_.end() && (mine == tiles_.end() || theirs->index <= mine->index);
    const std::uint64_t index = take_mine ? mine->index : theirs->index;
    std::span<const std::uint16_t> result;
    if (take_mine) {
      result = positions(*mine, my_words, my_unpacked);
      my_words += stored_words(mine->count);
      ++mine;
    }
    if (take_theirs) {
      const auto added = positions(*theirs, their_words, their_unpacked);
      their_words += stored_words(theirs->count);
      ++theirs;
      if (take_mine) {
        const auto end = std::set_union(result.begin(), result.end(), added.begin(), added.end(), both.begin());
        result = std::span(both).first(static_cast<std::size_t>(end - both.begin()));
      } else {
        result = added;
      }
    }
    united.append(index, result);
  }
  *this = std::move(united);
}

void ChunkLog::clear() noexcept {
  ranges_.clear();
  tiles_.clear();
  words_.clear();
}

void ChunkLog::add(std::uint32_t range, const PositionLog& log) {
  if (log.empty())
    return;
  assert(ranges_.empty() || ranges_.back().range < range);
  tiles_.insert(tiles_.end(), log.tiles_.begin(), log.tiles_.end());
  words_.insert(words_.end(), log.words_.begin(), log.words_.end());
  ranges_.push_back({range, tiles_.size(), words_.size(), log.changed_});
}

void ChunkLog::read(std::uint32_t range, PositionLog& log) const {
  log.clear();
  const auto found = std::lower_bound(ranges_.begin(), ranges_.end(), range,
                                      [](const Range& each, std::uint32_t wanted) { return each.range < wanted; });
  if (found == ranges_.end() || found->range != range)
    return;
  const auto at = [](const auto& from, std::uint64_t index) {
    return from.begin() + static_cast<std::ptrdiff_t>(index);
  };
  const bool first = found == ranges_.begin();
  log.tiles_.assign(at(tiles_, first ? 0 : (found - 1)->tiles_end), at(tiles_, found->tiles_end));
  log.words_.assign(at(words_, first ? 0 : (found - 1)->words_end), at(words_, found->words_end));
  log.changed_ = found->changed;
}

} // namespace deltawire::delta
