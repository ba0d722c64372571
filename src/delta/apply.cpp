// Pieces against memory: one look-up a run of positions, then kernels with the binding's strides.
#include "delta/apply.hpp"

#include "delta/tiles.hpp"
#include "kernels/digest.hpp"
#include "kernels/values.hpp"

namespace deltawire::delta {
namespace {

std::byte* run_start(const BoundBlock& bound, const Run& run, std::size_t size) {
  return bound.local + run.local * static_cast<layout::Index>(size);
}

/// Calls visit(run, origin, positions, index) for each run of a delta piece's changes; index counts values.
template <class Visit>
void for_each_change(Walk& walk, const PieceView& piece, Visit&& visit) {
  for_each_tile(piece, [&](std::uint64_t first, std::span<const std::uint16_t> positions, std::uint64_t base) {
    for_each_run_of(walk, first, positions,
                    [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group,
                        std::size_t index) { visit(run, origin, group, base + index); });
  });
}

} // namespace

void write_values(const BoundBlock& bound, const PieceView& piece, std::span<const std::byte> values) {
  const std::size_t size = size_of(bound.block->dtype);
  assert(values.size() == piece.changed * size);
  Walk walk(*bound.block);
  if (piece.kind == PieceKind::values) {
    for_each_stretch(bound.local, walk, piece.first, piece.elements, size,
                     [&](std::byte* memory, std::uint64_t, std::uint64_t index, std::size_t count) {
                       kernels::unpack(memory, walk.local_stride(), count, size, values.data() + index * size);
                     });
    return;
  }
  for_each_change(
    walk, piece,
    [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> positions, std::uint64_t index) {
      kernels::scatter(run_start(bound, run, size), {walk.local_stride(), origin}, positions, size,
                       values.data() + index * size);
    });
}

Digest digest_of(const BoundBlock& bound) {
  const std::size_t size = size_of(bound.block->dtype);
  Walk walk(*bound.block);
  Digest sum = 0;
  for_each_stretch(bound.local, walk, 0, walk.elements(), size,
                   [&](const std::byte* memory, std::uint64_t slot, std::uint64_t, std::size_t count) {
                     sum += kernels::digest_run(memory, walk.local_stride(), count, size, slot, walk.slot_stride());
                   });
  return sum;
}

} // namespace deltawire::delta
