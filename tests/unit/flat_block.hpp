// A block that is contiguous in local memory and in its slot, from 0 on in both.
#pragma once

#include "layout/plan.hpp"

#include <cstdint>

namespace deltawire::test {

inline layout::Block flat_block(std::uint32_t id, DType dtype, std::uint64_t elements) {
  layout::Block block;
  block.id = id;
  block.dtype = dtype;
  block.extents = {static_cast<layout::Index>(elements)};
  block.local_strides = {1};
  block.slot_strides = {1};
  return block;
}

} // namespace deltawire::test
