// Capture and delivery on the owner's side, one range of one block at a time. Pure functions over memory: the Differ
// calls them on its own thread; ranges of different calls are disjoint.
#pragma once

#include "delta/digest.hpp"
#include "delta/piece.hpp"
#include "delta/position_log.hpp"
#include "kernels/diff.hpp"

#include <optional>

namespace deltawire::delta {

/// A block in a rank's memory. `local` is the base of the parameter's local buffer (the block's local_offset and
/// strides apply, elements). `snapshot` holds the block's elements densely in block order, in the block's dtype.
struct OwnedBlock {
  const layout::Block* block = nullptr;
  const std::byte* local = nullptr;
  std::byte* snapshot = nullptr;
  std::optional<kernels::Cast> cast{}; ///< from memory to the block's dtype; nothing: memory has it
};

/// From memory of dtype `held` to a block of dtype `wire`. Requires layout::casts_to(held, wire).
[[nodiscard]] std::optional<kernels::Cast> cast_between(DType held, DType wire) noexcept;

struct Captured {
  std::uint64_t changed = 0;
  Digest digest_change = 0; ///< add to the digest of the block's cell
};

/// Compares [first, first + count), cast, with the snapshot bit by bit, refreshes the snapshot, logs the changed
/// positions, and encodes positions and values when `encoder` is given (else the log is all there is; see
/// encode_logged). Values may be written as differences to the capture before: what is encoded here may go only to
/// those who hold that one.
[[nodiscard]] Captured capture_changes(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count,
                                       PieceEncoder* encoder, PositionLog& log);

/// The same for a part of one tile of the block's grid whose values, in the block's dtype, lie densely at `now`, into
/// the log only.
[[nodiscard]] Captured capture_tile(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count,
                                    const std::byte* now, PositionLog& log);

/// First capture of a range: copies it into the snapshot, cast. digest_change = the digest of all its elements, changed
/// = count.
[[nodiscard]] Captured capture_all(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count);

/// Digest of [first, first + count) as the snapshot holds it, read anew.
[[nodiscard]] Digest digest_of_snapshot(const layout::Block& block, const std::byte* snapshot, std::uint64_t first,
                                        std::uint64_t count);

/// Encodes the logged positions of a range with values read from the snapshot: absolute ones, since the log may span
/// several captures and what was there before is gone.
void encode_logged(const layout::Block& block, const std::byte* snapshot, std::uint64_t first, std::uint64_t count,
                   const PositionLog& log, PieceEncoder& encoder);

/// Encodes every value of a range from the snapshot.
void encode_all(const layout::Block& block, const std::byte* snapshot, std::uint64_t first, std::uint64_t count,
                PieceEncoder& encoder);

} // namespace deltawire::delta
