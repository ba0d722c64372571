// Layouts that no map can say: the embedding program lists, for a parameter, where its rank's memory has which boxes of
// which slots. What it lists is checked here as far as one rank can see; that all ranks together provide every slot
// element once is checked with everybody else's regions when the plan is compiled.
#pragma once

#include "layout/problems.hpp"
#include "layout/region.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::layout {

/// Element x, 0 <= x_d < extents[d], is slot index begin[d] + x_d * steps[d] and lies at element local_offset + sum of
/// x_d * local_strides[d] of the local buffer. One number a slot dim each; a block with an extent of 0 is nothing.
struct ExportedBlock {
  std::vector<Index> begin;
  std::vector<Index> extents;
  std::vector<Index> local_strides; ///< 1 and more where the extent is above 1
  Index local_offset = 0;
  std::vector<Index> steps; ///< 1 and more; empty: 1 everywhere
};

/// What a rank's memory of one parameter has of one slot, maybe nothing.
struct ExportedSlot {
  std::string name;
  Shape shape; ///< full
  std::vector<ExportedBlock> blocks;
};

/// Appends everything that is wrong with the blocks, named by `who` ("rank 3: parameter 'w'"), slot, block and range:
/// numbers that are missing, boxes that leave their slot, addresses outside of the `local_elements`, elements of the
/// buffer that two blocks take, and, without `padding`, those that none takes. True: nothing is. Takes a bit of memory
/// an element.
[[nodiscard]] bool check_exported(std::span<const ExportedSlot> slots, Index local_elements, bool padding,
                                  std::string_view who, Problems& problems);

/// The block as a region without parameter and slot numbers (0); nothing where it is empty. Requires a block that
/// passed the check.
[[nodiscard]] std::optional<Region> region_of(const ExportedBlock& block);

} // namespace deltawire::layout
