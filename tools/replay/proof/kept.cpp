#include "kept.hpp"

#include <algorithm>
#include <numeric>

namespace deltawire::replay::proof {
namespace {

/// As text for messages.
std::string text_of(const View& view) {
  Shape extents;
  for (const ViewPart& part : view)
    extents.push_back(part.extent);
  return proof::text_of(extents);
}

} // namespace

Shape sums_of(const std::vector<Digit>& digits) {
  Shape sums = {0};
  for (const Digit& digit : digits) {
    Shape more;
    more.reserve(sums.size() * static_cast<std::size_t>(digit.count));
    for (Index sum : sums)
      for (Index i = 0; i < digit.count; ++i)
        more.push_back(sum + (digit.first + i * digit.step) * digit.stride);
    sums = std::move(more);
  }
  return sums;
}

std::optional<Shape> numbers_of(const Selection& selection, const Names& names) {
  Shape numbers;
  if (!selection.slice)
    return numbers;
  for (const SliceItem& item : *selection.slice) {
    numbers.push_back(0);
    std::optional<Index> value = 0;
    if (item.kind == SliceItem::Kind::name) {
      const auto found = names.find(item.name);
      value = found == names.end() ? std::nullopt : number(found->second);
      if (value && item.limited && (*value < item.begin || *value >= item.end))
        return std::nullopt;
    } else if (item.kind == SliceItem::Kind::sum) {
      value = value_of(item.sum, names);
    }
    if (!value || *value < 0)
      return std::nullopt;
    numbers.back() = *value;
  }
  return numbers;
}

std::optional<std::vector<ViewedDim>> split(const View& view, const Shape& shape) {
  std::vector<ViewedDim> viewed;
  std::size_t v = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::size_t first = v;
    Index product = 1; // of the parts whose extents are told
    std::optional<std::size_t> rest;
    const auto take = [&] {
      if (view[v].extent == 0)
        rest = v;
      else if (product > std::max(shape[d], Index{1}) / view[v].extent)
        return false; // past the dim, or past 64 bits
      else
        product *= view[v].extent;
      viewed.push_back({d, view[v++].extent});
      return true;
    };
    if (v < view.size() && view[v].set != 0) {
      while (v < view.size() && view[v].set == view[first].set)
        if (!take())
          return std::nullopt;
    } else {
      while (v < view.size() && view[v].set == 0 && (v == first || product < shape[d]))
        if (!take())
          return std::nullopt;
    }
    if (v == first || (rest ? shape[d] % product != 0 : shape[d] != product))
      return std::nullopt;
    if (rest)
      viewed[*rest].extent = shape[d] / product;
  }
  for (; v < view.size(); ++v) {
    if (view[v].extent != 1 || view[v].set != 0 || shape.empty())
      return std::nullopt;
    viewed.push_back({shape.size() - 1, 1});
  }
  return viewed;
}

Result<std::vector<std::size_t>> ordered(const Selection& selection, std::size_t kept) {
  std::vector<std::size_t> order(kept);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!selection.permute.empty()) {
    std::vector<std::size_t> named(selection.permute.begin(), selection.permute.end());
    if (!std::is_permutation(named.begin(), named.end(), order.begin(), order.end()))
      return fail(Code::invalid_topology, "permute {} of {} dims", text_of(selection.permute), kept);
    order = std::move(named);
  }
  if (selection.transpose) {
    if (kept < 2)
      return fail(Code::invalid_topology, "transpose of fewer than two dims");
    std::swap(order[kept - 1], order[kept - 2]);
  }
  return order;
}

Result<Kept> keep(const Pick& pick, const Shape& shape) {
  static const Selection all;
  const Selection& selection = pick.selection != nullptr ? *pick.selection : all;
  if (shape.size() > 64)
    return fail(Code::unsupported, "a tensor of {} dims", shape.size());
  std::vector<ViewedDim> viewed;
  for (std::size_t d = 0; d < shape.size(); ++d)
    viewed.push_back({d, shape[d]});
  if (selection.view) {
    auto parts = split(*selection.view, shape);
    if (!parts)
      return fail(Code::invalid_topology, "view {} does not split {}", text_of(*selection.view), proof::text_of(shape));
    viewed = std::move(*parts);
  }
  if (selection.slice && selection.slice->size() != viewed.size())
    return fail(Code::invalid_topology, "a slice of {} items on {} dims of {}", selection.slice->size(), viewed.size(),
                proof::text_of(shape));

  Kept kept;
  kept.shape = shape;
  std::vector<Digit> digits;
  for (std::size_t v = 0; v < viewed.size(); ++v) {
    const SliceItem item = selection.slice ? (*selection.slice)[v] : SliceItem{};
    Digit digit;
    digit.dim = viewed[v].dim;
    for (std::size_t later = v + 1; later < viewed.size() && viewed[later].dim == digit.dim; ++later)
      digit.stride *= viewed[later].extent;
    digit.count = viewed[v].extent;
    Index end = digit.count;
    if (item.kind == SliceItem::Kind::range) {
      digit.first = item.begin;
      digit.step = item.step;
      digit.count = (item.end - item.begin + item.step - 1) / item.step;
      end = item.end;
    } else if (item.drops()) {
      digit.first = item.kind == SliceItem::Kind::index ? item.begin : pick.numbers[v];
      digit.count = 1;
      end = digit.first + 1;
    }
    if (end > viewed[v].extent)
      return fail(Code::invalid_topology, "slice item {} reaches to {}, past the end of {}", v, end, viewed[v].extent);
    (item.drops() ? kept.fixed : digits).push_back(digit);
  }
  const auto order = ordered(selection, digits.size());
  if (!order)
    return tl::make_unexpected(order.error());
  for (std::size_t i = 0; i < order->size(); ++i) {
    const std::size_t place = (*order)[i];
    const bool merges = i > 0 && (*order)[i - 1] + 1 == place && digits[place - 1].dim == digits[place].dim;
    if (!merges)
      kept.dims.emplace_back();
    kept.dims.back().push_back(digits[place]);
  }
  return kept;
}

Shape Kept::result() const {
  Shape result;
  for (const std::vector<Digit>& digits : dims) {
    Index extent = 1;
    for (const Digit& digit : digits)
      extent *= digit.count;
    result.push_back(extent);
  }
  return result;
}

Shape positions_on(const Kept& kept, std::size_t dim) {
  std::vector<Digit> digits;
  for (const Digit& digit : kept.fixed)
    if (digit.dim == dim)
      digits.push_back(digit);
  for (const std::vector<Digit>& merged : kept.dims)
    for (const Digit& digit : merged)
      if (digit.dim == dim)
        digits.push_back(digit);
  Shape positions = sums_of(digits);
  std::sort(positions.begin(), positions.end());
  return positions;
}

bool surely_disjoint(const Kept& a, const Kept& b) {
  struct Reach {
    Index least = 0;
    Index most = 0;
  };
  const auto reach = [](const Kept& kept) {
    std::vector<Reach> result(kept.shape.size());
    const auto add = [&](const Digit& digit) {
      result[digit.dim].least += digit.first * digit.stride;
      result[digit.dim].most += (digit.first + (digit.count - 1) * digit.step) * digit.stride;
    };
    std::for_each(kept.fixed.begin(), kept.fixed.end(), add);
    for (const std::vector<Digit>& merged : kept.dims)
      std::for_each(merged.begin(), merged.end(), add);
    return result;
  };
  const std::vector<Reach> one = reach(a);
  const std::vector<Reach> other = reach(b);
  for (std::size_t d = 0; d < one.size(); ++d)
    if (one[d].most < other[d].least || other[d].most < one[d].least)
      return true;
  return false;
}

} // namespace deltawire::replay::proof
