// How far changed elements moved, in the order of their dtype's bit patterns.
//
// Floats, of any width: sign and magnitude, as IEEE 754's totalOrder has it. So one step is one ulp, -0.0 lies one step
// below +0.0, and NaNs lie beyond the infinities: every pattern has a place of its own, and a changed element moved by
// at least one step. Integers and booleans: the numeric difference.
#pragma once

#include "deltawire/dtype.hpp"
#include "distribution.hpp"

#include <span>

namespace deltawire::diff {

/// Adds the differences from `before` to `after`, dense arrays of elements, at `positions`.
using AddDifferences = void (*)(const std::byte* before, const std::byte* after,
                                std::span<const std::uint16_t> positions, DifferenceDistribution& differences);

/// The one for this dtype.
[[nodiscard]] AddDifferences add_differences_of(DType dtype) noexcept;

} // namespace deltawire::diff
