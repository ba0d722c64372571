// The slots: which tensors of the checkpoint fill them, by the trainer's maps. The trainer's placement does not matter:
// all its shards together are the tensors of the file.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "relation.hpp"

namespace deltawire::replay::proof {

/// A tensor of the checkpoint that fills a slot, or a part of it.
struct Filling {
  std::size_t tensor = 0;
  Pick of_tensor;
  Pick of_slot;
};

struct Slot {
  std::string name;
  DType dtype = DType::bf16; ///< on the wire
  Shape shape;
  std::vector<Filling> fillings; ///< each element is in exactly one of them
};

/// In the order of the file's tensors. The picks point into `trainer`. Fails where maps do not fit the tensors, or do
/// not fill each element of each slot exactly once.
[[nodiscard]] Result<std::vector<Slot>> slots_of(const Rules& trainer, const checkpoint::Checkpoint& file);

/// Calls `visit` with all coordinates that differ in the axes given, 0 on the others.
template <class Visit>
Result<void> for_each_coordinate(const Rules& rules, const std::vector<std::size_t>& axes, const Visit& visit) {
  Shape extents;
  for (std::size_t axis : axes)
    extents.push_back(rules.mesh[axis].second);
  for (Index i = 0; i < count_of(extents); ++i) {
    const Shape moved = coordinates_of(i, extents);
    Shape coordinates(rules.mesh.size(), 0);
    for (std::size_t a = 0; a < axes.size(); ++a)
      coordinates[axes[a]] = moved[a];
    if (Result<void> visited = visit(coordinates); !visited)
      return visited;
  }
  return {};
}

/// Adds the coordinates on the axes that the map names. False where a name is known and differs.
[[nodiscard]] bool add_coordinates(const Rules& rules, const Map& map, const Shape& coordinates, Names& names);

} // namespace deltawire::replay::proof
