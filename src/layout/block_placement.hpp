// The common case of a shard, one hyper-rectangle, and positions in it translated to positions in the full tensor.
// Used wherever checkpoint coordinates leave the process.
#pragma once

#include "layout/shape.hpp"

#include <span>

namespace deltawire::layout {

struct BlockPlacement {
  Shape local_shape;
  Shape global_offset; ///< same length
  Shape full_shape;    ///< same length

  friend bool operator==(const BlockPlacement&, const BlockPlacement&) = default;
};

/// One placement a mesh axis, as a trainer's framework states it, in mesh-axis order.
struct AxisPlacement {
  enum class Kind { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;        ///< shard: the dim that is cut
  int cut_order = -1; ///< shard: position in the order of cutting; -1 = mesh-axis order (outermost first)
};

struct TensorSpec {
  Shape full_shape;
  Shape mesh;                            ///< axis sizes, outermost first
  std::vector<AxisPlacement> placements; ///< one a mesh axis
};

struct DerivedPlacement {
  BlockPlacement block;
  bool owner = true; ///< false on a replica: contributes nothing
};

/// What `rank` holds: ceil pieces (torch.chunk), empty shards with size 0 and an offset clamped to the dim, scalars
/// never cut. Partial is refused.
[[nodiscard]] Result<DerivedPlacement> derive_placement(const TensorSpec& spec, Index rank);

/// Flat positions in the local shard, strictly increasing, to flat positions in the full tensor, strictly increasing.
/// `out` has the size of `local`. Fails on a position outside the shard or out of order; a contiguous block costs an
/// add.
[[nodiscard]] Result<void> translate_flat_indices(const BlockPlacement& placement, std::span<const Index> local,
                                                  std::span<Index> out);

} // namespace deltawire::layout
