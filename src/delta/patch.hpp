// Patches on the owner's side: changes that the trainer already knows, in the coordinates of a slot, found in a rank's
// blocks and written into its snapshot and log. Pure functions over memory, as capture.hpp.
#pragma once

#include "delta/capture.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace deltawire::delta {

/// New values of some elements of one block.
struct BlockPatch {
  std::vector<std::uint64_t> elements; ///< in block order, strictly increasing
  std::vector<std::byte> values;       ///< of the block's dtype, as many
};

/// From slot positions back to block elements. Immutable; keeps no reference to the block.
class BlockIndex {
public:
  explicit BlockIndex(const layout::Block& block);

  /// The block's element at a slot position; nothing where the block does not have it.
  [[nodiscard]] std::optional<std::uint64_t> element_at(std::uint64_t slot_position) const noexcept;

private:
  struct Dim {
    layout::Index extent = 1;
    layout::Index slot_stride = 1;
    std::uint64_t elements = 1; ///< of the block, from one index of the dim to the next
  };
  layout::Index first_ = 0;
  layout::Index last_ = 0;
  std::vector<Dim> dims_; ///< the largest stride first: each is larger than all that the dims behind it span
};

/// Writes the patch's elements in [first, first + count) into the snapshot and logs those whose bits change. Reads no
/// trainer memory (`owned.local` may be null).
[[nodiscard]] Captured capture_patch(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count,
                                     const BlockPatch& patch, PositionLog& log);

} // namespace deltawire::delta
