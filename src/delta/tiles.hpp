// Loops that capture, delivery and apply share: tile parts of a range, the tiles of a checked delta piece, and the runs
// that a tile part's positions fall into. Templates, so that each caller's body is compiled into the loop.
#pragma once

#include "delta/piece.hpp"
#include "delta/walk.hpp"
#include "kernels/gaps.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

namespace deltawire::delta {

using TilePositions = std::array<std::uint16_t, tile_elements>;
/// Room for the values of a tile of the widest dtype.
using TileValues = std::array<std::byte, std::size_t{tile_elements} * 8>;

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

/// Calls visit(first, positions, index) for each tile part with changes of a delta piece that read_piece() accepted;
/// positions are relative to block element `first`, `index` is that of the first value.
template <class Visit>
void for_each_tile(const PieceView& piece, Visit&& visit) {
  const std::uint64_t end = piece.first + piece.elements;
  const auto tiles =
    static_cast<std::size_t>((end - 1) / tile_elements - piece.first / tile_elements + 1); // checked by read_piece
  const auto word = [&](std::size_t at) {
    std::uint16_t value;
    std::memcpy(&value, piece.positions.data() + at, sizeof(value));
    return value;
  };
  std::size_t non_empty = 0;
  for (std::size_t tile = 0; tile < tiles; ++tile)
    non_empty += word(2 * tile) != 0;

  TilePositions positions;
  std::size_t head = 0;
  std::size_t code_bytes = 2 * tiles;
  std::size_t codes = code_bytes + 2 * non_empty;
  std::uint64_t index = 0;
  for_each_tile_part(piece.first, end, [&](std::uint64_t first, std::size_t count) {
    const std::size_t changed = word(head) & 0x1FFF;
    head += 2;
    if (changed == 0)
      return;
    const std::size_t length = word(code_bytes);
    code_bytes += 2;
    [[maybe_unused]] const bool valid =
      kernels::decode_gaps(piece.positions.subspan(codes, length), changed, count, positions.data());
    assert(valid);
    codes += length;
    visit(first, std::span<const std::uint16_t>(positions).first(changed), index);
    index += changed;
  });
}

} // namespace deltawire::delta
