// Placements: which part of a parameter each rank holds. Cuts apply in order; a cut takes ceil pieces (as torch.chunk
// does), so that the last ones may be shorter or empty. Immutable after compile().
#pragma once

#include "layout/map.hpp"
#include "layout/side.hpp"

#include <functional>

namespace deltawire::layout {

struct Cut {
  std::size_t axis = 0; ///< of the mesh
  Index dim = 0;        ///< of the unviewed parameter
  bool by_slice = false;
};

struct Placement {
  Pattern parameter;
  std::vector<Cut> cuts;
  std::string where;

  /// Parses a rule; the failure names `where` and the axis.
  [[nodiscard]] static Result<Placement> compile(const PlacementRule& rule, const Mesh& mesh);
};

/// The segments of a dim that a by-slice cut treats on their own: sorted, disjoint, without gaps, from 0 to the extent.
using SegmentsOfDim = std::function<Result<std::vector<Span>>(std::size_t dim)>;

/// What `rank` holds of the parameter; no placement = replicated. `segments` is asked only for dims cut by slice.
/// Requires 0 <= rank < mesh.size().
[[nodiscard]] Result<Shard> shard_by(const Placement* placement, const Mesh& mesh, const std::string& name,
                                     const Shape& full_shape, Index rank, const SegmentsOfDim& segments);

} // namespace deltawire::layout
