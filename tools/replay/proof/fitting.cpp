#include "fitting.hpp"

#include <algorithm>

namespace deltawire::replay::proof {
namespace {

struct Extent {
  Index value = 1;
  bool least = false; ///< a slice only bounds it: it may be more

  friend bool operator==(const Extent&, const Extent&) = default;
};
using Extents = std::vector<Extent>;

/// Without a view, each item of the slice is a dim of its own, and so is each dim of the result.
View view_of(const Selection& selection, const Shape& result) {
  if (selection.view)
    return *selection.view;
  View view(selection.slice ? selection.slice->size() : result.size());
  for (std::size_t v = 0; v < view.size(); ++v)
    view[v].set = v + 1;
  return view;
}

/// Every way to tell which parts are one dim: a dim for each part. Bare numbers may be one with the bare number before.
std::vector<std::vector<std::size_t>> ways(const View& view) {
  std::vector<std::vector<std::size_t>> result = {{}};
  for (std::size_t v = 0; v < view.size(); ++v) {
    std::vector<std::vector<std::size_t>> more;
    for (std::vector<std::size_t>& dims : result) {
      const bool may_join = v > 0 && view[v].set == view[v - 1].set;
      const bool must_join = may_join && view[v].set != 0;
      const std::size_t next = dims.empty() ? 0 : dims.back() + 1;
      if (!must_join) {
        more.push_back(dims);
        more.back().push_back(next);
      }
      if (may_join) {
        more.push_back(dims);
        more.back().push_back(next - 1);
      }
    }
    result = std::move(more);
  }
  return result;
}

/// The extents that make the pick keep `result`, where the parts are these dims; nothing where none do.
std::optional<Extents> extents_for(const Demand& demand, const Selection& selection, const View& view,
                                   const std::vector<std::size_t>& dims, const std::vector<std::size_t>& order) {
  const auto item = [&](std::size_t v) { return selection.slice ? (*selection.slice)[v] : SliceItem{}; };
  std::vector<std::size_t> kept;
  for (std::size_t v = 0; v < view.size(); ++v)
    if (!item(v).drops())
      kept.push_back(v);
  Extents parts(view.size());
  for (std::size_t v = 0; v < view.size(); ++v) {
    const SliceItem& taken = item(v);
    if (view[v].extent != 0)
      parts[v] = {view[v].extent, false};
    else if (taken.kind == SliceItem::Kind::range)
      parts[v] = {taken.end, true};
    else if (taken.drops())
      parts[v] = {(taken.kind == SliceItem::Kind::index ? taken.begin : demand.pick.numbers[v]) + 1, true};
  }
  // Each dim of the result tells the one part of it that takes all of an extent that is not told.
  std::size_t dim = 0;
  for (std::size_t i = 0; i < order.size(); ++dim) {
    Index product = 1;
    std::optional<std::size_t> open;
    for (const std::size_t first = i; i < order.size(); ++i) {
      const std::size_t v = kept[order[i]];
      if (i > first && (order[i - 1] + 1 != order[i] || dims[kept[order[i - 1]]] != dims[v]))
        break;
      const SliceItem& taken = item(v);
      if (taken.kind == SliceItem::Kind::range)
        product *= (taken.end - taken.begin + taken.step - 1) / taken.step;
      else if (view[v].extent != 0)
        product *= view[v].extent;
      else if (std::exchange(open, v))
        return std::nullopt;
    }
    if (dim == demand.result.size())
      return std::nullopt;
    const Index wanted = demand.result[dim];
    if (open && wanted % product != 0)
      return std::nullopt;
    if (open)
      parts[*open].value = wanted / product;
    else if (product != wanted && selection.view)
      return std::nullopt; // without a view, the mismatch is told when the two are related
  }
  if (dim != demand.result.size())
    return std::nullopt;
  Extents extents(dims.empty() ? 0 : dims.back() + 1);
  for (std::size_t v = 0; v < view.size(); ++v) {
    extents[dims[v]].value *= parts[v].value;
    extents[dims[v]].least = extents[dims[v]].least || parts[v].least;
  }
  return extents;
}

/// All extents that make one pick keep its result.
Result<std::vector<Extents>> candidates_of(const Demand& demand) {
  static const Selection all;
  const Selection& selection = demand.pick.selection != nullptr ? *demand.pick.selection : all;
  const View view = view_of(selection, demand.result);
  if (view.size() > 16)
    return fail(Code::unsupported, "a view of {} dims", view.size());
  if (selection.slice && selection.slice->size() != view.size())
    return fail(Code::invalid_topology, "a slice of {} items on a view of {}", selection.slice->size(), view.size());
  const auto kept = selection.slice ? std::count_if(selection.slice->begin(), selection.slice->end(),
                                                    [](const SliceItem& item) { return !item.drops(); })
                                    : static_cast<std::ptrdiff_t>(view.size());
  const auto order = ordered(selection, static_cast<std::size_t>(kept));
  if (!order)
    return tl::make_unexpected(order.error());
  std::vector<Extents> candidates;
  for (const std::vector<std::size_t>& dims : ways(view)) {
    auto extents = extents_for(demand, selection, view, dims, *order);
    if (!extents)
      continue;
    if (selection.view) { // the view must split the shape in this very way
      Shape shape;
      for (const Extent& extent : *extents)
        shape.push_back(extent.value);
      const auto viewed = split(view, shape);
      if (!viewed || !std::equal(dims.begin(), dims.end(), viewed->begin(), viewed->end(),
                                 [](std::size_t dim, const ViewedDim& part) { return dim == part.dim; }))
        continue;
    }
    candidates.push_back(std::move(*extents));
  }
  return candidates;
}

/// What satisfies both; nothing where nothing does.
std::optional<Extents> both(const Extents& a, const Extents& b) {
  if (a.size() != b.size())
    return std::nullopt;
  Extents result;
  for (std::size_t d = 0; d < a.size(); ++d) {
    const Index most = std::max(a[d].value, b[d].value);
    if ((!a[d].least && a[d].value != most) || (!b[d].least && b[d].value != most))
      return std::nullopt;
    result.push_back({most, a[d].least && b[d].least});
  }
  return result;
}

} // namespace

Result<Shape> fitting_shape(const std::vector<Demand>& demands) {
  std::vector<Extents> possible;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    auto candidates = candidates_of(demands[i]);
    if (!candidates)
      return pass_on(std::move(candidates));
    if (i == 0) {
      possible = std::move(*candidates);
      continue;
    }
    std::vector<Extents> left;
    for (const Extents& one : possible)
      for (const Extents& other : *candidates)
        if (auto fits = both(one, other); fits && std::find(left.begin(), left.end(), *fits) == left.end())
          left.push_back(std::move(*fits));
    possible = std::move(left);
  }
  if (possible.size() != 1)
    return fail(Code::invalid_topology, "its maps allow {} shapes; declare its shape", possible.size());
  Shape shape;
  for (const Extent& extent : possible.front())
    shape.push_back(extent.value);
  return shape;
}

} // namespace deltawire::replay::proof
