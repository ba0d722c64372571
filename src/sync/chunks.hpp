// How a rank's blocks are cut into chunks under the caps, how large a piece may be, and where the snapshot of each
// block lies. Pure: what starts a session and what plans one see the same.
#pragma once

#include "layout/plan.hpp"
#include "result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deltawire::sync {

/// Blocks of a snapshot begin at multiples of this, bytes.
inline constexpr std::size_t snapshot_alignment = 64;

/// A chunk is never larger, wire bytes, whatever the topology says.
inline constexpr std::uint64_t largest_chunk = 256ull << 20;

/// A range of one block.
struct ChunkRange {
  std::uint32_t block = 0; ///< index into the rank's blocks
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

/// The unit of work: ranges of blocks of one window, in walk order.
struct Chunk {
  std::vector<ChunkRange> ranges;
  std::uint32_t window = 0;
  std::uint64_t worst_case = 0; ///< encoded bytes
};

/// A rank's blocks, cut.
struct Chunks {
  std::vector<Chunk> chunks;
  std::uint64_t elements = 0;
  std::vector<std::size_t> snapshot_offsets; ///< by block
  std::size_t snapshot_bytes = 0;
};

/// Bytes of the largest element of any slot; at least 1.
[[nodiscard]] std::size_t largest_element(std::span<const layout::SlotSpec> slots) noexcept;

/// The largest piece that fits every cap on its way, bytes; fails with the cap that is too small and the least that
/// works for elements of `largest` bytes. `flush_cap` counts the frame, header included. Where pieces are compressed
/// they are no larger than a reader expands at a time.
[[nodiscard]] Result<std::size_t> piece_limit(std::uint64_t inflight, std::uint64_t max_round, std::uint64_t flush_cap,
                                              std::size_t largest, bool compressed = false);

/// The most elements of `size` bytes that a chunk of `chunk_bytes` takes of one block: their worst case fits
/// `inflight`, and they are whole tiles where there is room for one. `piece_limit` is what piece_limit() said.
[[nodiscard]] std::uint64_t chunk_elements(std::size_t size, std::uint64_t chunk_bytes, std::uint64_t inflight,
                                           std::size_t piece_limit) noexcept;

/// What a block takes of a snapshot, its alignment included.
[[nodiscard]] std::size_t snapshot_bytes(const layout::Block& block) noexcept;

/// Cuts the blocks, in their order. A chunk holds at most `chunk_bytes` of wire bytes and has a worst case of at most
/// `inflight` (one element always fits, if piece_limit() said so).
[[nodiscard]] Chunks cut_chunks(std::span<const layout::Block> blocks, std::uint64_t chunk_bytes,
                                std::uint64_t inflight, std::size_t piece_limit);

} // namespace deltawire::sync
