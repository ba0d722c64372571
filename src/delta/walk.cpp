#include "delta/walk.hpp"

#include <cassert>

namespace deltawire::delta {

void Walk::Dims::push_back(const Dim& dim) {
  if (!spilled_ && count_ == few_.size()) {
    many_.assign(few_.begin(), few_.end());
    spilled_ = true;
  }
  if (spilled_) {
    many_.resize(count_);
    many_.push_back(dim);
  } else {
    few_[count_] = dim;
  }
  ++count_;
}

Walk::Walk(const layout::Block& block) : local_offset_(block.local_offset), slot_offset_(block.slot_offset) {
  assert(block.extents.size() == block.local_strides.size() && block.extents.size() == block.slot_strides.size());
  for (std::size_t d = 0; d < block.extents.size(); ++d) {
    const layout::Index extent = block.extents[d];
    elements_ *= static_cast<std::uint64_t>(extent);
    if (extent == 1)
      continue;
    const Dim dim{static_cast<std::uint64_t>(extent), block.local_strides[d], block.slot_strides[d], 0};
    if (!outer_.empty() && outer_.back().local_stride == extent * dim.local_stride &&
        outer_.back().slot_stride == extent * dim.slot_stride) {
      outer_.back().extent *= dim.extent;
      outer_.back().local_stride = dim.local_stride;
      outer_.back().slot_stride = dim.slot_stride;
    } else {
      outer_.push_back(dim);
    }
  }
  if (outer_.empty()) {
    inner_ = {1, 1, 1, 0}; // a single element: any stride is right, 1 is the fast one
  } else {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  run_ = {0, inner_.extent, local_offset_, slot_offset_};
}

void Walk::move_to(std::uint64_t element) {
  assert(element < elements_);
  if (element >= run_.end && element - run_.end < inner_.extent) {
    step();
    return;
  }
  std::uint64_t row = element / inner_.extent;
  run_ = {row * inner_.extent, (row + 1) * inner_.extent, local_offset_, slot_offset_};
  for (Dim* dim = outer_.end(); dim != outer_.begin();) {
    --dim;
    const std::uint64_t rest = row / dim->extent;
    dim->digit = row - rest * dim->extent;
    row = rest;
    run_.local += static_cast<layout::Index>(dim->digit) * dim->local_stride;
    run_.slot += static_cast<layout::Index>(dim->digit) * dim->slot_stride;
  }
}

void Walk::step() {
  run_.first = run_.end;
  run_.end += inner_.extent;
  for (Dim* dim = outer_.end(); dim != outer_.begin();) {
    --dim;
    run_.local += dim->local_stride;
    run_.slot += dim->slot_stride;
    if (++dim->digit < dim->extent)
      return;
    run_.local -= static_cast<layout::Index>(dim->extent) * dim->local_stride;
    run_.slot -= static_cast<layout::Index>(dim->extent) * dim->slot_stride;
    dim->digit = 0;
  }
}

} // namespace deltawire::delta
