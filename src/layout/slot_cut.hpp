// The cells and blocks of one slot: the workers' segment boundaries cut the slot's dims into intervals, and the owners'
// boxes cut at these intervals are blocks. What is compiled here is in the order of the slot; plan.cpp numbers it.
#pragma once

#include "layout/region.hpp"

#include <span>
#include <vector>

namespace deltawire::layout {

/// A region and the rank or worker that declared it. Borrowed: the declaration outlives the cut.
struct Claim {
  std::uint32_t process = 0;
  const Region* region = nullptr;
};

/// A block before it has an id. Its numbers lie in CutBlocks::numbers from `numbers` on: `dims` extents, then as many
/// local strides, then as many slot strides.
struct CutBlock {
  const Claim* owner = nullptr;
  std::uint32_t cell = 0; ///< index into CutBlocks::cells
  std::uint32_t dims = 0;
  std::size_t numbers = 0;
  Index local_offset = 0;
  Index slot_offset = 0;
  std::size_t readers_begin = 0; ///< into CutBlocks::readers
  std::size_t readers_end = 0;
};

/// How one region of a worker sees a block; `dims` local strides from `numbers` on.
struct CutReader {
  const Claim* reader = nullptr;
  std::size_t numbers = 0;
  Index local_offset = 0;
};

/// Blocks of many slots, in pools, since there may be millions.
struct CutBlocks {
  std::vector<CutBlock> blocks;
  std::vector<CutReader> readers; ///< of one block: in the order of the claims
  std::vector<Index> numbers;
  std::vector<Index> cells; ///< elements
  /// Claims, each once at most, whose strides reach a local element twice (an expanded view).
  std::vector<const Claim*> folded;
};

/// Appends the slot's cells (none if it has no elements) and blocks to `out`. Requires that every region is valid for
/// `shape` (segments sorted, disjoint, in range, addresses below 2^62) and that the owners cover every element exactly
/// once. `out` points into `owners` and `readers`. Fails where the workers' shards make more than 2^20
/// cells, or those and the owners' parts more than 2^22 blocks.
[[nodiscard]] Result<void> cut_slot(const SlotSpec& slot, std::span<const Claim> owners, std::span<const Claim> readers,
                                    CutBlocks& out);

} // namespace deltawire::layout
