// Composes what a map keeps of a parameter with what a rank holds of it: the regions of the slot in the local buffer.
//
// Dims of parameter and slot that the map ties together contribute on their own (views only split dims, a shard cuts
// dims). Where parameter dims become one slot dim their part is one list of segments. Where they become several, a cut
// that is not aligned with the view leaves several boxes of digits; boxes that differ along one slot dim only are
// joined.
#pragma once

#include "layout/map.hpp"
#include "layout/side.hpp"

namespace deltawire::layout {

/// Regions without parameter and slot numbers (0). Empty where the shard holds nothing of the slot.
/// `strides`: the local buffer's, in elements, one a dim.
[[nodiscard]] std::vector<Region> compose(const AppliedMap& map, const Shard& shard, std::span<const Index> strides);

} // namespace deltawire::layout
