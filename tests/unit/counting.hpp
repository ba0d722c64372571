// Counting through the elements of a shape, one by one: what the layout's oracles are made of. Shares nothing with the
// layout code.
#pragma once

#include "layout/shape.hpp"

#include <functional>
#include <numeric>
#include <vector>

namespace deltawire::test {

inline layout::Index product(const layout::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), layout::Index{1}, std::multiplies<>());
}

/// The next coordinates, the last dim fastest; false, and all 0, after the last.
inline bool advance(std::vector<layout::Index>& at, const layout::Shape& shape) {
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (++at[d] < shape[d])
      return true;
    at[d] = 0;
  }
  return false;
}

} // namespace deltawire::test
