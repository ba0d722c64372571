// The position codec "u8 gaps": one byte a position, the distance to the previous one less 1 (the first: the distance
// from the start of the tile part); byte 255 means "skip 255 and read on".
// CPU kernels. No allocation, no failure; reentrant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// The escapes that a gap costs, bytes. An escape stands for 255 elements without a position, so that the codes of a
/// stretch are never more bytes than the stretch has elements.
[[nodiscard]] constexpr std::size_t gap_escapes(std::size_t gap) noexcept {
  return gap / 255;
}

/// Encodes positions (strictly increasing, the first >= origin) relative to `origin`. Returns the bytes written, at
/// most last position - origin + 1.
std::size_t encode_gaps(std::span<const std::uint16_t> positions, std::uint16_t origin, std::byte* out) noexcept;

/// Decodes exactly `count` >= 1 positions, each < span, from the front of untrusted codes. Returns the bytes that they
/// took; 0 (positions unspecified, never more than `count` written) where the codes do not yield them.
[[nodiscard]] std::size_t decode_gaps(std::span<const std::byte> codes, std::size_t count, std::size_t span,
                                      std::uint16_t* positions) noexcept;

} // namespace deltawire::kernels
