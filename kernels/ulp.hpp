// Differences in ulp order (src/wire/FORMAT.md, "The ulp lane"): of the bits of an element before and after, as
// integers that differ by 1 from one value to the next. CPU kernels (Highway).
// Any alignment, elements of 1, 2, 4 or 8 bytes, at most 4096 of them, no allocation, no failure; reentrant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// How bits map to integers.
enum class UlpOrder : std::uint8_t {
  plain,          ///< integers and bool: the bits themselves
  sign_magnitude, ///< floating point: negative values come before positive ones, in the order of their magnitude
};

/// The largest magnitude that split_differences() tells apart from "too large".
inline constexpr std::uint16_t most_small_difference = 0xFFFE;

/// Splits the differences of `count` elements, all of which changed: bit i of `signs` is set where the i-th difference
/// is negative (bits past `count` in the last word are clear); `exceptions` are the indices of those that are not +1 or
/// -1, ascending, and `magnitudes` their absolute values, 0xFFFF where larger. Returns the number of exceptions. Both
/// lists have room for `count`: what lies past the exceptions is unspecified.
std::size_t split_differences(const std::byte* before, const std::byte* after, std::size_t count, std::size_t size,
                              UlpOrder order, std::uint64_t* signs, std::uint16_t* exceptions,
                              std::uint16_t* magnitudes) noexcept;

/// The inverse: `values` are the elements before and become those after, modulo 2^(8 size). `exceptions` (each < count)
/// without repeats.
void add_differences(std::byte* values, std::size_t count, std::size_t size, UlpOrder order, const std::uint64_t* signs,
                     std::span<const std::uint16_t> exceptions, const std::uint16_t* magnitudes) noexcept;

} // namespace deltawire::kernels
