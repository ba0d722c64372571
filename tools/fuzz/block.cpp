#include "block.hpp"

namespace deltawire::fuzz {

layout::Block take_block(Input& input) {
  layout::Block block;
  block.dtype = static_cast<DType>(input.u8() % dtype_count);
  block.id = input.u8();
  const unsigned shape = input.u8();
  block.extents.resize(1 + (shape & 3) % 3);
  for (layout::Index& extent : block.extents)
    extent = std::max<layout::Index>(1, input.u16());
  if ((shape & 8) != 0)
    block.extents.front() <<= 40;
  const std::size_t dims = block.extents.size();
  const auto strides = [&](bool reversed) {
    std::vector<layout::Index> result(dims);
    layout::Index stride = 1;
    for (std::size_t i = 0; i < dims; ++i) {
      const std::size_t d = reversed ? i : dims - 1 - i;
      result[d] = stride;
      if (__builtin_mul_overflow(stride, block.extents[d], &stride))
        stride = 0; // nobody walks memory of such a block
    }
    return result;
  };
  block.local_strides = strides((shape & 4) != 0);
  block.slot_strides = strides(false);
  block.slot_offset = 5;
  return block;
}

std::uint64_t elements_of(const layout::Block& block) {
  std::uint64_t elements = 1;
  for (const layout::Index extent : block.extents)
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(extent), &elements))
      return UINT64_MAX;
  return elements;
}

BlockMemory::BlockMemory(const layout::Block& block)
  : block_(block), size_(size_of(block.dtype)), bytes_(elements_of(block) * size_) {
  std::uint64_t state = block.id + 1;
  for (std::byte& byte : bytes_) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
}

std::byte* BlockMemory::at(std::uint64_t element) noexcept {
  layout::Index address = block_.local_offset;
  for (std::size_t d = block_.extents.size(); d-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(block_.extents[d]);
    address += static_cast<layout::Index>(element % extent) * block_.local_strides[d];
    element /= extent;
  }
  return bytes_.data() + static_cast<std::size_t>(address) * size_;
}

} // namespace deltawire::fuzz
