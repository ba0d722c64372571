#include "layout/owner.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

bool contains(const Region& region, const std::vector<Index>& coordinate) {
  for (std::size_t d = 0; d < region.dims.size(); ++d)
    if (std::none_of(region.dims[d].begin(), region.dims[d].end(), [&](const Segment& segment) {
          return coordinate[d] >= segment.slot && coordinate[d] < segment.slot + segment.length;
        }))
      return false;
  return true;
}

} // namespace

std::optional<Index> owner_of(const Side& side, std::span<const LocalTensor> tensors, Index ranks, const SlotSpec& slot,
                              Index position) {
  std::vector<LocalTensor> everywhere(tensors.begin(), tensors.end());
  for (LocalTensor& tensor : everywhere) {
    if (tensor.flat)
      return std::nullopt;
    tensor.strides.clear(); // this rank's
  }
  std::vector<Index> coordinate(slot.shape.size());
  for (std::size_t d = slot.shape.size(); d-- > 0;) {
    coordinate[d] = position % slot.shape[d];
    position /= slot.shape[d];
  }
  for (Index rank = 0; rank < ranks; ++rank) {
    const auto declaration = side.declare_trainer(everywhere, rank);
    if (!declaration)
      continue;
    for (const Region& region : declaration->regions)
      if (declaration->slots[region.slot].name == slot.name && contains(region, coordinate))
        return rank;
  }
  return std::nullopt;
}

} // namespace deltawire::layout
