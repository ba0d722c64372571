// The position log: which elements of a rank's blocks changed in a capture (at most one bit an element).
// Delivery reads values back from the snapshot at these positions; a failed delivery folds its log into the next.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deltawire::delta {

/// Changed positions of one chunk (a range of one block), tile by tile. Each tile is held as u16 positions or as a
/// bitmap, whichever is smaller.
class PositionLog {
public:
  /// Positions relative to `tile_first` (a block element), strictly increasing, < 4096. Tiles are added in ascending
  /// order.
  void add_tile(std::uint64_t tile_first, std::span<const std::uint16_t> positions);

  /// Calls visit(tile_first, span of positions) for each tile with changes, ascending.
  template <class Visit>
  void for_each_tile(Visit&& visit) const;

  /// Union with another log of the same chunk: the fold of two captures.
  void merge(const PositionLog& other);

  [[nodiscard]] std::uint64_t changed() const noexcept { return changed_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return changed_ == 0; }

private:
  struct Tile {
    std::uint64_t first;
    std::uint16_t count;
    bool bitmap;
    std::size_t offset; ///< into words_
  };
  std::vector<Tile> tiles_;
  std::vector<std::uint16_t> words_;
  std::uint64_t changed_ = 0;
};

} // namespace deltawire::delta
