// Pieces: (a range of) one block with positions and values, or values only. Layout in bytes: src/wire/FORMAT.md.
//
// A piece is self-delimiting and is only ever copied whole once encoded: the encoder cuts to the piece limit, so that
// GatherQueue and FlushBucket move bytes and never re-encode. Tiles are 4096 consecutive block elements on the block's
// own grid (tile t = elements [4096 t, 4096 (t+1))); a piece's range may start and end inside a tile.
#pragma once

#include "delta/compression.hpp"
#include "delta/encoding.hpp"
#include "delta/tile_record.hpp"
#include "layout/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace deltawire::delta {

enum class PieceKind : std::uint8_t {
  delta = 0,      ///< changed positions and their new values
  values = 1,     ///< every value of the range (seeds, and changes that are not smaller)
  ulp_delta = 2,  ///< changed positions; values of some tiles as differences to the base
  compressed = 3, ///< the body of one of the others, by zstd
};

/// A parsed piece; spans point into the frame's payload (borrowed), those of a body that was compressed into the
/// Expander.
struct PieceView {
  std::uint32_t block = 0;
  PieceKind kind = PieceKind::delta;
  std::uint64_t first = 0;            ///< first block element of the range
  std::uint64_t elements = 0;         ///< length of the range
  std::uint64_t changed = 0;          ///< number of values (== elements for PieceKind::values)
  std::span<const std::byte> body;    ///< everything after the header
  std::span<const std::byte> heads;   ///< deltas: varints, one a tile
  std::span<const std::byte> lengths; ///< deltas: varints
  std::span<const std::byte> records; ///< deltas
  /// changed x element size, little-endian, in position order; empty for ulp_delta, whose records hold them.
  std::span<const std::byte> values;
  std::size_t bytes = 0; ///< header + body
};

/// Reads only tag and lengths of the piece at the start of `bytes`, and checks that it ends there or before: block,
/// kind (which may be `compressed`), body and bytes are set. For those who only copy pieces.
[[nodiscard]] Result<PieceView> peek_piece(std::span<const std::byte> bytes);

/// Reads and checks the piece at the start of `bytes` against its block: range inside the block, counts, body length,
/// every tile's record (positions strictly increasing, inside the range, exactly as many as declared; values to the
/// last bit). After this nothing that uses the view can leave the block. The body of a compressed piece is expanded
/// first, and the view is of the kind that was compressed; without an expander such a piece is refused.
[[nodiscard]] Result<PieceView> read_piece(std::span<const std::byte> bytes, const layout::Block& block,
                                           Expander* expander = nullptr);

/// The same without a look into the records: for those who check each of them when they decode it, once (Stage::add).
[[nodiscard]] Result<PieceView> open_piece(std::span<const std::byte> bytes, const layout::Block& block,
                                           Expander* expander = nullptr);

/// What is said of a record that is not what its head says: of the tile part that begins at block element `first`.
[[nodiscard]] Failure bad_record(const PieceView& piece, std::uint64_t first);

/// The least piece limit with which elements of `size` bytes can be encoded (one header and one element), bytes.
[[nodiscard]] std::size_t least_piece_limit(std::size_t size) noexcept;

/// An upper bound of the encoded bytes of any range of `elements` elements of `size` bytes, cut to `piece_limit`: for
/// credit.
[[nodiscard]] std::uint64_t worst_case_bytes(std::uint64_t elements, std::size_t size,
                                             std::size_t piece_limit) noexcept;

/// An upper bound of how often encoding a range of `elements` > 0 elements of `size` bytes cuts a piece at the limit.
[[nodiscard]] std::uint64_t most_cuts(std::uint64_t elements, std::size_t size, std::size_t piece_limit) noexcept;

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
  /// Requires piece_limit >= least_piece_limit(largest element size used), and at most most_plain_bytes of it where
  /// pieces are compressed.
  explicit PieceEncoder(std::size_t piece_limit, Encoding encoding = {});

  /// Starts a range of a block; ends with finish_range(). A range without changes leaves nothing behind.
  /// `dense`, if given, holds the whole block's new values in block order; those of a tile are read from its
  /// add_changes() on, until finish_range(). With it no piece is larger than all the values of its range.
  void start_range(const layout::Block& block, std::uint64_t first, std::uint64_t elements,
                   const std::byte* dense = nullptr);
  /// The same, with `dense` asked for once they are needed, at most once: where they must be fetched from afar.
  void start_range(const layout::Block& block, std::uint64_t first, std::uint64_t elements,
                   std::function<const std::byte*()> dense);

  /// Adds the changes of the next tile part of the range: positions relative to `first`, a block element (strictly
  /// increasing, inside one tile of the block's grid and inside the range), `values` = positions.size() elements,
  /// densely packed. `before`, if given, are as many elements: what the receiver holds, which is the directly preceding
  /// capture; only then may values be written as differences.
  void add_changes(std::uint64_t first, std::span<const std::uint16_t> positions, const std::byte* values,
                   const std::byte* before = nullptr);

  void finish_range();

  /// A values-only range; `values` = `elements` elements, densely packed in block order.
  void add_values(const layout::Block& block, std::uint64_t first, std::uint64_t elements, const std::byte* values);

  [[nodiscard]] EncodedPieces take();

private:
  struct Framing;

  /// Changes of the open tile part that are not in a piece yet, positions relative to `part`.
  struct Rest {
    std::uint64_t part = 0;
    std::uint64_t end = 0;
    std::span<const std::uint16_t> positions;
    const std::byte* values = nullptr;
    const std::byte* before = nullptr;
  };

  /// What of it the open piece has room for.
  struct Fit {
    std::size_t count = 0;
    std::uint64_t end = 0;
    bool cut = false;
    TileEncoder::Plan plan;
  };

  [[nodiscard]] Framing frame(std::uint64_t first, std::uint64_t end, std::uint64_t body,
                              PieceKind kind) const noexcept;
  [[nodiscard]] TileEncoder::Plan plan(const Rest& rest, std::uint64_t end);
  [[nodiscard]] bool fits(const TileEncoder::Plan& plan, std::uint64_t skipped, std::uint64_t end) const noexcept;
  [[nodiscard]] Fit fit(const Rest& rest, std::uint64_t skipped);
  void append_tile(const TileEncoder::Plan& plan, std::uint64_t skipped, std::uint64_t end, const std::byte* values);
  [[nodiscard]] std::uint64_t body_bytes(bool ulp) const noexcept;
  [[nodiscard]] bool has_dense() const noexcept { return dense_ != nullptr || fetch_dense_; }
  [[nodiscard]] const std::byte* dense();
  void close_piece();
  void append_delta(std::uint64_t lead, std::uint64_t trail);
  template <class WriteBody>
  void append_piece(PieceKind kind, const Framing& framing, std::uint64_t body, std::size_t values,
                    WriteBody&& write_body);
  void append_tag(PieceKind kind, const Framing& framing);
  void compress_piece(std::size_t begin, PieceKind kind, const Framing& framing, std::size_t body, std::size_t values);
  void append_bytes(std::span<const std::byte> bytes);

  std::size_t piece_limit_;
  Encoding encoding_;
  TileEncoder tile_encoder_;
  std::optional<Compressor> compressor_;
  EncodedPieces out_;

  // The range.
  std::uint32_t block_ = 0;
  DType dtype_ = DType::u8;
  std::size_t size_ = 1; ///< bytes of an element
  std::uint64_t block_elements_ = 0;
  std::uint64_t range_first_ = 0;
  std::uint64_t range_end_ = 0;
  std::uint64_t done_ = 0; ///< changes before this element are in a piece
  const std::byte* dense_ = nullptr;
  std::function<const std::byte*()> fetch_dense_; ///< makes dense_, if it is needed

  // The piece under construction, while changed_ > 0: whole tile parts, unless it was cut in the last one.
  struct Tile {
    std::uint32_t record = 0; ///< bytes in records_
    std::uint32_t values = 0; ///< bytes in values_
  };
  std::uint64_t changed_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t end_ = 0;
  bool ulp_ = false; ///< some tile's values are in the ulp lane
  std::vector<TileHead> heads_;
  std::vector<Tile> tiles_;       ///< those with changes
  std::uint64_t delta_index_ = 0; ///< bytes of the heads and of the lengths of all but the last, in a delta
  std::uint64_t ulp_index_ = 0;   ///< and in an ulp delta, where values are part of the record
  std::vector<std::byte> records_;
  std::vector<std::byte> values_;
};

} // namespace deltawire::delta
