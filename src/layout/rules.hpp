// What the topology file says about one side (trainer or worker), as text that layout has not compiled yet.
// src/config fills these; layout::Side::compile reads them. `where` is "file:line" and prefixes every error about the
// rule.
#pragma once

#include "deltawire/dtype.hpp"
#include "layout/mesh.hpp"
#include "layout/wire_dtype.hpp"

#include <optional>
#include <string>
#include <vector>

namespace deltawire::layout {

/// `axes = { ep = ["dp", "tp"] }`: several axes of the mesh under one name, outermost first.
struct JoinedAxis {
  std::string name;
  std::vector<std::string> axes;

  friend bool operator==(const JoinedAxis&, const JoinedAxis&) = default;
};

/// `sizes = { tp = [2, 3] }`, `on = { pp = [0] }`: numbers for an axis of the mesh or a joined one.
struct AxisNumbers {
  std::string axis;
  std::vector<Index> numbers;

  friend bool operator==(const AxisNumbers&, const AxisNumbers&) = default;
};

/// What may stand beside a list of cuts.
struct CutOptions {
  std::vector<AxisNumbers> sizes; ///< declared lengths of the pieces, one a coordinate of the axis
  std::vector<JoinedAxis> axes;   ///< besides the side's
  std::vector<AxisNumbers> on;    ///< coordinates that hold it; an axis that is not named: all
};

/// [[trainer.placement]] / [[worker.placement]]: the first whose pattern matches a parameter counts.
struct PlacementRule {
  std::string parameter;          ///< pattern
  std::vector<std::string> shard; ///< cuts in order: "axis:dim", "axis:dim by slice", "axis:dim by [2048, 1024]",
                                  ///< "axis:dim cyclic", "axis:flat"
  std::string where;
  CutOptions options{};
  std::optional<WireDType> wire_dtype{}; ///< trainer side: in place of the side's
};

/// [[trainer.map]] / [[worker.map]]: how a parameter covers a slot. Empty = not given.
struct MapRule {
  std::string parameter;  ///< pattern, may bind {names}
  std::string slot;       ///< name with {names} and computed {l + 8*pp} substituted; empty: same as the parameter
  std::string view;       ///< "[8, 4, 64, 512]", "[:, (2, :), :]"
  std::string slice;      ///< "[e, 0:768, :]", items of the viewed dims
  bool transpose = false; ///< swaps the last two dims after slicing
  std::string where;
  std::vector<Index> permute = {};                 ///< dim i of the slot is dim permute[i] of what slice keeps
  std::string slot_view = {};                      ///< as view, of the slot
  std::string slot_slice = {};                     ///< as slice, of the slot; an item may compute: "e + 16*ep"
  std::optional<std::vector<std::string>> shard{}; ///< cuts of its own, in place of the parameter's by-slice cuts
  CutOptions options{};                            ///< of these cuts
};

/// [[trainer.parameter]] / [[worker.parameter]]: facts that the maps do not tell.
struct ParameterRule {
  std::string name; ///< pattern
  std::optional<Shape> shape;
  bool padding = false; ///< elements that no map covers are padding
  std::string where;
};

struct SideRules {
  Mesh mesh;
  std::vector<PlacementRule> placements;
  std::vector<MapRule> maps;
  std::vector<ParameterRule> parameters;
  std::vector<std::string> unused{}; ///< worker side: slot patterns that no worker reads
  std::vector<JoinedAxis> axes{};    ///< for all placements and maps of this side
  WireDType wire_dtype{};            ///< trainer side: `update.wire_dtype`
};

} // namespace deltawire::layout
