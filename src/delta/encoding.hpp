// What encoders may choose from. Readers take whatever a piece says.
#pragma once

#include <cstdint>
#include <optional>

namespace deltawire::delta {

/// How a tile's positions are written; the numbers are those of FORMAT.md.
enum class PositionCodec : std::uint8_t {
  gaps_u8 = 0,
  gaps_u16 = 1,
  rice = 2,
  bitmap = 3,
  run = 4,
  dense = 5, ///< every element of the tile part; to force it sends unchanged values too
};

inline constexpr unsigned position_codecs = 6;

struct Encoding {
  /// Nothing: the smallest of each tile. A forced codec gives way where it would take more than a byte an element of
  /// the tile part, so that what pieces can take stays bounded.
  std::optional<PositionCodec> positions;
  /// May values be written as differences in ulp order, where that is smaller and the base is at hand?
  bool ulp = true;
  /// Are pieces compressed that get smaller by it? Requires can_compress() (compression.hpp).
  bool compress = false;
};

} // namespace deltawire::delta
