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

/// Calls visit(memory, slot, index, count) for each run of a stretch of the block: where its first element lies in
/// memory and in the slot, and its index in the stretch.
template <class Visit>
void for_each_stretch(const BoundBlock& bound, Walk& walk, std::uint64_t first, std::uint64_t elements,
                      std::size_t size, Visit&& visit) {
  for_each_run(walk, first, elements, [&](const Run& run, std::uint64_t from, std::size_t count) {
    const auto inside = static_cast<layout::Index>(first + from - run.first);
    visit(run_start(bound, run, size) + inside * walk.local_stride() * static_cast<layout::Index>(size),
          static_cast<std::uint64_t>(run.slot + inside * walk.slot_stride()), from, count);
  });
}

} // namespace

void stage_values(const BoundBlock& bound, const PieceView& piece, std::span<std::byte> values) {
  assert(piece.kind == PieceKind::ulp_delta);
  const DType dtype = bound.block->dtype;
  const std::size_t size = size_of(dtype);
  assert(values.size() == piece.changed * size);
  Walk walk(*bound.block);
  TilePositions positions;
  UlpValues ulp;
  [[maybe_unused]] const bool valid =
    for_each_record(piece, [&](std::uint64_t first, std::size_t span, const TileHead& head,
                               std::span<const std::byte> record, std::uint64_t index) {
      kernels::BitReader in(record);
      std::byte* out = values.data() + index * size;
      if (!read_positions(head, in, span, positions.data()))
        return false;
      if (!head.ulp) {
        const std::size_t bytes = head.changes * size;
        std::memcpy(out, record.last(bytes).data(), bytes);
        return true;
      }
      if (!read_ulp(head, in, size, ulp))
        return false;
      for_each_run_of(
        walk, first, std::span<const std::uint16_t>(positions).first(head.changes),
        [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group, std::size_t at) {
          kernels::gather(run_start(bound, run, size), {walk.local_stride(), origin}, group, size, out + at * size);
        });
      add_ulp(ulp, head.changes, dtype, out);
      return true;
    });
  assert(valid);
}

Digest digest_change(const BoundBlock& bound, const PieceView& piece, std::span<const std::byte> values) {
  const std::size_t size = size_of(bound.block->dtype);
  assert(values.size() == piece.changed * size);
  Walk walk(*bound.block);
  Digest change = 0;
  if (piece.kind == PieceKind::values) {
    for_each_stretch(bound, walk, piece.first, piece.elements, size,
                     [&](const std::byte* memory, std::uint64_t slot, std::uint64_t index, std::size_t count) {
                       change +=
                         kernels::digest_run(values.data() + index * size, 1, count, size, slot, walk.slot_stride());
                       change -=
                         kernels::digest_run(memory, walk.local_stride(), count, size, slot, walk.slot_stride());
                     });
    return change;
  }
  TileValues before;
  for_each_change(
    walk, piece,
    [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> positions, std::uint64_t index) {
      kernels::gather(run_start(bound, run, size), {walk.local_stride(), origin}, positions, size, before.data());
      change += kernels::digest_change_at(static_cast<std::uint64_t>(run.slot), {walk.slot_stride(), origin}, positions,
                                          size, before.data(), values.data() + index * size);
    });
  return change;
}

void exchange(const BoundBlock& bound, const PieceView& piece, std::span<std::byte> values) {
  const std::size_t size = size_of(bound.block->dtype);
  assert(values.size() == piece.changed * size);
  Walk walk(*bound.block);
  if (piece.kind == PieceKind::values) {
    for_each_stretch(bound, walk, piece.first, piece.elements, size,
                     [&](std::byte* memory, std::uint64_t, std::uint64_t index, std::size_t count) {
                       kernels::exchange_run(memory, walk.local_stride(), count, size, values.data() + index * size);
                     });
    return;
  }
  for_each_change(
    walk, piece,
    [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> positions, std::uint64_t index) {
      kernels::exchange(run_start(bound, run, size), {walk.local_stride(), origin}, positions, size,
                        values.data() + index * size);
    });
}

void write_values(const BoundBlock& bound, const PieceView& piece, std::span<const std::byte> values) {
  const std::size_t size = size_of(bound.block->dtype);
  assert(values.size() == piece.changed * size);
  Walk walk(*bound.block);
  if (piece.kind == PieceKind::values) {
    for_each_stretch(bound, walk, piece.first, piece.elements, size,
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
  for_each_stretch(bound, walk, 0, walk.elements(), size,
                   [&](const std::byte* memory, std::uint64_t slot, std::uint64_t, std::size_t count) {
                     sum += kernels::digest_run(memory, walk.local_stride(), count, size, slot, walk.slot_stride());
                   });
  return sum;
}

} // namespace deltawire::delta
