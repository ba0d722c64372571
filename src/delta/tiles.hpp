// Loops that capture, delivery and apply share: tile parts of a range, the tiles of a checked delta piece, and the runs
// that a tile part's positions fall into. Templates, so that each caller's body is compiled into the loop.
#pragma once

#include "delta/piece.hpp"
#include "delta/walk.hpp"

#include <algorithm>
#include <cassert>

namespace deltawire::delta {

/// Calls visit(first, count) for each part of [first, end) that lies in one tile of the block's grid, ascending.
template <class Visit>
void for_each_tile_part(std::uint64_t first, std::uint64_t end, Visit&& visit) {
  while (first < end) {
    const std::uint64_t next = std::min(end, (first / tile_elements + 1) * tile_elements);
    visit(first, static_cast<std::size_t>(next - first));
    first = next;
  }
}

/// Calls visit(run, from, count) for each stretch of [first, first + count) that lies in one run; `from` counts from
/// `first`.
template <class Visit>
void for_each_run(Walk& walk, std::uint64_t first, std::uint64_t count, Visit&& visit) {
  for (std::uint64_t from = 0; from < count;) {
    const Run& run = walk.at(first + from);
    const std::uint64_t length = std::min(run.end, first + count) - (first + from);
    visit(run, from, static_cast<std::size_t>(length));
    from += length;
  }
}

/// Calls visit(run, origin, positions, index) for each group of positions (ascending, relative to block element
/// `first`) that lies in one run. The run begins at position `origin` (below 0 when it began before `first`); `index`
/// is the group's first index in `positions`.
template <class Visit>
void for_each_run_of(Walk& walk, std::uint64_t first, std::span<const std::uint16_t> positions, Visit&& visit) {
  for (std::size_t index = 0; index < positions.size();) {
    const Run& run = walk.at(first + positions[index]);
    const auto rest = positions.subspan(index);
    std::size_t count = rest.size();
    if (first + rest.back() >= run.end)
      count = static_cast<std::size_t>(
        std::lower_bound(rest.begin(), rest.end(), static_cast<std::uint16_t>(run.end - first)) - rest.begin());
    visit(run, static_cast<std::ptrdiff_t>(run.first - first), rest.first(count), index);
    index += count;
  }
}

/// Calls visit(memory, slot, index, count) for each run of a stretch of the block, whose elements have `size` bytes:
/// where its first element lies in memory (`local` is the base of the bound buffer) and in the slot, and its index in
/// the stretch.
template <class Visit>
void for_each_stretch(std::byte* local, Walk& walk, std::uint64_t first, std::uint64_t elements, std::size_t size,
                      Visit&& visit) {
  for_each_run(walk, first, elements, [&](const Run& run, std::uint64_t from, std::size_t count) {
    const auto inside = static_cast<layout::Index>(first + from - run.first);
    visit(local + (run.local + inside * walk.local_stride()) * static_cast<layout::Index>(size),
          static_cast<std::uint64_t>(run.slot + inside * walk.slot_stride()), from, count);
  });
}

inline constexpr std::size_t most_varint_bytes = 10;

/// Takes a LEB128 varint from the front of `bytes`; nothing when it is cut short or does not fit 64 bits.
[[nodiscard]] inline bool take_varint(std::span<const std::byte>& bytes, std::uint64_t& value) noexcept {
  value = 0;
  for (std::size_t i = 0; i < most_varint_bytes && i < bytes.size(); ++i) {
    const auto byte = std::to_integer<std::uint64_t>(bytes[i]);
    if (i == most_varint_bytes - 1 && byte > 1)
      return false;
    value |= (byte & 0x7F) << (7 * i);
    if (byte < 0x80) {
      bytes = bytes.subspan(i + 1);
      return true;
    }
  }
  return false;
}

/// Calls visit(first, span, head, record, index) for each tile part with changes of a delta piece, ascending: the part
/// is block elements [first, first + span), `index` counts the changes before it. Stops where visit returns false.
/// False then, and where heads, lengths and records of the view do not fit each other.
template <class Visit>
bool for_each_record(const PieceView& piece, Visit&& visit) {
  std::span<const std::byte> heads = piece.heads;
  std::span<const std::byte> lengths = piece.lengths;
  std::size_t at = 0; // in the records
  std::uint64_t index = 0;
  bool valid = true;
  for_each_tile_part(piece.first, piece.first + piece.elements, [&](std::uint64_t first, std::size_t span) {
    std::uint64_t number = 0;
    TileHead head;
    valid = valid && take_varint(heads, number) && unpack_head(number, piece.kind == PieceKind::ulp_delta, head);
    if (!valid || head.changes == 0)
      return;
    std::uint64_t length = piece.records.size() - at;
    if (index + head.changes != piece.changed)
      valid = take_varint(lengths, length) && length <= piece.records.size() - at;
    if (valid)
      valid = visit(first, span, head, piece.records.subspan(at, static_cast<std::size_t>(length)), index);
    at += static_cast<std::size_t>(length);
    index += head.changes;
  });
  return valid && lengths.empty() && at == piece.records.size();
}

/// Takes a record of a piece apart, checking that it is what its head says to the last bit: positions, and the ulp lane
/// where it has one. Elements have `size` bytes.
[[nodiscard]] inline bool read_record(PieceKind kind, const TileHead& head, std::span<const std::byte> record,
                                      std::size_t span, std::size_t size, TilePositions& positions, UlpValues& ulp) {
  kernels::BitReader in(record);
  if (!read_positions(head, in, span, positions.data()))
    return false;
  if (head.ulp)
    return read_ulp(head, in, size, ulp) && in.left() == 0;
  return in.align() && in.left() == (kind == PieceKind::ulp_delta ? 8 * head.changes * size : 0);
}

/// Calls visit(first, positions, index) for each tile part with changes of a delta piece that read_piece() accepted;
/// positions are relative to block element `first`, `index` is that of the first value.
template <class Visit>
void for_each_tile(const PieceView& piece, Visit&& visit) {
  TilePositions positions;
  [[maybe_unused]] const bool valid =
    for_each_record(piece, [&](std::uint64_t first, std::size_t span, const TileHead& head,
                               std::span<const std::byte> record, std::uint64_t index) {
      kernels::BitReader in(record);
      if (!read_positions(head, in, span, positions.data()))
        return false;
      visit(first, std::span<const std::uint16_t>(positions).first(head.changes), index);
      return true;
    });
  assert(valid);
}

} // namespace deltawire::delta
