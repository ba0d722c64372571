// What one side of a map takes of its tensor: view, slice and order of dims. Knows nothing of names.
#pragma once

#include "layout/map.hpp"

namespace deltawire::layout {

/// A tensor's dims, viewed: the extent of each viewed dim, and the dim that it is a part of.
struct Viewed {
  Shape extents;
  std::vector<std::size_t> dims;
};

/// Fails where the view does not split the shape, or where the slice has another number of items.
[[nodiscard]] Result<Viewed> view_of(const Selection& selection, const Shape& shape);

/// A viewed dim that is kept: `count` positions, `stride` apart in its dim.
struct Factor {
  std::size_t dim = 0;
  Index count = 1;
  Index stride = 1;
  bool joins = false; ///< it merges with the factor before it: parts of one dim, adjacent and in order
};

struct Selected {
  Shape full_shape;
  std::vector<Index> base;             ///< one a dim: the first position kept
  std::vector<Factor> factors;         ///< in the kept order
  Shape shape;                         ///< of what is kept: factors that join are one dim
  std::vector<std::vector<Span>> kept; ///< one list a dim: positions, sorted, disjoint, not touching
};

/// The order of the kept dims: dim i of the result is kept dim order[i].
struct Order {
  std::vector<Index> permute; ///< empty: as they are
  bool transpose = false;     ///< swaps the last two
};

/// Fails where a number is past its dim, where `order` names another number of dims, and past limits.
[[nodiscard]] Result<Selected> select(const Selection& selection, const std::vector<Index>& bound, const Order& order,
                                      const Shape& shape);

/// Shapes with which the selection keeps `target`, one for every way to tell viewed numbers apart that allows it.
/// `most` is the largest number that each bound or computed item takes. Without a view, extents that a range tells are
/// taken from it, whatever the target's are: select() tells the difference better. Fails, saying why, where there is
/// none.
[[nodiscard]] Result<std::vector<ShapeHint>> shapes_keeping(const Selection& selection, const std::vector<Index>& most,
                                                            const Order& order, const Shape& target);

/// Every shape that a view of numbers only may have.
[[nodiscard]] std::vector<Shape> shapes_viewed(const View& view);

} // namespace deltawire::layout
