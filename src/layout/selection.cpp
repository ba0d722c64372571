#include "layout/selection.hpp"

#include <algorithm>
#include <numeric>

namespace deltawire::layout {
namespace {

constexpr Index most_stretches = Index{1} << 22; // a bound on what a hostile slice can make us enumerate

bool keeps_dim(const SliceItem& item) {
  return item.kind == SliceItem::Kind::all || item.kind == SliceItem::Kind::range;
}

SliceItem item_at(const Selection& selection, std::size_t i) {
  return selection.slice ? (*selection.slice)[i] : SliceItem{};
}

Index steps_in(const SliceItem& range) {
  return (range.range.end - range.range.begin + range.step - 1) / range.step;
}

/// product *= factor, unless it passes 2^63.
bool multiply(Index& product, Index factor) {
  return !__builtin_mul_overflow(product, factor, &product);
}

/// Parts i.. of one dim that are told to be one: those that follow with Link::same_dim.
std::size_t group_end(const View& view, std::size_t i) {
  std::size_t end = i + 1;
  while (end < view.extents.size() && view.links[end] == View::Link::same_dim)
    ++end;
  return end;
}

std::optional<Viewed> split(const View& view, const Shape& shape) {
  Viewed result;
  std::size_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (at == view.extents.size())
      return std::nullopt;
    const std::size_t first = at;
    std::size_t end = group_end(view, at);
    if (end > at + 1 || view.extents[at] == View::rest) { // parentheses or ':': these parts and no other
      Index known = 1;
      std::optional<std::size_t> rest;
      for (; at < end; ++at) {
        if (view.extents[at] == View::rest)
          rest = at;
        else
          known *= view.extents[at];
        result.extents.push_back(view.extents[at]);
      }
      if (rest ? shape[d] % known != 0 : shape[d] != known)
        return std::nullopt;
      if (rest)
        result.extents[*rest] = shape[d] / known;
    } else {
      Index product = 1;
      do {
        if (at == view.extents.size() || view.extents[at] == View::rest ||
            (at > first && view.links[at] != View::Link::either) || product > shape[d] / view.extents[at])
          return std::nullopt;
        product *= view.extents[at];
        result.extents.push_back(view.extents[at++]);
      } while (product < shape[d]);
      if (product != shape[d])
        return std::nullopt;
      end = at;
    }
    result.dims.resize(result.extents.size(), d);
  }
  for (; at < view.extents.size(); ++at) { // what is left can only be ones; they belong to the last dim
    if (view.extents[at] != 1 || view.links[at] != View::Link::either)
      return std::nullopt;
    result.extents.push_back(1);
    result.dims.push_back(shape.size() - 1);
  }
  return result;
}

/// Places among `count` kept dims, in the result's order.
Result<std::vector<std::size_t>> ordered(std::size_t count, const Order& order) {
  std::vector<std::size_t> places(count);
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (!order.permute.empty()) {
    if (order.permute.size() != count)
      return fail(Code::invalid_topology, "permute {} names {} dims, but {} are kept", to_string(order.permute),
                  order.permute.size(), count);
    for (std::size_t i = 0; i < count; ++i)
      places[i] = static_cast<std::size_t>(order.permute[i]);
  }
  if (order.transpose) {
    if (count < 2)
      return fail(Code::invalid_topology, "fewer than two dims are kept, so there is nothing to transpose");
    std::swap(places[count - 1], places[count - 2]);
  }
  return places;
}

/// A kept viewed dim: its dim, and which of the dim's kept parts it is.
struct Place {
  std::size_t dim = 0;
  std::size_t nth = 0;

  [[nodiscard]] bool follows(const Place& before) const { return dim == before.dim && nth == before.nth + 1; }
};

/// Sorted positions that the factors from `j` on reach, outermost first.
void collect(const std::vector<Factor>& factors, std::size_t j, Index offset, std::vector<Span>& out) {
  auto push = [&](Index begin, Index end) {
    if (!out.empty() && out.back().end == begin)
      out.back().end = end;
    else
      out.push_back({begin, end});
  };
  if (j == factors.size())
    return push(offset, offset + 1);
  const Factor& factor = factors[j];
  if (j + 1 == factors.size() && factor.stride == 1)
    return push(offset, offset + factor.count);
  for (Index k = 0; k < factor.count; ++k)
    collect(factors, j + 1, offset + k * factor.stride, out);
}

/// Positions that one dim's kept factors reach, outermost first, from `base` on.
Result<std::vector<Span>> positions_of(const std::vector<Factor>& factors, Index base) {
  std::vector<Span> spans;
  std::vector<Factor> joined; // neighbours that are contiguous are one
  for (const Factor& factor : factors) {
    if (factor.count == 0)
      return spans;
    if (factor.count == 1)
      continue;
    if (!joined.empty() && joined.back().stride == factor.count * factor.stride)
      joined.back() = {factor.dim, joined.back().count * factor.count, factor.stride, false};
    else
      joined.push_back(factor);
  }
  Index stretches = 1;
  for (std::size_t j = 0; j < joined.size(); ++j) {
    if (j + 1 == joined.size() && joined[j].stride == 1)
      break;
    if (stretches > most_stretches / joined[j].count)
      return fail(Code::limit_exceeded, "the slice cuts a dim into more than {} stretches", most_stretches);
    stretches *= joined[j].count;
  }
  collect(joined, 0, base, spans);
  return spans;
}

/// Shapes keeping a target, for one way to tell the dims apart.
std::optional<ShapeHint> shape_keeping(const Selection& selection, const std::vector<std::size_t>& dims,
                                       const std::vector<Index>& extents, const std::vector<Index>& most,
                                       const std::vector<std::size_t>& order, const Shape& target) {
  const std::size_t n = extents.size();
  std::vector<Place> places;
  std::vector<std::size_t> items; // of each kept dim
  for (std::size_t i = 0; i < n; ++i)
    if (keeps_dim(item_at(selection, i))) {
      places.push_back({dims[i], !places.empty() && places.back().dim == dims[i] ? places.back().nth + 1 : 0});
      items.push_back(i);
    }
  std::vector<Index> full(n, View::rest); // extents by what the target says
  std::size_t merged = 0;
  for (std::size_t i = 0; i < order.size(); ++merged) {
    std::size_t end = i + 1;
    while (end < order.size() && places[order[end]].follows(places[order[end - 1]]))
      ++end;
    if (merged == target.size())
      return std::nullopt;
    Index known = 1;
    std::optional<std::size_t> open;
    for (; i < end; ++i) {
      const std::size_t at = items[order[i]];
      const SliceItem item = item_at(selection, at);
      if (item.kind != SliceItem::Kind::range && extents[at] == View::rest) {
        if (open)
          return std::nullopt; // two that nothing tells apart
        open = at;
      } else if (!multiply(known, item.kind == SliceItem::Kind::range ? steps_in(item) : extents[at])) {
        return std::nullopt; // more than any target has
      }
    }
    if (open) {
      if (known == 0 || target[merged] % known != 0)
        return std::nullopt;
      full[*open] = target[merged] / known;
    } else if (known != target[merged] && selection.view) {
      return std::nullopt;
    }
  }
  if (merged != target.size())
    return std::nullopt;
  ShapeHint hint;
  for (std::size_t i = 0; i < n; ++i) {
    const SliceItem item = item_at(selection, i);
    bool least = false;
    Index extent = extents[i] != View::rest ? extents[i] : full[i];
    if (extent == View::rest) {
      least = true;
      extent = item.kind == SliceItem::Kind::bound || item.kind == SliceItem::Kind::computed
                 ? std::max(most[i] + 1, item.limited ? item.range.end : 0)
                 : item.range.end;
    }
    if (i == 0 || dims[i] != dims[i - 1]) {
      hint.shape.push_back(extent);
      hint.open.push_back(least);
    } else {
      if (!multiply(hint.shape.back(), extent))
        return std::nullopt;
      hint.open.back() = hint.open.back() || least;
    }
  }
  if (!element_count(hint.shape))
    return std::nullopt;
  return hint;
}

/// Calls `visit(dims)` for every way to tell the dims of viewed items apart.
template <class Visit>
void each_grouping(const View& view, const Visit& visit) {
  std::vector<std::size_t> either;
  for (std::size_t i = 0; i < view.links.size(); ++i)
    if (view.links[i] == View::Link::either)
      either.push_back(i);
  for (std::size_t joins = 0; joins < (std::size_t{1} << either.size()); ++joins) {
    std::vector<std::size_t> dims(view.links.size(), 0);
    std::size_t next = 0;
    for (std::size_t i = 1; i < view.links.size(); ++i) {
      bool same = view.links[i] == View::Link::same_dim;
      if (view.links[i] == View::Link::either)
        same = (joins >> next++ & 1) != 0;
      dims[i] = dims[i - 1] + (same ? 0 : 1);
    }
    visit(dims);
  }
}

} // namespace

Result<Viewed> view_of(const Selection& selection, const Shape& shape) {
  Viewed viewed;
  if (selection.view) {
    auto found = shape.empty() ? std::nullopt : split(*selection.view, shape);
    if (!found)
      return fail(Code::invalid_topology,
                  "the view {} does not split these dims (a view splits dims, in order, and never joins them)",
                  selection.view->text);
    viewed = std::move(*found);
  } else {
    viewed.extents = shape;
    viewed.dims.resize(shape.size());
    std::iota(viewed.dims.begin(), viewed.dims.end(), std::size_t{0});
  }
  if (selection.slice && selection.slice->size() != viewed.extents.size())
    return fail(Code::invalid_topology, "the slice has {} items, but there are {} dims", selection.slice->size(),
                viewed.extents.size());
  return viewed;
}

Result<Selected> select(const Selection& selection, const std::vector<Index>& bound, const Order& order,
                        const Shape& shape) {
  auto viewed = view_of(selection, shape);
  if (!viewed)
    return pass_on(std::move(viewed));
  Selected result;
  result.full_shape = shape;
  result.base.assign(shape.size(), 0);
  std::vector<Factor> kept; // in the tensor's order
  std::vector<Place> places;
  const std::size_t n = viewed->extents.size();
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t dim = viewed->dims[i];
    const Index extent = viewed->extents[i];
    Index weight = 1;
    for (std::size_t later = i + 1; later < n && viewed->dims[later] == dim; ++later)
      weight *= viewed->extents[later];
    const SliceItem item = item_at(selection, i);
    Span range{0, extent};
    if (item.kind == SliceItem::Kind::range || item.kind == SliceItem::Kind::index)
      range = item.range;
    else if (item.kind != SliceItem::Kind::all)
      range = {bound[i], bound[i] + 1};
    if (range.end > extent || range.begin < 0)
      return fail(Code::invalid_topology, "slice item {} keeps {}:{}, past the {} of its dim", i, range.begin,
                  range.end, extent);
    result.base[dim] += range.begin * weight;
    if (!keeps_dim(item))
      continue;
    const Index count = item.kind == SliceItem::Kind::range ? steps_in(item) : extent;
    // One position has no step: the slice's own may be past any dim.
    kept.push_back({dim, count, count == 1 ? weight : item.step * weight, false});
    places.push_back({dim, !places.empty() && places.back().dim == dim ? places.back().nth + 1 : 0});
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<Factor> of_dim;
    for (const Factor& factor : kept)
      if (factor.dim == d)
        of_dim.push_back(factor);
    auto positions = positions_of(of_dim, result.base[d]);
    if (!positions)
      return pass_on(std::move(positions));
    result.kept.push_back(std::move(*positions));
  }
  auto sequence = ordered(kept.size(), order);
  if (!sequence)
    return pass_on(std::move(sequence));
  for (std::size_t i = 0; i < sequence->size(); ++i) {
    Factor factor = kept[(*sequence)[i]];
    factor.joins = i > 0 && places[(*sequence)[i]].follows(places[(*sequence)[i - 1]]);
    if (factor.joins)
      result.shape.back() *= factor.count;
    else
      result.shape.push_back(factor.count);
    result.factors.push_back(factor);
  }
  return result;
}

Result<std::vector<ShapeHint>> shapes_keeping(const Selection& selection, const std::vector<Index>& most,
                                              const Order& order, const Shape& target) {
  std::size_t kept = target.size();
  if (selection.slice)
    kept = static_cast<std::size_t>(std::count_if(selection.slice->begin(), selection.slice->end(), keeps_dim));
  else if (selection.view)
    kept = selection.view->extents.size();
  auto sequence = ordered(kept, order);
  if (!sequence)
    return pass_on(std::move(sequence));
  std::vector<ShapeHint> hints;
  const auto add = [&](const std::vector<std::size_t>& dims, const std::vector<Index>& extents) {
    auto hint = shape_keeping(selection, dims, extents, most, *sequence, target);
    if (!hint)
      return;
    const bool known =
      std::any_of(hints.begin(), hints.end(), [&](const ShapeHint& other) { return other.shape == hint->shape; });
    if (selection.view) { // the view must read the shape as it was meant here
      const auto read = view_of(selection, hint->shape);
      if (!read || read->dims != dims)
        return;
    }
    if (!known)
      hints.push_back(std::move(*hint));
  };
  if (selection.view) {
    each_grouping(*selection.view, [&](const std::vector<std::size_t>& dims) { add(dims, selection.view->extents); });
    if (hints.empty())
      return fail(Code::invalid_topology, "no shape viewed as {} keeps {} by this slice", selection.view->text,
                  to_string(target));
    return hints;
  }
  if (kept != target.size())
    return fail(Code::invalid_topology, "the slice keeps {} dims, the other side has shape {}", kept,
                to_string(target));
  const std::size_t n = selection.slice ? selection.slice->size() : target.size();
  std::vector<std::size_t> dims(n);
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  add(dims, std::vector<Index>(n, View::rest));
  if (hints.empty())
    return fail(Code::invalid_topology, "no shape keeps {} by this slice", to_string(target));
  return hints;
}

std::vector<Shape> shapes_viewed(const View& view) {
  std::vector<Shape> shapes;
  if (std::find(view.extents.begin(), view.extents.end(), View::rest) != view.extents.end())
    return shapes;
  each_grouping(view, [&](const std::vector<std::size_t>& dims) {
    Shape shape;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (i == 0 || dims[i] != dims[i - 1])
        shape.push_back(1);
      shape.back() *= view.extents[i];
    }
    shapes.push_back(std::move(shape));
  });
  return shapes;
}

} // namespace deltawire::layout
