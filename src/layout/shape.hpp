// Shapes and index arithmetic. Everything is 64-bit signed; a count that does not fit is a Failure, never a wrap.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::layout {

using Index = std::int64_t;
using Shape = std::vector<Index>;

/// Product of the extents (1 for a scalar, shape ()). Fails on a negative extent or past 2^62.
[[nodiscard]] Result<Index> element_count(const Shape& shape);

/// Row-major strides in elements; same length as shape.
[[nodiscard]] std::vector<Index> row_major_strides(const Shape& shape);

/// "[3, 9]"; a scalar is "[]".
[[nodiscard]] std::string to_string(const Shape& shape);

} // namespace deltawire::layout
