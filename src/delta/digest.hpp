// digest(cell) = sum over the cell's elements of mix(slot position, wire bits) mod 2^64 (design, section 6.6).
// Sums of disjoint parts add up, and a change costs mix(new) - mix(old): so ranks' sums add and updates are
// incremental.
#pragma once

#include "kernels/digest.hpp"

#include <cstdint>

namespace deltawire::delta {

using Digest = std::uint64_t;

/// Mixes one element: its flat position in the full slot and its bits, zero-extended to 64.
/// Part of the wire format (FORMAT.md). Defined beside the loops that use it, in kernels.
[[nodiscard]] constexpr Digest mix(std::uint64_t position, std::uint64_t bits) noexcept {
  return kernels::mix(position, bits);
}

} // namespace deltawire::delta
