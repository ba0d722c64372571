#include "relation.hpp"

#include <algorithm>

namespace deltawire::replay::proof {
namespace {

std::uint64_t bit(std::size_t dim) {
  return std::uint64_t{1} << dim;
}

/// All sums of one pair from each factor, the last one running fastest.
Factor product(const std::vector<const Factor*>& factors) {
  Factor result{{{0, 0}}};
  for (const Factor* factor : factors) {
    std::vector<Pair> pairs;
    pairs.reserve(result.pairs.size() * factor->pairs.size());
    for (const Pair& a : result.pairs)
      for (const Pair& b : factor->pairs)
        pairs.push_back({a.left + b.left, a.right + b.right});
    result = {std::move(pairs), result.left_dims | factor->left_dims, result.right_dims | factor->right_dims};
  }
  return result;
}

/// Factors that speak, one of the other's, of the same dims of the tensor between.
struct Group {
  std::uint64_t dims = 0;
  std::vector<const Factor*> left;
  std::vector<const Factor*> right;
};

std::vector<Group> grouped(const Relation& left, const Relation& right) {
  std::vector<Group> groups;
  const auto add = [&](const Factor& factor, std::uint64_t dims, bool is_left) {
    Group group{dims, {}, {}};
    (is_left ? group.left : group.right).push_back(&factor);
    std::vector<Group> others;
    for (Group& other : groups) {
      if ((other.dims & dims) == 0) {
        others.push_back(std::move(other));
        continue;
      }
      group.dims |= other.dims;
      group.left.insert(group.left.begin(), other.left.begin(), other.left.end());
      group.right.insert(group.right.begin(), other.right.begin(), other.right.end());
    }
    others.push_back(std::move(group));
    groups = std::move(others);
  };
  for (const Factor& factor : left)
    add(factor, factor.right_dims, true);
  for (const Factor& factor : right)
    add(factor, factor.left_dims, false);
  return groups;
}

Factor join_group(const Group& group) {
  Factor left = product(group.left);
  Factor right = product(group.right);
  const auto by_right = [](const Pair& a, const Pair& b) { return a.right < b.right; };
  const auto by_left = [](const Pair& a, const Pair& b) { return a.left < b.left; };
  if (!std::is_sorted(left.pairs.begin(), left.pairs.end(), by_right))
    std::sort(left.pairs.begin(), left.pairs.end(), by_right);
  if (!std::is_sorted(right.pairs.begin(), right.pairs.end(), by_left))
    std::sort(right.pairs.begin(), right.pairs.end(), by_left);
  Factor result{{}, left.left_dims, right.right_dims};
  auto first = right.pairs.begin(); // of those that may still meet
  for (const Pair& a : left.pairs) {
    while (first != right.pairs.end() && first->left < a.right)
      ++first;
    for (auto b = first; b != right.pairs.end() && b->left == a.right; ++b)
      result.pairs.push_back({a.left, b->right});
  }
  return result;
}

} // namespace

Index size_of(const Relation& relation) {
  Index size = 1;
  for (const Factor& factor : relation)
    size *= static_cast<Index>(factor.pairs.size());
  return size;
}

Relation relate(const Kept& left, const Kept& right) {
  const Shape left_strides = strides_of(left.shape);
  const Shape right_strides = strides_of(right.shape);
  Relation relation;
  for (std::size_t i = 0; i < left.dims.size(); ++i) {
    const std::size_t left_dim = left.dims[i].front().dim; // what merged is of one dim
    const std::size_t right_dim = right.dims[i].front().dim;
    const Shape left_positions = sums_of(left.dims[i]);
    const Shape right_positions = sums_of(right.dims[i]);
    Factor factor{{}, bit(left_dim), bit(right_dim)};
    factor.pairs.reserve(left_positions.size());
    for (std::size_t j = 0; j < left_positions.size(); ++j)
      factor.pairs.push_back(
        {left_positions[j] * left_strides[left_dim], right_positions[j] * right_strides[right_dim]});
    relation.push_back(std::move(factor));
  }
  for (const Digit& digit : left.fixed)
    relation.push_back({{{digit.first * digit.stride * left_strides[digit.dim], 0}}, bit(digit.dim), 0});
  for (const Digit& digit : right.fixed)
    relation.push_back({{{0, digit.first * digit.stride * right_strides[digit.dim]}}, 0, bit(digit.dim)});
  return relation;
}

Relation relate_box(const std::vector<Shape>& positions, const Shape& shape) {
  Shape box;
  for (const Shape& list : positions)
    box.push_back(static_cast<Index>(list.size()));
  const Shape box_strides = strides_of(box);
  const Shape strides = strides_of(shape);
  Relation relation;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Factor factor{{}, bit(d), bit(d)};
    factor.pairs.reserve(positions[d].size());
    for (std::size_t i = 0; i < positions[d].size(); ++i)
      factor.pairs.push_back({static_cast<Index>(i) * box_strides[d], positions[d][i] * strides[d]});
    relation.push_back(std::move(factor));
  }
  return relation;
}

Relation reversed(Relation relation) {
  for (Factor& factor : relation) {
    std::swap(factor.left_dims, factor.right_dims);
    for (Pair& pair : factor.pairs)
      std::swap(pair.left, pair.right);
  }
  return relation;
}

Relation join(const Relation& left, const Relation& right) {
  Relation relation;
  for (const Group& group : grouped(left, right))
    relation.push_back(join_group(group));
  return relation;
}

} // namespace deltawire::replay::proof
