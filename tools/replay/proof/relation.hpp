// Relations between the elements of two tensors: which element of the one is which element of the other, as row-major
// numbers on both sides.
//
// A relation is a product: of one pair of numbers from each factor, left numbers added up and right numbers added up.
// So it takes no more memory than an index list a dim, however large the tensors are, as long as each factor speaks of
// one dim. Factors that speak of the same dim in different ways become one, pair by pair, when relations are joined: in
// the worst case all of them, and the relation is then an explicit list of its elements.
#pragma once

#include "kept.hpp"

namespace deltawire::replay::proof {

struct Pair {
  Index left = 0;
  Index right = 0;
};

struct Factor {
  std::vector<Pair> pairs;
  std::uint64_t left_dims = 0; ///< a bit for each dim of the left tensor that it speaks of
  std::uint64_t right_dims = 0;
};

using Relation = std::vector<Factor>;

/// How many pairs of elements it has.
[[nodiscard]] Index size_of(const Relation& relation);

/// Element by element in the order of what is kept. Requires that both keep the same shape.
[[nodiscard]] Relation relate(const Kept& left, const Kept& right);

/// From the elements of a box, row-major, to those of a tensor: along each dim the box has these positions of it.
[[nodiscard]] Relation relate_box(const std::vector<Shape>& positions, const Shape& shape);

[[nodiscard]] Relation reversed(Relation relation);

/// Pairs (a, c) for which there is a b with (a, b) in `left` and (b, c) in `right`. Each must speak of every dim of the
/// tensor between them.
[[nodiscard]] Relation join(const Relation& left, const Relation& right);

} // namespace deltawire::replay::proof
