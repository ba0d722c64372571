// What an element is on the wire, for tests: casts by searching all values of the narrow type and by arithmetic on
// doubles. Shares nothing with the product's casts.
#pragma once

#include "deltawire/dtype.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace deltawire::test {

/// The value of a finite float of 16 bits with `exponent_bits` and `mantissa_bits`, without its sign; its largest
/// exponent reads as the next power of two would, so that rounding up to infinity is a comparison like any other.
inline double value_of(std::uint32_t magnitude, int exponent_bits, int mantissa_bits) {
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const double fraction = std::ldexp(static_cast<double>(magnitude & ((1u << mantissa_bits) - 1)), -mantissa_bits);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

/// Round to nearest, ties to even.
inline std::uint16_t nearest(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if ((bits & 0x7FFFFFFF) > 0x7F800000) {
    const std::uint32_t payload = (bits & 0x7FFFFF) >> (23 - mantissa_bits);
    return static_cast<std::uint16_t>(sign | infinity | payload | 1u << (mantissa_bits - 1));
  }
  if ((bits & 0x7FFFFFFF) == 0x7F800000)
    return static_cast<std::uint16_t>(sign | infinity);
  float as_float = 0;
  std::memcpy(&as_float, &bits, sizeof(as_float));
  const double value = std::abs(static_cast<double>(as_float));
  std::uint32_t low = 0; // the largest that is at most `value`
  std::uint32_t high = infinity;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (value_of(middle, exponent_bits, mantissa_bits) <= value ? low : high) = middle;
  }
  if (value >= value_of(infinity, exponent_bits, mantissa_bits))
    return static_cast<std::uint16_t>(sign | infinity);
  const double below = value - value_of(low, exponent_bits, mantissa_bits);
  const double above = value_of(low + 1, exponent_bits, mantissa_bits) - value;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return static_cast<std::uint16_t>(sign | (low + up));
}

/// The same value, or the same NaN with its payload at the upper end.
inline std::uint32_t widened(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const std::uint32_t magnitude = bits & 0x7FFF;
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  std::uint32_t wide = 0;
  if (magnitude >= infinity) {
    wide = 0x7F800000u + (magnitude - infinity) * (1u << (23 - mantissa_bits));
  } else {
    const auto value = static_cast<float>(value_of(magnitude, exponent_bits, mantissa_bits));
    std::memcpy(&wide, &value, sizeof(wide));
  }
  return wide | (bits & 0x8000u) << 16;
}

/// An element of `held` as it is on the wire, zero-extended.
inline std::uint64_t on_wire(std::uint64_t bits, DType held, DType wire) {
  if (held == wire)
    return bits;
  const DType narrow = held == DType::f32 ? wire : held;
  const int exponent_bits = narrow == DType::bf16 ? 8 : 5;
  const int mantissa_bits = narrow == DType::bf16 ? 7 : 10;
  return held == DType::f32 ? nearest(static_cast<std::uint32_t>(bits), exponent_bits, mantissa_bits)
                            : widened(static_cast<std::uint16_t>(bits), exponent_bits, mantissa_bits);
}

} // namespace deltawire::test
