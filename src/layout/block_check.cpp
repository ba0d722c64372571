#include "layout/block_check.hpp"

#include <limits>

namespace deltawire::layout {
namespace {

/// First element past the last one that a tensor of this shape and these strides holds; strides are positive.
Result<Index> span_of(const Shape& shape, const std::vector<Index>& strides) {
  if (shape.size() != strides.size())
    return fail(Code::invalid_input, "{} strides for shape {}", strides.size(), to_string(shape));
  Index last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0)
      return Index{0};
    Index reach = 0;
    if (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || __builtin_add_overflow(last, reach, &last))
      return fail(Code::invalid_input, "shape {} reaches past 64 bits", to_string(shape));
  }
  return last + 1;
}

/// Lowest and highest address of a box; fails on overflow.
Result<void> check_addresses(const std::vector<Index>& extents, Index offset, const std::vector<Index>& strides,
                             Index size) {
  Index low = offset, high = offset;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    Index reach = 0;
    Index& end = strides[d] < 0 ? low : high;
    if (__builtin_mul_overflow(extents[d] - 1, strides[d], &reach) || __builtin_add_overflow(end, reach, &end))
      return fail(Code::invalid_input, "addresses past 64 bits");
  }
  if (low < 0 || high >= size)
    return fail(Code::invalid_input, "addresses {}..{} in a buffer of {} elements", low, high, size);
  return {};
}

} // namespace

Result<void> check_blocks(std::span<const Block> blocks, Of of, std::span<const ParameterSpec> parameters,
                          std::size_t slots, std::size_t cells, std::uint32_t block_ids, std::uint32_t windows) {
  std::vector<Index> sizes;
  for (const ParameterSpec& parameter : parameters) {
    auto size = span_of(parameter.local_shape, parameter.strides);
    if (!size)
      return fail(size.error().code, "parameter '{}': {}", parameter.name, size.error().message);
    sizes.push_back(*size);
  }
  const Block* before = nullptr;
  for (const Block& block : blocks) {
    const auto wrong = [&](std::string_view what) { return fail(Code::invalid_input, "block {}: {}", block.id, what); };
    if (block.id >= block_ids || (before != nullptr && block.id < before->id))
      return wrong("its id is out of range or order");
    if (block.parameter >= parameters.size() || block.slot >= slots || block.cell >= cells || block.window >= windows)
      return wrong("its parameter, slot, cell or window does not exist");
    if (before != nullptr && block.window < before->window)
      return wrong("windows must ascend with ids");
    if (!dtypes_fit(parameters[block.parameter].dtype, block.dtype, of))
      return wrong("its dtype does not go with the parameter's");
    if (block.extents.empty() || block.local_strides.size() != block.extents.size() ||
        block.slot_strides.size() != block.extents.size())
      return wrong("extents and strides differ in length");
    Index elements = 1;
    for (const Index extent : block.extents)
      if (extent < 1 || __builtin_mul_overflow(elements, extent, &elements))
        return wrong("its extents are not positive or too large");
    if (before != nullptr && before->id == block.id && before->extents != block.extents)
      return wrong("two views of it differ in extents");
    if (auto local = check_addresses(block.extents, block.local_offset, block.local_strides, sizes[block.parameter]);
        !local)
      return wrong(fmt::format("local {}", local.error().message));
    if (auto slot =
          check_addresses(block.extents, block.slot_offset, block.slot_strides, std::numeric_limits<Index>::max());
        !slot)
      return wrong(fmt::format("slot {}", slot.error().message));
    before = &block;
  }
  return {};
}

} // namespace deltawire::layout
