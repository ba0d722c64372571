// fp32 to and from bf16 and fp16, one element at a time, in integers: the reference of the vector casts (rules:
// kernels/diff.hpp).
#pragma once

#include <bit>
#include <cstdint>

namespace deltawire::kernels {

inline constexpr std::uint32_t fp32_magnitude = 0x7FFF'FFFFu;
inline constexpr std::uint32_t fp32_infinity = 0x7F80'0000u;

[[nodiscard]] constexpr std::uint16_t bf16_of(std::uint32_t fp32) noexcept {
  if ((fp32 & fp32_magnitude) > fp32_infinity)
    return static_cast<std::uint16_t>(fp32 >> 16 | 0x0040);
  // Just less than half of the last place kept, and the rest to half where that place is odd: the carry rounds to even.
  return static_cast<std::uint16_t>((fp32 + 0x7FFF + (fp32 >> 16 & 1)) >> 16);
}

[[nodiscard]] constexpr std::uint16_t fp16_of(std::uint32_t fp32) noexcept {
  const std::uint32_t sign = fp32 >> 16 & 0x8000;
  const std::uint32_t magnitude = fp32 & fp32_magnitude;
  if (magnitude > fp32_infinity)
    return static_cast<std::uint16_t>(sign | 0x7E00 | (magnitude >> 13 & 0x03FF));
  if (magnitude >= 0x477F'F000u) // 65520: half-way between the largest fp16 and what would follow it
    return static_cast<std::uint16_t>(sign | 0x7C00);
  if (magnitude >= 0x3880'0000u) { // 2^-14, the least normal fp16; the exponent's bias shrinks from 127 to 15
    const std::uint32_t moved = magnitude - 0x3800'0000u;
    return static_cast<std::uint16_t>(sign | (moved + 0x0FFF + (moved >> 13 & 1)) >> 13);
  }
  const std::uint32_t exponent = magnitude >> 23;
  if (exponent < 102) // less than 2^-25, half of the least subnormal
    return static_cast<std::uint16_t>(sign);
  const std::uint32_t significand = (magnitude & 0x007F'FFFFu) | 0x0080'0000u;
  const std::uint32_t shift = 126 - exponent; // to units of 2^-24
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t rest = significand & ((std::uint32_t{1} << shift) - 1);
  const std::uint32_t half = std::uint32_t{1} << (shift - 1);
  return static_cast<std::uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1) != 0))));
}

[[nodiscard]] constexpr std::uint32_t fp32_of_bf16(std::uint16_t bf16) noexcept {
  return std::uint32_t{bf16} << 16;
}

[[nodiscard]] constexpr std::uint32_t fp32_of_fp16(std::uint16_t fp16) noexcept {
  const std::uint32_t sign = std::uint32_t{fp16} << 16 & 0x8000'0000u;
  const std::uint32_t significand = fp16 & 0x03FFu;
  const std::uint32_t exponent = fp16 >> 10 & 0x1Fu;
  if (exponent == 0x1F)
    return sign | fp32_infinity | significand << 13;
  if (exponent != 0)
    return sign | (exponent + 112) << 23 | significand << 13;
  if (significand == 0)
    return sign;
  const auto digits = static_cast<std::uint32_t>(std::bit_width(significand)); // of units of 2^-24
  return sign | (digits + 102) << 23 | (significand << (24 - digits) & 0x007F'FFFFu);
}

} // namespace deltawire::kernels
