#include "layout/mesh.hpp"

namespace deltawire::layout {

Result<Mesh> Mesh::make(std::vector<Axis> axes) {
  constexpr Index most_ranks = Index{1} << 20;
  Mesh mesh;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    if (axis.name.empty())
      return fail(Code::invalid_topology, "mesh: axis {} has no name", i);
    for (std::size_t before = 0; before < i; ++before)
      if (axes[before].name == axis.name)
        return fail(Code::invalid_topology, "mesh: axis '{}' is named twice; names must differ", axis.name);
    if (axis.size < 1)
      return fail(Code::invalid_topology, "mesh: axis '{}' has size {}; the least is 1", axis.name, axis.size);
    if (axis.size > most_ranks / mesh.size_)
      return fail(Code::limit_exceeded, "mesh: more than {} ranks at axis '{}'", most_ranks, axis.name);
    mesh.size_ *= axis.size;
  }
  mesh.axes_ = std::move(axes);
  return mesh;
}

std::optional<std::size_t> Mesh::find(std::string_view axis) const noexcept {
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == axis)
      return i;
  return std::nullopt;
}

std::vector<Index> Mesh::coordinates(Index rank) const {
  std::vector<Index> result(axes_.size());
  for (std::size_t i = axes_.size(); i-- > 0;) {
    result[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return result;
}

} // namespace deltawire::layout
