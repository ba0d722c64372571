#include "layout/block_placement.hpp"

#include <algorithm>
#include <bit>

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

/// Positions are checked, then translated, so many at a time: they stay in the first cache between the two.
constexpr std::size_t chunk = 1024;

/// Fails on the first position that does not follow the one before it, or that the shard does not have.
Result<void> check_positions(std::span<const Index> local, Index before, Index elements, const Shape& shape) {
  // The sign of the sum of all signs: no comparisons and no exit, so that it is vectorised on any machine. No
  // difference of two numbers that are not negative wraps.
  const auto first = static_cast<std::uint64_t>(local.front());
  std::uint64_t signs = (first - static_cast<std::uint64_t>(before) - 1) | first;
  for (std::size_t i = 1; i < local.size(); ++i) {
    const auto position = static_cast<std::uint64_t>(local[i]);
    signs |= (position - static_cast<std::uint64_t>(local[i - 1]) - 1) | position;
  }
  if (static_cast<std::int64_t>(signs) >= 0 && local.back() < elements)
    return {};
  for (const Index position : local) {
    if (position < 0 || position >= elements)
      return fail(Code::invalid_argument, "position {} is not in the shard {} of {} elements", position,
                  to_string(shape), elements);
    if (position <= before)
      return fail(Code::invalid_argument, "position {} follows {}; positions must increase", position, before);
    before = position;
  }
  return {};
}

/// n / divisor for 0 <= n < 2^62, by one multiplication with the divisor's reciprocal, rounded up (Granlund and
/// Montgomery, "Division by invariant integers using multiplication", 1994, theorem 4.2).
class Quotient {
public:
  explicit Quotient(Index divisor)
    : shift_(std::bit_width(static_cast<std::uint64_t>(divisor) - 1)),
      factor_(static_cast<std::uint64_t>((Wide{1} << (62 + shift_)) / static_cast<std::uint64_t>(divisor)) + 1) {}

  [[nodiscard]] Index of(Index n) const noexcept {
    // Of four times n, so that the upper half is n * factor / 2^62.
    const Wide product = Wide{static_cast<std::uint64_t>(n) << 2} * factor_;
    return static_cast<Index>(static_cast<std::uint64_t>(product >> 64) >> shift_);
  }

private:
  __extension__ using Wide = unsigned __int128;

  int shift_;
  std::uint64_t factor_;
};

/// A shard as runs of elements that are contiguous in the full tensor too, all of one length: the dims from some dim
/// on, and what the shard takes of that dim. Requires a shard with elements.
class Runs {
public:
  explicit Runs(const BlockPlacement& placement) {
    const std::vector<Index> strides = row_major_strides(placement.full_shape);
    std::size_t dim = placement.full_shape.size();
    while (dim > 0) {
      --dim;
      length_ *= placement.local_shape[dim];
      if (placement.local_shape[dim] != placement.full_shape[dim])
        break;
    }
    for (std::size_t d = 0; d < placement.full_shape.size(); ++d)
      first_ += placement.global_offset[d] * strides[d];
    for (std::size_t d = dim; d-- > 0;) // the innermost first; whole dims continue the dim before them
      if (!outer_.empty() && strides[d] == outer_.back().stride * outer_.back().extent)
        outer_.back().extent *= placement.local_shape[d];
      else
        outer_.push_back({placement.local_shape[d], strides[d], Quotient(1)});
    for (Outer& outer : outer_)
      outer.quotient = Quotient(outer.extent);
    run_of_ = Quotient(length_);
  }

  /// Requires positions of the shard, ascending.
  void translate(std::span<const Index> local, std::span<Index> out) const noexcept {
    if (outer_.empty())
      return add(local, first_, out);
    const Index runs = run_of_.of(local.back()) - run_of_.of(local.front());
    if (runs < static_cast<Index>(local.size() / dense))
      return walk(local, out);
    // Copies of all numbers: `out` might lie over those of this object, as far as the compiler can tell.
    const Quotient run_of = run_of_;
    const Index length = length_;
    const Index first = first_;
    const Outer inner = outer_.front();
    if (outer_.size() == 1) {
      const Index step = inner.stride - length; // a run further moves a position by so much more
      for (std::size_t i = 0; i < local.size(); ++i)
        out[i] = local[i] + first + run_of.of(local[i]) * step;
    } else if (outer_.size() == 2) {
      const Index step = inner.stride - length;
      const Index next_step = outer_.back().stride - inner.extent * inner.stride;
      for (std::size_t i = 0; i < local.size(); ++i) {
        const Index run = run_of.of(local[i]);
        out[i] = local[i] + first + run * step + inner.quotient.of(run) * next_step;
      }
    } else {
      for (std::size_t i = 0; i < local.size(); ++i)
        out[i] = local[i] + shift_of(run_of.of(local[i]));
    }
  }

private:
  struct Outer {
    Index extent;
    Index stride; ///< in the full tensor
    Quotient quotient;
  };

  /// Positions a run from which on it is cheaper to compare each with the run's end than to compute the run of each.
  static constexpr std::size_t dense = 8;

  static void add(std::span<const Index> local, Index shift, std::span<Index> out) noexcept {
    for (std::size_t i = 0; i < local.size(); ++i)
      out[i] = local[i] + shift;
  }

  /// From a position in this run to its position in the full tensor.
  [[nodiscard]] Index shift_of(Index run) const noexcept {
    Index full = first_ - run * length_;
    for (std::size_t d = 0; d + 1 < outer_.size(); ++d) {
      const Index next = outer_[d].quotient.of(run);
      full += (run - next * outer_[d].extent) * outer_[d].stride;
      run = next;
    }
    return full + run * outer_.back().stride;
  }

  void walk(std::span<const Index> local, std::span<Index> out) const noexcept {
    for (std::size_t i = 0; i < local.size();) {
      const Index run = run_of_.of(local[i]);
      const Index run_end = (run + 1) * length_;
      const Index shift = shift_of(run);
      for (; i < local.size() && local[i] < run_end; ++i)
        out[i] = local[i] + shift;
    }
  }

  Index length_ = 1;
  Index first_ = 0;          ///< the shard's first element in the full tensor
  std::vector<Outer> outer_; ///< runs: innermost first
  Quotient run_of_{1};
};

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
  const auto elements = element_count(placement.local_shape);
  if (!elements)
    return tl::make_unexpected(elements.error());
  if (*elements == 0)
    return fail(Code::invalid_argument, "position {} is not in the shard {}, which is empty", local.front(),
                to_string(placement.local_shape));
  const Runs runs(placement);
  Index before = -1;
  for (std::size_t begin = 0; begin < local.size(); begin += chunk) {
    const auto part = local.subspan(begin, std::min(chunk, local.size() - begin));
    if (auto valid = check_positions(part, before, *elements, placement.local_shape); !valid)
      return valid;
    runs.translate(part, out.subspan(begin, part.size()));
    before = part.back();
  }
  return {};
}

} // namespace deltawire::layout
