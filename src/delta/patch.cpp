#include "delta/patch.hpp"

#include "delta/tiles.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace deltawire::delta {

BlockIndex::BlockIndex(const layout::Block& block) : first_(block.slot_offset), last_(block.slot_offset) {
  std::uint64_t elements = 1;
  for (std::size_t d = block.extents.size(); d-- > 0;) {
    if (block.extents[d] > 1)
      dims_.push_back({block.extents[d], block.slot_strides[d], elements});
    last_ += (block.extents[d] - 1) * block.slot_strides[d];
    elements *= static_cast<std::uint64_t>(block.extents[d]);
  }
  std::sort(dims_.begin(), dims_.end(), [](const Dim& a, const Dim& b) { return a.slot_stride > b.slot_stride; });
}

std::optional<std::uint64_t> BlockIndex::element_at(std::uint64_t slot_position) const noexcept {
  if (slot_position < static_cast<std::uint64_t>(first_) || slot_position > static_cast<std::uint64_t>(last_))
    return std::nullopt;
  layout::Index rest = static_cast<layout::Index>(slot_position) - first_;
  std::uint64_t element = 0;
  for (const Dim& dim : dims_) {
    const layout::Index digit = rest / dim.slot_stride;
    if (digit >= dim.extent)
      return std::nullopt;
    rest -= digit * dim.slot_stride;
    element += static_cast<std::uint64_t>(digit) * dim.elements;
  }
  if (rest != 0)
    return std::nullopt;
  return element;
}

Captured capture_patch(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count, const BlockPatch& patch,
                       PositionLog& log) {
  // A capture of memory that holds the snapshot's values but for the patch's, tile by tile: what a capture compares,
  // refreshes, logs and digests is then the same for both.
  const std::size_t size = size_of(owned.block->dtype);
  alignas(64) std::array<std::byte, tile_elements * sizeof(std::uint64_t)> tile;
  Captured captured;
  auto at = std::lower_bound(patch.elements.begin(), patch.elements.end(), first);
  while (at != patch.elements.end() && *at < first + count) {
    const std::uint64_t begin = std::max(first, *at / tile_elements * tile_elements);
    const std::uint64_t end = std::min(first + count, (*at / tile_elements + 1) * tile_elements);
    std::memcpy(tile.data(), owned.snapshot + begin * size, static_cast<std::size_t>(end - begin) * size);
    for (; at != patch.elements.end() && *at < end; ++at)
      std::memcpy(tile.data() + (*at - begin) * size,
                  patch.values.data() + static_cast<std::size_t>(at - patch.elements.begin()) * size, size);
    const Captured changes = capture_tile(owned, begin, end - begin, tile.data(), log);
    captured.changed += changes.changed;
    captured.digest_change += changes.digest_change;
  }
  return captured;
}

} // namespace deltawire::delta
