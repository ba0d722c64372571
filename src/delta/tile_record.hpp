// Heads and records: the changes of one tile part, in bytes (src/wire/FORMAT.md, "Body of kinds delta and ulp delta").
// Positions count from the start of the tile part.
#pragma once

#include "delta/encoding.hpp"
#include "deltawire/dtype.hpp"
#include "kernels/bits.hpp"
#include "kernels/ulp.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deltawire::delta {

inline constexpr std::uint32_t tile_elements = 4096;

using TilePositions = std::array<std::uint16_t, tile_elements>;
/// Room for the values of a tile of the widest dtype.
using TileValues = std::array<std::byte, std::size_t{tile_elements} * 8>;

/// How the bits of a dtype are ordered for differences.
[[nodiscard]] kernels::UlpOrder ulp_order(DType dtype) noexcept;

/// A tile part's head, taken apart.
struct TileHead {
  std::size_t changes = 0; ///< 0: nothing else counts
  PositionCodec codec = PositionCodec::gaps_u8;
  bool ulp = false; ///< values are in the ulp lane of the record
};

inline constexpr std::uint32_t empty_head = 0;
/// Heads past this name codec and lane.
inline constexpr std::uint32_t named_heads = tile_elements;

/// Heads of a kind do not name the way that most of its tiles are in.
[[nodiscard]] constexpr bool is_usual(PositionCodec codec, bool ulp, bool ulp_piece) noexcept {
  return codec == PositionCodec::rice && ulp == ulp_piece;
}

/// The head's number in a piece of kind ulp delta (`ulp_piece`) or delta. A number is one head's and a head has one.
[[nodiscard]] constexpr std::uint32_t pack_head(const TileHead& head, bool ulp_piece) noexcept {
  const auto changes = static_cast<std::uint32_t>(head.changes);
  if (changes == 0 || is_usual(head.codec, head.ulp, ulp_piece))
    return changes;
  return named_heads + 16 * changes + (head.ulp ? 8 : 0) + static_cast<std::uint32_t>(head.codec);
}

/// False for a number that is no head's.
[[nodiscard]] constexpr bool unpack_head(std::uint64_t number, bool ulp_piece, TileHead& head) noexcept {
  if (number <= tile_elements) { // 0: no changes
    head = {static_cast<std::size_t>(number), PositionCodec::rice, ulp_piece && number != 0};
    return true;
  }
  const std::uint64_t changes = (number - named_heads) / 16;
  const auto codec = static_cast<PositionCodec>(number & 7);
  const bool ulp = (number & 8) != 0;
  if (changes == 0 || changes > tile_elements || (number & 7) >= position_codecs || is_usual(codec, ulp, ulp_piece))
    return false;
  head = {static_cast<std::size_t>(changes), codec, ulp};
  return true;
}

/// Bytes of a LEB128 varint.
[[nodiscard]] constexpr std::size_t varint_bytes(std::uint64_t value) noexcept {
  return static_cast<std::size_t>(std::bit_width(value | 1) + 6) / 7;
}

/// The values of one tile part in the ulp lane, read from a record; `full` is borrowed from it.
struct UlpValues {
  std::array<std::uint64_t, tile_elements / 64> signs;
  std::array<std::uint16_t, tile_elements> exceptions;
  std::array<std::uint16_t, tile_elements> magnitudes; ///< too_large: the next of `full`
  std::size_t exception_count = 0;
  std::span<const std::byte> full;

  static constexpr std::uint16_t too_large = 0xFFFF;
};

/// Takes the positions off the front of a record: head.changes of them, strictly increasing, below `span`. False where
/// the bytes are no such code.
[[nodiscard]] bool read_positions(const TileHead& head, kernels::BitReader& record, std::size_t span,
                                  std::uint16_t* positions) noexcept;

/// Takes the ulp lane of head.changes elements of `size` bytes off a record after its positions. False where the bytes
/// are none.
[[nodiscard]] bool read_ulp(const TileHead& head, kernels::BitReader& record, std::size_t size,
                            UlpValues& ulp) noexcept;

/// Makes the `count` elements of `values`, the base's, those that the lane stands for.
void add_ulp(const UlpValues& ulp, std::size_t count, DType dtype, std::byte* values) noexcept;

/// Encodes one tile part after the other: plan() finds the smallest way, write() writes it. Not thread-safe.
class TileEncoder {
public:
  explicit TileEncoder(Encoding encoding) : encoding_(encoding) {}

  struct Plan {
    TileHead head;
    std::size_t record_bytes = 0; ///< without raw values
    std::size_t value_bytes = 0;  ///< that stand beside the record, raw; 0 in the ulp lane
    [[nodiscard]] std::size_t bytes() const noexcept { return record_bytes + value_bytes; }
  };

  /// `positions` (not empty) are strictly increasing and below `span`; `values` and `before` are as many elements,
  /// densely packed, `before` null where the base is not at hand. Borrowed until write().
  [[nodiscard]] Plan plan(std::span<const std::uint16_t> positions, std::size_t span, DType dtype,
                          const std::byte* values, const std::byte* before);

  /// Appends the record of the last plan.
  void write(std::vector<std::byte>& out);

private:
  struct PositionSize {
    PositionCodec codec = PositionCodec::gaps_u8;
    std::size_t bits = 0;
    [[nodiscard]] std::size_t bytes() const noexcept { return (bits + 7) / 8; }
  };

  /// Of a Rice code.
  struct RiceParameter {
    unsigned value = 0;
    bool expected = true;
  };

  [[nodiscard]] std::size_t head_bytes(PositionCodec codec) const noexcept;
  void size_positions(std::size_t span);
  void size_ulp(DType dtype, const std::byte* values, const std::byte* before);
  [[nodiscard]] static std::size_t size_rice(std::span<const std::uint16_t> gaps, std::size_t span,
                                             RiceParameter& parameter) noexcept;
  static void write_parameter(RiceParameter parameter, kernels::BitWriter& out) noexcept;
  void write_ulp(kernels::BitWriter& bits);

  Encoding encoding_;

  // The last plan.
  Plan plan_;
  std::span<const std::uint16_t> positions_;
  std::size_t span_ = 0;
  std::size_t size_ = 0;
  const std::byte* values_ = nullptr;
  std::array<PositionSize, 2> candidates_{}; ///< the smallest in whole bytes, and Rice, which values follow bit by bit
  std::size_t candidate_count_ = 0;
  TilePositions gaps_;
  RiceParameter rice_;

  // The ulp lane of it.
  std::size_t ulp_bits_ = 0;
  std::size_t ulp_bytes_ = 0;
  UlpValues ulp_;
  TilePositions exception_gaps_;
  TilePositions large_; ///< of the exceptions, those whose magnitude takes a byte and more
  std::size_t large_count_ = 0;
  RiceParameter which_;

  std::vector<std::byte> scratch_;
};

} // namespace deltawire::delta
