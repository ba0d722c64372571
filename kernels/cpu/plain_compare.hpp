// Comparing 64 elements without vector instructions: equal groups are skipped with an XOR-OR over eight bytes at a
// time, and only where a bit differs a closer look tells which elements.
#pragma once

#include "kernels/cpu/by_size.hpp"

namespace deltawire::kernels {

/// One bit an element of the eight bytes `difference` (a XOR b), lowest address first.
template <class Element>
constexpr std::uint64_t differing(std::uint64_t difference) noexcept {
  if constexpr (sizeof(Element) == 8) {
    return difference != 0;
  } else if constexpr (sizeof(Element) == 4) {
    return std::uint64_t{static_cast<std::uint32_t>(difference) != 0} | std::uint64_t{(difference >> 32) != 0} << 1;
  } else if constexpr (sizeof(Element) == 2) {
    // Adding 0x7FFF to the low 15 bits of a lane carries into its top bit unless they are all zero; the product then
    // brings the four top bits side by side (their pairwise sums of exponents are distinct, so nothing carries).
    constexpr std::uint64_t low = 0x7FFF7FFF7FFF7FFFull;
    const std::uint64_t top = (((difference & low) + low) | difference) & ~low;
    return ((top >> 15) * 0x0001000200040008ull) >> 48;
  } else {
    constexpr std::uint64_t low = 0x7F7F7F7F7F7F7F7Full;
    const std::uint64_t top = (((difference & low) + low) | difference) & ~low;
    return ((top >> 7) * 0x0102040810204080ull) >> 56;
  }
}

/// The mask word of 64 elements.
template <class Element>
std::uint64_t compare_plainly(const std::byte* a, const std::byte* b) noexcept {
  constexpr std::size_t words = 8 * sizeof(Element);
  constexpr std::size_t lanes = 8 / sizeof(Element);
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < words; ++i)
    any |= load<std::uint64_t>(a + 8 * i) ^ load<std::uint64_t>(b + 8 * i);
  if (any == 0)
    return 0;
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < words; ++i)
    mask |= differing<Element>(load<std::uint64_t>(a + 8 * i) ^ load<std::uint64_t>(b + 8 * i)) << (i * lanes);
  return mask;
}

} // namespace deltawire::kernels
