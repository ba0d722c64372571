// Maps: which elements of a parameter are which elements of a slot. Three stages:
//   Map         a [[*.map]] entry, parsed
//   MapUse      a map that matched: names of parameter and slot, and the number of every index
//   AppliedMap  a use on a parameter and a slot of known shapes: their common coordinates, as affine stretches
//
// Both sides of a map select alike: a view splits dims, a slice takes one item a viewed dim, and neighbours that were
// parts of one dim merge back. The parameter's kept dims may be permuted before they merge. The two kept shapes must
// then agree. So what a use keeps, of the parameter and of the slot, is a product of one set of positions a dim.
//
// In a view, parentheses hold the parts of one dim, `:` is what is left of its dim, and bare numbers behind each other
// take the fewest that make up a dim, at least one (so a viewed 1 behind a complete dim belongs to the next dim; behind
// the last dim, to the last).
#pragma once

#include "layout/pattern.hpp"
#include "layout/rules.hpp"

#include <span>

namespace deltawire::layout {

/// Positions begin..end of a dim.
struct Span {
  Index begin = 0;
  Index end = 0;

  friend bool operator==(const Span&, const Span&) = default;
};

struct SliceItem {
  enum class Kind { all, range, index, bound, computed };
  Kind kind = Kind::all;
  Span range;           ///< range: what is kept; index: begin; bound and limited: the values that the name takes
  Index step = 1;       ///< range
  std::string name;     ///< bound
  bool limited = false; ///< bound: "e=0:64"
  Linear sum;           ///< computed, on the slot's side only
};

struct View {
  static constexpr Index rest = -1; ///< ':'
  /// How an item stands to the one before it: another dim, the same dim, or either (two bare numbers).
  enum class Link { other_dim, same_dim, either };

  std::vector<Index> extents; ///< 1 and more, or rest
  std::vector<Link> links;
  std::string text;
};

/// What a map takes of a tensor.
struct Selection {
  std::optional<View> view;
  std::optional<std::vector<SliceItem>> slice;

  [[nodiscard]] bool takes_all() const noexcept { return !view && !slice; }
};

/// Which names must be told by which pattern differs: the trainer goes from parameters to slots, the worker from slots
/// to parameters.
enum class Direction { from_parameter, from_slot };

struct Map {
  Pattern parameter;
  Pattern slot;
  Selection of_parameter;
  Selection of_slot;
  std::vector<Index> permute; ///< empty: none
  bool transpose = false;
  std::vector<std::string> axes; ///< of the mesh, whose coordinates the slot's name or slice contains
  std::string where;

  /// Parses a rule; the failure names `where`.
  [[nodiscard]] static Result<Map> compile(const MapRule& rule, Direction direction, const Mesh& mesh);

  /// Parameter = slot, element by element.
  [[nodiscard]] static const Map& identity();
};

struct MapUse {
  const Map* map = nullptr;
  std::string parameter;
  std::string slot;
  std::vector<Index> bound;      ///< one an item of the parameter's slice: the number of a bound name, 0 elsewhere
  std::vector<Index> slot_bound; ///< of the slot's slice: of a bound name or a sum
  std::vector<Index> slot_most;  ///< the same with the largest value of each sum on any rank of the mesh
};

/// The uses of a map for a parameter on this rank: none where the name does not match, one for every combination of
/// values of the names that only the slice binds. Fails where the slice does not fit the shape, and where a sum is
/// below 0.
[[nodiscard]] Result<std::vector<MapUse>> uses_for_parameter(const Map& map, const std::string& name,
                                                             const Shape& shape, const Mesh& mesh, Index rank);

/// The same as far as the parameter's name and slice tell: each use's slot is the pattern's text.
[[nodiscard]] Result<std::vector<MapUse>> selections_of_parameter(const Map& map, const std::string& name,
                                                                  const Shape& shape);

/// The uses of a map for a slot on this worker: none where the slot does not match, one for every combination of values
/// of the names that its name does not tell (they run over a dim of the slot, or over the limits that the map states).
[[nodiscard]] Result<std::vector<MapUse>> uses_for_slot(const Map& map, const std::string& slot, const Shape& shape,
                                                        const Mesh& mesh, Index worker);

/// A range of common coordinates: `count` of them, `stride` positions apart in a parameter dim and `slot_stride` in a
/// slot dim.
struct Digit {
  Index count = 1;
  Index stride = 1;
  Index slot_stride = 1;
};

/// Positions offset + sum of k_i * stride_i of the parameter's dim are positions slot_offset + sum of k_i *
/// slot_stride_i of the slot's dim, 0 <= k_i < count_i; digits outermost first, on both sides.
struct Stretch {
  Index offset = 0;
  Index slot_offset = 0;
  std::vector<Digit> digits;
};

/// A common coordinate, of one dim of the parameter and one of the slot: stretches one behind the other, nearly always
/// one.
struct CommonDim {
  std::size_t dim = 0;
  std::size_t slot_dim = 0;
  std::vector<Stretch> stretches;
};

struct AppliedMap {
  std::vector<Index> base;      ///< one a parameter dim: the first position kept
  std::vector<Index> slot_base; ///< one a slot dim
  std::vector<CommonDim> common;
  std::vector<std::vector<Span>> kept; ///< one list a parameter dim: positions, sorted, disjoint, not touching
  std::vector<std::vector<Span>> slot_kept;
};

/// Fails where view or slice do not fit a shape, or where what is kept of both sides does not agree; the failure names
/// the map, the parameter and the slot.
[[nodiscard]] Result<AppliedMap> apply(const MapUse& use, const Shape& shape, const Shape& slot_shape);

/// What one use keeps of its parameter, without its slot's shape.
[[nodiscard]] Result<std::vector<std::vector<Span>>> kept_positions(const MapUse& use, const Shape& shape);

/// A full shape as one use tells it. An extent is `open` where a slice only bounds it: the least possible.
struct ShapeHint {
  Shape shape;
  std::vector<bool> open;
};

/// Shapes of the parameter with which the use gives the slot; several where a view leaves open which numbers are parts
/// of one dim. Fails where there is none.
[[nodiscard]] Result<std::vector<ShapeHint>> parameter_shapes(const MapUse& use, const Shape& slot_shape);

/// The same for the slot's shape, from the parameter's. A sum counts with its largest value on any rank of the mesh, so
/// that ranks tell the same.
[[nodiscard]] Result<std::vector<ShapeHint>> slot_shapes(const MapUse& use, const Shape& shape);

/// Shapes that are in both lists; extents that are open grow to the larger one.
[[nodiscard]] std::vector<ShapeHint> common_shapes(std::span<const ShapeHint> a, std::span<const ShapeHint> b);

} // namespace deltawire::layout
