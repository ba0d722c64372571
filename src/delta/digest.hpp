// digest(cell) = sum over the cell's elements of mix(slot position, wire bits) mod 2^64 (design, section 6.6).
// Sums of disjoint parts add up, and a change costs mix(new) - mix(old): so ranks' sums add and updates are
// incremental.
#pragma once

#include <cstdint>

namespace deltawire::delta {

using Digest = std::uint64_t;

/// Mixes one element: its flat position in the full slot and its bits, zero-extended to 64.
/// Part of the wire format (FORMAT.md): a bijective 64-bit finaliser over both, so that neither a swap of two elements
/// nor a single changed bit cancels.
[[nodiscard]] constexpr Digest mix(std::uint64_t position, std::uint64_t bits) noexcept {
  std::uint64_t x = (position + 1) * 0x9E3779B97F4A7C15ull ^ (bits + 0x632BE59BD9B4E019ull) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93ull;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

} // namespace deltawire::delta
