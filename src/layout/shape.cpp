#include "layout/shape.hpp"

namespace deltawire::layout {

Result<Index> element_count(const Shape& shape) {
  constexpr Index limit = Index{1} << 62;
  bool empty = false;
  for (Index extent : shape) {
    if (extent < 0)
      return fail(Code::invalid_argument, "shape {} has a negative extent", to_string(shape));
    empty = empty || extent == 0;
  }
  if (empty)
    return Index{0};
  Index count = 1;
  for (Index extent : shape) {
    if (count > limit / extent)
      return fail(Code::limit_exceeded, "shape {} has more than 2^62 elements", to_string(shape));
    count *= extent;
  }
  return count;
}

std::vector<Index> row_major_strides(const Shape& shape) {
  std::vector<Index> strides(shape.size());
  Index stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d)
    text += fmt::format("{}{}", d == 0 ? "" : ", ", shape[d]);
  return text + "]";
}

} // namespace deltawire::layout
