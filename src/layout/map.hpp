// Maps: which elements of a parameter form a slot, and in which order. Three stages:
//   Map         a [[*.map]] entry, parsed
//   MapUse      a map that matched: its slot's name and the number of every bound index
//   AppliedMap  a use on a parameter of known shape: per parameter dim the parts it is viewed as, and the slot's dims
// A view only splits dims, so what a use keeps of a parameter is a product of one set of positions a dim.
// Each dim takes the fewest viewed dims that make up its extent, at least one, so a viewed 1 behind a complete dim
// belongs to the next dim (behind the last dim, to the last).
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
  enum class Kind { all, range, index, bound };
  Kind kind = Kind::all;
  Span range;           ///< range: what is kept; index: begin; bound and limited: the values that the name takes
  std::string name;     ///< bound
  bool limited = false; ///< bound: "e=0:64"
};

struct Map {
  Pattern parameter;
  Pattern slot;
  std::optional<Shape> view;
  std::optional<std::vector<SliceItem>> slice;
  bool transpose = false;
  std::string where;

  /// Which names must be told by which pattern differs: the trainer goes from parameters to slots, the worker from
  /// slots to parameters.
  enum class Direction { from_parameter, from_slot };

  /// Parses a rule; the failure names `where`.
  [[nodiscard]] static Result<Map> compile(const MapRule& rule, Direction direction);

  /// Parameter = slot, element by element.
  [[nodiscard]] static const Map& identity();
};

struct MapUse {
  const Map* map = nullptr;
  std::string slot;
  std::vector<Index> bound; ///< one a slice item; the number of a bound name, 0 elsewhere
};

/// The uses of a map for a parameter: none where the name does not match, one for every combination of values of the
/// names that only the slice binds. Fails where the slice does not fit the shape.
[[nodiscard]] Result<std::vector<MapUse>> uses_for_parameter(const Map& map, const std::string& name,
                                                             const Shape& shape);

/// The use of a map for a slot, and the parameter's name; nothing where the slot does not match.
struct SlotUse {
  MapUse use;
  std::string parameter;
};
[[nodiscard]] std::optional<SlotUse> use_for_slot(const Map& map, const std::string& slot);

/// One factor of a parameter dim, outermost first. The position in the dim is the sum of digit * weight.
struct Part {
  Index extent = 1;
  Index weight = 1;
  Span kept;            ///< digits
  bool dropped = false; ///< an index: one digit, no slot dim
};

/// A dim of the slot: kept parts of one parameter dim, outermost first.
struct SlotDim {
  std::size_t dim = 0;
  std::vector<std::size_t> parts;
};

struct AppliedMap {
  std::vector<std::vector<Part>> parts; ///< one list a parameter dim
  std::vector<SlotDim> slot_dims;
  Shape slot_shape;
  std::vector<std::vector<Span>> kept; ///< one list a parameter dim: positions, sorted, disjoint, not touching
};

/// Fails where view or slice do not fit `shape`; the failure names the map, the parameter and the slot.
[[nodiscard]] Result<AppliedMap> apply(const MapUse& use, const std::string& parameter, const Shape& shape);

/// What one use tells about the shape of the parameter it reads or fills, from the slot's shape.
struct ShapeHints {
  /// Full shapes that give exactly this slot shape (a view tells all extents). Without a view one shape, and extents
  /// that a slice only bounds are the least possible.
  std::vector<Shape> shapes;
  bool exact = false; ///< the map has a view
};
[[nodiscard]] Result<ShapeHints> parameter_shapes(const MapUse& use, const std::string& parameter,
                                                  const Shape& slot_shape);

} // namespace deltawire::layout
