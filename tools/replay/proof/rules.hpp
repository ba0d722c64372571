// The rules of one side as the proof reads them: first as text, key by key as the topology file has them, then parsed.
#pragma once

#include "pattern.hpp"
#include "text.hpp"

namespace deltawire::replay::proof {

// ------------------------------------------------------------------------------------------------------------ text

using NumbersByAxis = std::vector<std::pair<std::string, Shape>>;
using AxesByName = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// `shard` and what may stand beside it.
struct CutsText {
  std::vector<std::string> shard;
  NumbersByAxis sizes;
  NumbersByAxis on;
  AxesByName axes;
};

struct PlacementText {
  std::string parameter;
  CutsText cuts;
  std::string where;
  std::optional<std::string> wire_dtype{};
};

struct MapText {
  std::string parameter;
  std::string slot; ///< empty: the same
  std::string view;
  std::string slice;
  std::string slot_view;
  std::string slot_slice;
  Shape permute;
  bool transpose = false;
  std::optional<CutsText> own; ///< a map's own `shard`
  std::string where;
};

struct ParameterText {
  std::string name;
  std::optional<Shape> shape;
  bool padding = false;
};

struct SideText {
  std::vector<std::pair<std::string, Index>> mesh; ///< outermost first
  AxesByName axes;
  std::vector<PlacementText> placements;
  std::vector<MapText> maps;
  std::vector<ParameterText> parameters;
  std::vector<std::string> unused;
  std::string wire_dtype = "keep"; ///< the trainer's: of parameters whose placement has none
};

// ---------------------------------------------------------------------------------------------------------- parsed

/// Numbers of axes of the mesh, outermost first: one axis, or several that are joined.
using AxisNumbers = std::vector<std::size_t>;

struct PlacedCut {
  Cut cut;
  AxisNumbers axes;
  Shape sizes; ///< declared lengths of the pieces; empty: ceil pieces
};

struct Cuts {
  std::vector<PlacedCut> cuts;
  std::vector<std::pair<AxisNumbers, Shape>> on; ///< coordinates that hold it
  std::string where;
};

/// What one side of a map takes of its tensor: view, slice, order. Without view and slice, the tensor as it is.
struct Selection {
  std::optional<View> view;
  std::optional<Slice> slice;
  Shape permute; ///< dim i of the result is kept dim permute[i]; empty: as they are
  bool transpose = false;
};

struct Map {
  NamePattern parameter;
  NamePattern slot;
  Selection of_parameter;
  Selection of_slot;
  std::optional<Cuts> own;
  std::vector<std::size_t> axes; ///< of the mesh, whose coordinates the slot's name or slice contains
  std::string where;
};

struct Placement {
  NamePattern parameter;
  Cuts cuts;
  std::optional<std::string> wire_dtype;
};

struct Fact {
  NamePattern name;
  std::optional<Shape> shape;
  bool padding = false;
};

struct Rules {
  std::vector<std::pair<std::string, Index>> mesh;
  std::vector<Map> maps;
  std::vector<Placement> placements;
  std::vector<Fact> facts;
  std::vector<NamePattern> unused;
  std::string wire_dtype = "keep";

  /// The first that matches; null where none does.
  [[nodiscard]] const Placement* placement_of(const std::string& parameter) const;
  [[nodiscard]] const Fact* fact_of(const std::string& parameter) const;

  /// Coordinates of a rank, one an axis: ranks count row-major.
  [[nodiscard]] Shape coordinates(Index rank) const;
  [[nodiscard]] Index coordinate(const AxisNumbers& axes, const Shape& coordinates) const;
  [[nodiscard]] Index size(const AxisNumbers& axes) const;
  /// Whether a process at these coordinates holds the parameter.
  [[nodiscard]] bool holds(const std::string& parameter, const Shape& coordinates) const;
};

[[nodiscard]] Result<Rules> read_rules(const SideText& side);

} // namespace deltawire::replay::proof
