// A block in a worker's memory, and what is done to it without a stage: written by a seed, and read whole. Pure
// functions; the Applier calls them. Changes that can be undone are stage.hpp's.
#pragma once

#include "delta/digest.hpp"
#include "delta/piece.hpp"

namespace deltawire::delta {

/// A block as a worker's parameter holds it. `local` is the base of the bound buffer (block->local_* apply, elements).
struct BoundBlock {
  const layout::Block* block = nullptr;
  std::byte* local = nullptr;
};

/// Writes `values` (piece.changed elements, densely packed) over memory at the places of a piece that read_piece()
/// accepted for the block. No undo: for seeding a worker that serves nothing.
void write_values(const BoundBlock& bound, const PieceView& piece, std::span<const std::byte> values);

/// Digest of the whole block, read from memory.
[[nodiscard]] Digest digest_of(const BoundBlock& bound);

} // namespace deltawire::delta
