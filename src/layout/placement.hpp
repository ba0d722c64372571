// Placements: which part of a parameter each rank holds. Cuts apply in order and each takes what the ones before left,
// packed; pieces are ceil pieces (as torch.chunk's), so that the last ones may be shorter or empty, unless their sizes
// are declared. A cut by slice or by named segments cuts each segment on its own and packs the pieces. A flat cut comes
// last and takes an interval of the row-major elements. Immutable after compile().
#pragma once

#include "layout/map.hpp"
#include "layout/shard.hpp"

#include <functional>

namespace deltawire::layout {

/// An axis of the mesh, or several under one name, outermost first.
struct AxisGroup {
  std::string name;
  std::vector<std::size_t> axes; ///< of the mesh
  Index size = 1;

  /// Row-major over the axes.
  [[nodiscard]] Index coordinate(const Mesh& mesh, std::span<const Index> coordinates) const;
};

struct Cut {
  enum class Kind { whole, cyclic, by_slice, by_segments, flat };
  AxisGroup axis;
  Kind kind = Kind::whole;
  Index dim = 0;               ///< of the unviewed parameter; not for flat
  std::vector<Index> segments; ///< by_segments: their lengths
  std::vector<Index> sizes;    ///< declared pieces, one a coordinate; empty: ceil pieces

  [[nodiscard]] bool segmented() const noexcept { return kind == Kind::by_slice || kind == Kind::by_segments; }
};

/// Coordinates of an axis that hold the parameter, ascending.
struct HoldingCoordinates {
  AxisGroup axis;
  std::vector<Index> coordinates;
};

/// A list of cuts with its options.
struct Cuts {
  std::vector<Cut> cuts;
  std::vector<HoldingCoordinates> on;
  std::string where;

  /// What the list is for.
  enum class For { parameter, slice };

  /// Whether both cut `dim` alike.
  [[nodiscard]] bool same_on(const Cuts& other, std::size_t dim) const;

  /// Parses `shard` and `options`; the failure names `where`, `what` and the axis. `joined`: the side's joined axes.
  [[nodiscard]] static Result<Cuts> compile(std::span<const std::string> shard, const CutOptions& options,
                                            const Mesh& mesh, std::span<const AxisGroup> joined, For what_for,
                                            const std::string& what, const std::string& where);
};

/// Parses the side's joined axes. Fails on an unknown axis, one that is joined twice, a name that is taken.
[[nodiscard]] Result<std::vector<AxisGroup>> join_axes(std::span<const JoinedAxis> axes, const Mesh& mesh);

struct Placement {
  Pattern parameter;
  Cuts cuts;
  std::optional<WireDType> wire_dtype;

  [[nodiscard]] static Result<Placement> compile(const PlacementRule& rule, const Mesh& mesh,
                                                 std::span<const AxisGroup> joined);
};

/// What a by-slice cut treats on its own. `own`: the cuts of the map that keeps it, where it has any; null: the
/// parameter's.
struct DimSegment {
  Span span;
  const Cuts* own = nullptr;
};

/// The segments of a dim: sorted, disjoint, without gaps, from 0 to the extent.
using SegmentsOfDim = std::function<Result<std::vector<DimSegment>>(std::size_t dim)>;

/// The parameter that is asked about, and what is known of it.
struct PlacedParameter {
  const std::string& name;
  const Shape& full_shape;
  const Placement* placement = nullptr; ///< null: replicated
  std::vector<const Cuts*> own;         ///< of its maps that have cuts of their own
  SegmentsOfDim segments;               ///< asked only for dims that are cut by slice, or by a map's own cuts
  std::optional<FlatRange> flat;        ///< declared by the process itself, in place of the flat cuts' pieces
};

/// What `rank` holds of the parameter. Requires 0 <= rank < mesh.size().
/// The cuts of a map's own take the place of the parameter's by-slice cuts for its slice; cuts of whole dims and flat
/// cuts go on to take what all slices left.
[[nodiscard]] Result<Shard> shard_by(const PlacedParameter& parameter, const Mesh& mesh, Index rank);

/// Whether `rank` is the owner of what it holds of a slice with cuts `own` (null: the parameter's): the lowest
/// coordinate that holds it on every axis that cuts nothing of it. `counted`: axes of the mesh along which each
/// coordinate has a parameter of its own.
[[nodiscard]] bool owns(const PlacedParameter& parameter, const Cuts* own, const Mesh& mesh, Index rank,
                        std::span<const std::size_t> counted = {});

} // namespace deltawire::layout
