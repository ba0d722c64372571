// Bit masks over the elements of a tile: bit i of word i / 64 stands for element i.
// CPU kernels (Highway). Any alignment, elements of 1, 2, 4 or 8 bytes, no allocation, no failure; reentrant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// Words of a mask over `count` elements.
[[nodiscard]] constexpr std::size_t mask_words(std::size_t count) noexcept {
  return (count + 63) / 64;
}

/// Compares `count` elements of `size` bytes bit by bit. Writes mask_words(count) words of `mask` (bit set: they
/// differ, bits past `count` clear) and returns the number of set bits. Equal stretches cost about as much as memcmp.
[[nodiscard]] std::size_t compare(const std::byte* a, const std::byte* b, std::size_t count, std::size_t size,
                                  std::uint64_t* mask) noexcept;

/// Writes the indices of the set bits, ascending, and returns how many. The mask has at most 1024 words; `out` has room
/// for every bit, set or not: what lies past the positions is unspecified.
std::size_t mask_to_positions(std::span<const std::uint64_t> mask, std::uint16_t* out) noexcept;

/// Sets the bits of `positions`; other bits are kept. Requires every position < 64 * mask.size().
void set_positions(std::span<const std::uint16_t> positions, std::span<std::uint64_t> mask) noexcept;

} // namespace deltawire::kernels
