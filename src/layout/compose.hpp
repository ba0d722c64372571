// Composes what a map keeps of a parameter with what a rank holds of it: the regions of the slot in the local buffer.
//
// Each parameter dim contributes on its own (a view only splits dims, a shard cuts dims). Where a dim becomes one slot
// dim its part is one list of segments. Where it becomes several, a cut that is not aligned with the view leaves
// several boxes of digits; boxes that differ along one slot dim only are joined again.
#pragma once

#include "layout/map.hpp"
#include "layout/side.hpp"

namespace deltawire::layout {

/// Regions without parameter and slot numbers (0). Empty where the shard holds nothing of the slot.
/// `strides`: the local buffer's, in elements, one a dim.
[[nodiscard]] std::vector<Region> compose(const AppliedMap& map, const Shard& shard, std::span<const Index> strides);

} // namespace deltawire::layout
