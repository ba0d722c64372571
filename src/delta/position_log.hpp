// The position log: which elements of a rank's blocks changed in a capture (at most one bit an element).
// Delivery reads values back from the snapshot at these positions; a failed delivery folds its log into the next.
#pragma once

#include "kernels/mask.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace deltawire::delta {

/// Changed positions of one chunk (a range of one block), tile by tile on the block's grid. Each tile is held as u16
/// positions or as a bitmap, whichever is smaller: at most 512 bytes and 8 more. Not thread-safe.
class PositionLog {
  static constexpr std::size_t tile_span = 4096;

public:
  /// Positions relative to `tile_first` (any block element), strictly increasing, < 4096, and past those added before.
  void add_tile(std::uint64_t tile_first, std::span<const std::uint16_t> positions);

  /// The same, with the positions as bits too (bit i of word i / 64; a mask of a tile): spares packing many of them.
  void add_tile(std::uint64_t tile_first, std::span<const std::uint16_t> positions,
                std::span<const std::uint64_t, tile_span / 64> mask);

  /// Calls visit(tile_first, span of positions) for each tile with changes, ascending; tile_first is a multiple of
  /// 4096. The span is valid during the call.
  template <class Visit>
  void for_each_tile(Visit&& visit) const {
    std::array<std::uint16_t, tile_span> unpacked;
    const std::uint16_t* words = words_.data();
    for (const Tile& tile : tiles_) {
      visit(std::uint64_t{tile.index} * tile_span, positions(tile, words, unpacked));
      words += stored_words(tile.count);
    }
  }

  /// Forgets all positions and keeps the memory.
  void clear() noexcept {
    tiles_.clear();
    words_.clear();
    changed_ = 0;
  }

  /// Union with another log of the same block: the fold of two captures.
  void merge(const PositionLog& other);

  [[nodiscard]] std::uint64_t changed() const noexcept { return changed_; }

  /// What the log occupies, bytes.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return tiles_.size() * sizeof(Tile) + words_.size() * sizeof(std::uint16_t);
  }

  [[nodiscard]] bool empty() const noexcept { return changed_ == 0; }

private:
  friend class ChunkLog;
  static constexpr std::size_t bitmap_words = tile_span / 16; ///< u16 words of a bitmap

  struct Tile {
    std::uint64_t index : 50; ///< on the block's grid
    std::uint64_t count : 14;
  };

  /// A list of `count` positions or a bitmap: the smaller, and the list's length tells which.
  static constexpr bool is_bitmap(std::size_t count) noexcept { return count >= bitmap_words; }
  static constexpr std::size_t stored_words(std::size_t count) noexcept {
    return is_bitmap(count) ? bitmap_words : count;
  }

  static std::span<const std::uint16_t> positions(const Tile& tile, const std::uint16_t* words,
                                                  std::span<std::uint16_t, tile_span> unpacked) noexcept {
    if (!is_bitmap(tile.count))
      return {words, static_cast<std::size_t>(tile.count)};
    std::array<std::uint64_t, tile_span / 64> mask;
    std::memcpy(mask.data(), words, sizeof(mask));
    kernels::mask_to_positions(mask, unpacked.data());
    return unpacked.first(static_cast<std::size_t>(tile.count));
  }

  /// Positions relative to the tile's start, none of them in the log yet; joins the last tile when it is the same one.
  void append(std::uint64_t index, std::span<const std::uint16_t> positions);

  std::vector<Tile> tiles_;
  std::vector<std::uint16_t> words_; ///< tile after tile
  std::uint64_t changed_ = 0;
};

/// What one capture changed in one chunk: the logs of those of its ranges that changed, in memory that the next capture
/// takes over. What did not change costs nothing. Not thread-safe.
class ChunkLog {
public:
  /// Forgets all logs and keeps the memory.
  void clear() noexcept;

  /// Adds what changed in a range, by its index in the chunk: past those added before. An empty log adds nothing.
  void add(std::uint32_t range, const PositionLog& log);

  /// `log` becomes what changed in a range: empty where nothing did.
  void read(std::uint32_t range, PositionLog& log) const;

  /// What the logs occupy, bytes.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return ranges_.size() * sizeof(Range) + tiles_.size() * sizeof(PositionLog::Tile) +
           words_.size() * sizeof(std::uint16_t);
  }

private:
  struct Range {
    std::uint32_t range = 0;
    std::uint64_t tiles_end = 0; ///< of tiles_
    std::uint64_t words_end = 0; ///< of words_
    std::uint64_t changed = 0;
  };

  std::vector<Range> ranges_; ///< ascending
  std::vector<PositionLog::Tile> tiles_;
  std::vector<std::uint16_t> words_;
};

} // namespace deltawire::delta
