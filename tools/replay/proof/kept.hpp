// What one side of a map keeps of a tensor. Design, section 4: view splits dims, slice takes one item a viewed dim,
// indexed dims drop, permute reorders, and parts of one dim that are still adjacent and in order merge back.
#pragma once

#include "rules.hpp"

namespace deltawire::replay::proof {

/// A selection with a number for each item of its slice: that of a name or sum; 0 elsewhere. No selection = the tensor
/// as it is.
struct Pick {
  const Selection* selection = nullptr;
  Shape numbers{};
};

/// The numbers of a selection's items; nothing where a name is not known, is no number or is past its limits.
[[nodiscard]] std::optional<Shape> numbers_of(const Selection& selection, const Names& names);

/// A viewed dim, as far as it is kept: positions of its dim are (first + i * step) * stride, i < count.
struct Digit {
  std::size_t dim = 0; ///< of the unviewed tensor
  Index first = 0;
  Index step = 1;
  Index count = 1;
  Index stride = 1; ///< positions of `dim` between neighbours of the viewed dim
};

struct Kept {
  Shape shape;                          ///< the tensor's
  std::vector<std::vector<Digit>> dims; ///< of the result: those that merged, outermost first
  std::vector<Digit> fixed;             ///< indexed dims, which are not in the result

  [[nodiscard]] Shape result() const; ///< extents of `dims`
};

/// Fails where view, slice or permute do not fit the shape.
[[nodiscard]] Result<Kept> keep(const Pick& pick, const Shape& shape);

/// Sums of one position from each digit, the last digit running fastest.
[[nodiscard]] Shape sums_of(const std::vector<Digit>& digits);

/// Sorted positions of `dim` that are kept, all others left aside.
[[nodiscard]] Shape positions_on(const Kept& kept, std::size_t dim);

/// True where the smallest and largest positions kept of some dim show that no element is kept twice. Both of one
/// tensor.
[[nodiscard]] bool surely_disjoint(const Kept& a, const Kept& b);

/// The order of the kept dims: dim i of the result is kept dim [i].
[[nodiscard]] Result<std::vector<std::size_t>> ordered(const Selection& selection, std::size_t kept);

/// A dim for each part of the view, and its extent; nothing where the view does not split the shape. Bare numbers: each
/// dim takes the fewest that make up its extent, at least one, and the last takes ones that are left.
struct ViewedDim {
  std::size_t dim = 0;
  Index extent = 1;
};
[[nodiscard]] std::optional<std::vector<ViewedDim>> split(const View& view, const Shape& shape);

} // namespace deltawire::replay::proof
