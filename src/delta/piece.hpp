// Pieces: (a range of) one block with positions and values, or values only. Layout in bytes: src/wire/FORMAT.md.
//
// A piece is self-delimiting and is only ever copied whole once encoded: the encoder cuts to the piece limit, so that
// GatherQueue and FlushBucket move bytes and never re-encode. Tiles are 4096 consecutive block elements on the block's
// own grid (tile t = elements [4096 t, 4096 (t+1))); a piece's range may start and end inside a tile.
#pragma once

#include "layout/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deltawire::delta {

inline constexpr std::uint32_t tile_elements = 4096;

enum class PieceKind : std::uint8_t {
  delta = 0,  ///< changed positions and their new values
  values = 1, ///< every value of the range (seeds)
};

/// A parsed piece; spans point into the frame's payload (borrowed).
struct PieceView {
  std::uint32_t block = 0;
  PieceKind kind = PieceKind::delta;
  std::uint64_t first = 0;              ///< first block element of the range
  std::uint64_t elements = 0;           ///< length of the range
  std::uint64_t changed = 0;            ///< number of values (== elements for PieceKind::values)
  std::span<const std::byte> body;      ///< everything after the header
  std::span<const std::byte> positions; ///< delta: tile heads and codes; empty for values
  std::span<const std::byte> values;    ///< changed x element size, little-endian, in position order
  std::size_t bytes = 0;                ///< header + body
};

/// Reads only the header of the piece at the start of `bytes` and bounds-checks its length; positions and values unset.
/// For those who only copy pieces.
[[nodiscard]] Result<PieceView> peek_piece(std::span<const std::byte> bytes);

/// Reads and checks the piece at the start of `bytes` against its block: range inside the block, counts, body length,
/// every tile's codes (positions strictly increasing, inside the range, exactly as many as declared). After this
/// nothing that uses the view can leave the block.
[[nodiscard]] Result<PieceView> read_piece(std::span<const std::byte> bytes, const layout::Block& block);

/// The least piece limit with which elements of `size` bytes can be encoded (one header and one element), bytes.
[[nodiscard]] std::size_t least_piece_limit(std::size_t size) noexcept;

/// An upper bound of the encoded bytes of any range of `elements` elements of `size` bytes, cut to `piece_limit`: for
/// credit.
[[nodiscard]] std::uint64_t worst_case_bytes(std::uint64_t elements, std::size_t size,
                                             std::size_t piece_limit) noexcept;

/// What an encoder made: whole pieces, back to back; ends[i] is the end offset of piece i.
struct EncodedPieces {
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> ends;
  std::uint64_t changed = 0; ///< values in all pieces
};

/// Encodes ranges of blocks into pieces of at most `piece_limit` bytes. Reusable: take() hands out and resets.
/// Not thread-safe; one per Differ.
class PieceEncoder {
public:
  /// Requires piece_limit >= least_piece_limit(largest element size used).
  explicit PieceEncoder(std::size_t piece_limit);

  /// Starts a range of a block; ends with finish_range(). A range without changes leaves nothing behind.
  void start_range(const layout::Block& block, std::uint64_t first, std::uint64_t elements);

  /// Adds the changes of the next tile part of the range: positions relative to `first`, a block element (strictly
  /// increasing, inside one tile of the block's grid and inside the range), `values` = positions.size() elements,
  /// densely packed.
  void add_changes(std::uint64_t first, std::span<const std::uint16_t> positions, const std::byte* values);

  void finish_range();

  /// A values-only range; `values` = `elements` elements, densely packed in block order.
  void add_values(const layout::Block& block, std::uint64_t first, std::uint64_t elements, const std::byte* values);

  [[nodiscard]] EncodedPieces take();

private:
  [[nodiscard]] bool fits(std::uint64_t last, std::uint64_t changed, std::uint64_t body) const noexcept;
  [[nodiscard]] std::uint64_t body_bytes() const noexcept;
  [[nodiscard]] std::size_t count_that_fit(std::uint64_t first, std::span<const std::uint16_t> positions,
                                           std::uint16_t origin, std::uint64_t body) const noexcept;
  void close_piece();
  void append_header(PieceKind kind, std::uint64_t first, std::uint64_t elements, std::uint64_t changed,
                     std::uint64_t body);

  std::size_t piece_limit_;
  EncodedPieces out_;

  // The range.
  std::uint32_t block_ = 0;
  std::size_t size_ = 1; ///< bytes of an element
  std::uint64_t range_first_ = 0;
  std::uint64_t range_end_ = 0;

  // The piece under construction, while changed_ > 0. It begins at its first change and ends after its last.
  std::uint64_t changed_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  std::vector<std::uint16_t> heads_;
  std::vector<std::uint16_t> code_bytes_; ///< one a tile with changes
  std::vector<std::byte> codes_;
  std::vector<std::byte> values_;
};

} // namespace deltawire::delta
