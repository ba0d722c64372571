// Pieces against a worker's memory, one piece and one binding at a time. Pure functions; the Applier calls them.
// Requires pieces that read_piece() accepted for binding.block.
#pragma once

#include "delta/digest.hpp"
#include "delta/piece.hpp"

namespace deltawire::delta {

/// A block as a worker's parameter holds it. `local` is the base of the bound buffer (block->local_* apply, elements).
struct BoundBlock {
  const layout::Block* block = nullptr;
  std::byte* local = nullptr;
};

/// The values that an ulp delta stands for, given that memory holds its base: `values` (piece.changed elements, densely
/// packed). Reads memory, writes only `values`.
void stage_values(const BoundBlock& bound, const PieceView& piece, std::span<std::byte> values);

/// What the cell's digest would change by if `values` (piece.changed elements, densely packed) were written over
/// memory: sum of mix(new) - mix(old). Reads memory, writes nothing.
[[nodiscard]] Digest digest_change(const BoundBlock& bound, const PieceView& piece, std::span<const std::byte> values);

/// Exchanges `values` with memory at the piece's positions: afterwards memory holds the new values and `values` the old
/// ones (the undo log). Called again it undoes itself.
void exchange(const BoundBlock& bound, const PieceView& piece, std::span<std::byte> values);

/// Writes the piece's values over memory (no undo: seeding a worker that serves nothing).
void write_values(const BoundBlock& bound, const PieceView& piece, std::span<const std::byte> values);

/// Digest of the whole block, read from memory.
[[nodiscard]] Digest digest_of(const BoundBlock& bound);

} // namespace deltawire::delta
