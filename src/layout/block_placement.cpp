#include "layout/block_placement.hpp"

#include <algorithm>

namespace deltawire::layout {

namespace {

/// Coordinates of a rank, row-major over the mesh.
std::vector<Index> coordinates_of(Index rank, const Shape& mesh) {
  std::vector<Index> coordinates(mesh.size());
  for (std::size_t a = mesh.size(); a-- > 0;) {
    coordinates[a] = rank % mesh[a];
    rank /= mesh[a];
  }
  return coordinates;
}

/// The axes that cut, in the order of cutting.
Result<std::vector<std::size_t>> cutting_order(const TensorSpec& spec) {
  std::vector<std::size_t> axes;
  for (std::size_t a = 0; a < spec.placements.size(); ++a) {
    const AxisPlacement& placement = spec.placements[a];
    if (placement.kind == AxisPlacement::Kind::partial)
      return fail(Code::unsupported, "mesh axis {} is partial: sum the parts first, no rank holds the value", a);
    if (placement.kind == AxisPlacement::Kind::replicate || spec.full_shape.empty())
      continue; // a scalar is never cut
    if (placement.dim < 0 || static_cast<std::size_t>(placement.dim) >= spec.full_shape.size())
      return fail(Code::invalid_argument, "mesh axis {} cuts dim {}, the shape {} has {} dims", a, placement.dim,
                  to_string(spec.full_shape), spec.full_shape.size());
    if (placement.cut_order < -1)
      return fail(Code::invalid_argument, "mesh axis {} has the cut order {}; use 0 and up, or -1 for mesh order", a,
                  placement.cut_order);
    for (std::size_t other : axes) {
      const AxisPlacement& before = spec.placements[other];
      if (before.dim != placement.dim)
        continue; // cuts of different dims do not depend on their order
      if ((before.cut_order == -1) != (placement.cut_order == -1))
        return fail(Code::invalid_argument, "mesh axes {} and {} cut dim {}, but only one of them states its order",
                    other, a, placement.dim);
      if (before.cut_order != -1 && before.cut_order == placement.cut_order)
        return fail(Code::invalid_argument, "mesh axes {} and {} cut dim {}, both as number {}", other, a,
                    placement.dim, placement.cut_order);
    }
    axes.push_back(a);
  }
  std::stable_sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) {
    return spec.placements[a].cut_order < spec.placements[b].cut_order;
  });
  return axes;
}

Result<void> check(const BlockPlacement& placement) {
  const std::size_t dims = placement.full_shape.size();
  if (placement.local_shape.size() != dims || placement.global_offset.size() != dims)
    return fail(Code::invalid_argument, "a block of shape {} at {} does not fit the dims of {}",
                to_string(placement.local_shape), to_string(placement.global_offset), to_string(placement.full_shape));
  if (auto count = element_count(placement.full_shape); !count)
    return pass_on(std::move(count));
  for (std::size_t d = 0; d < dims; ++d)
    if (placement.local_shape[d] < 0 || placement.global_offset[d] < 0 ||
        placement.local_shape[d] > placement.full_shape[d] ||
        placement.global_offset[d] > placement.full_shape[d] - placement.local_shape[d])
      return fail(Code::invalid_argument, "a block of shape {} at {} is not inside {}",
                  to_string(placement.local_shape), to_string(placement.global_offset),
                  to_string(placement.full_shape));
  return {};
}

} // namespace

Result<DerivedPlacement> derive_placement(const TensorSpec& spec, Index rank) {
  if (auto count = element_count(spec.full_shape); !count)
    return pass_on(std::move(count));
  if (spec.placements.size() != spec.mesh.size())
    return fail(Code::invalid_argument, "{} placements for a mesh of {} axes", spec.placements.size(),
                spec.mesh.size());
  auto ranks = element_count(spec.mesh);
  if (!ranks)
    return pass_on(std::move(ranks));
  if (rank < 0 || rank >= *ranks)
    return fail(Code::invalid_argument, "rank {} is not in the mesh {} of {} ranks", rank, to_string(spec.mesh),
                *ranks);
  const auto axes = cutting_order(spec);
  if (!axes)
    return tl::make_unexpected(axes.error());

  const std::vector<Index> coordinates = coordinates_of(rank, spec.mesh);
  DerivedPlacement derived;
  derived.block = {spec.full_shape, Shape(spec.full_shape.size(), 0), spec.full_shape};
  for (std::size_t axis : *axes) {
    const auto d = static_cast<std::size_t>(spec.placements[axis].dim);
    Index& length = derived.block.local_shape[d];
    const Index piece = length / spec.mesh[axis] + (length % spec.mesh[axis] == 0 ? 0 : 1);
    // Past the last piece the shard is empty and starts where the cut part ends; the product could wrap.
    const Index begin = piece == 0 || coordinates[axis] > length / piece ? length : coordinates[axis] * piece;
    derived.block.global_offset[d] += begin;
    length = std::min(piece, length - begin);
  }
  for (std::size_t a = 0; a < spec.mesh.size(); ++a)
    if (coordinates[a] != 0 && std::find(axes->begin(), axes->end(), a) == axes->end())
      derived.owner = false;
  return derived;
}

Result<void> translate_flat_indices(const BlockPlacement& placement, std::span<const Index> local,
                                    std::span<Index> out) {
  if (auto valid = check(placement); !valid)
    return valid;
  if (out.size() != local.size())
    return fail(Code::invalid_argument, "{} positions, room for {}", local.size(), out.size());
  if (local.empty())
    return {};

  // The dims from `run_dim` on, and what it takes of the dim before, are contiguous in the full tensor: a run.
  const auto elements = element_count(placement.local_shape);
  if (!elements)
    return tl::make_unexpected(elements.error());
  if (*elements == 0)
    return fail(Code::invalid_argument, "position {} is not in the shard {}, which is empty", local.front(),
                to_string(placement.local_shape));
  const std::size_t dims = placement.full_shape.size();
  const std::vector<Index> full_strides = row_major_strides(placement.full_shape);
  const std::vector<Index> local_strides = row_major_strides(placement.local_shape);
  std::size_t run_dim = dims;
  Index run = 1;
  while (run_dim > 0) {
    --run_dim;
    run *= placement.local_shape[run_dim];
    if (placement.local_shape[run_dim] != placement.full_shape[run_dim])
      break;
  }

  Index before = -1;
  Index run_end = 0; // of the run that holds the position before
  Index shift = 0;   // from local to full, within this run
  for (std::size_t i = 0; i < local.size(); ++i) {
    const Index position = local[i];
    if (position < 0 || position >= *elements)
      return fail(Code::invalid_argument, "position {} is not in the shard {} of {} elements", position,
                  to_string(placement.local_shape), *elements);
    if (position <= before)
      return fail(Code::invalid_argument, "position {} follows {}; positions must increase", position, before);
    if (position >= run_end) {
      const Index begin = position - position % run;
      Index rest = begin;
      Index full = 0;
      for (std::size_t d = 0; d < dims; ++d) {
        full += (placement.global_offset[d] + rest / local_strides[d]) * full_strides[d];
        rest %= local_strides[d];
      }
      shift = full - begin;
      run_end = begin + run;
    }
    out[i] = position + shift;
    before = position;
  }
  return {};
}

} // namespace deltawire::layout
