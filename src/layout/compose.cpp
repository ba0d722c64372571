#include "layout/compose.hpp"

#include <algorithm>
#include <compare>
#include <numeric>
#include <tuple>

namespace deltawire::layout {
namespace {

/// What a component gives: an offset, and a segment list for each of its slot dims.
struct Contribution {
  Index base = 0;
  std::vector<std::vector<Segment>> dims;
};

/// Ranges of digits.
using Box = std::vector<Span>;

/// A digit and the coordinate that it is of.
struct DimDigit {
  std::size_t common = 0; ///< into Component::common
  Digit digit;
};

/// Hull of the positions that digits j.. reach, relative to the digits before.
Index hull_end(const std::vector<DimDigit>& digits, std::size_t j) {
  Index end = 1;
  for (; j < digits.size(); ++j)
    end += (digits[j].digit.count - 1) * digits[j].digit.stride;
  return end;
}

/// Boxes of the digits j.. whose positions lie in `range`; `prefix` holds the ranges before j. Digits nest: outermost
/// first, each stride is past what the later digits reach.
void boxes_within(const std::vector<DimDigit>& digits, std::size_t j, Span range, Box& prefix, std::vector<Box>& out) {
  const Index end = hull_end(digits, j);
  if (range.begin >= end || range.end <= 0)
    return;
  if (range.begin <= 0 && range.end >= end) {
    Box box = prefix;
    for (std::size_t k = j; k < digits.size(); ++k)
      box.push_back({0, digits[k].digit.count});
    out.push_back(std::move(box));
    return;
  }
  // Digits whose rest lies wholly inside are one box; the one or two digits at the borders recurse.
  const Index stride = digits[j].digit.stride;
  const Index rest = hull_end(digits, j + 1);
  auto whole = [&](Index k) { return range.begin <= k * stride && range.end >= k * stride + rest; };
  auto recurse = [&](Index k) {
    prefix.push_back({k, k + 1});
    boxes_within(digits, j + 1, {range.begin - k * stride, range.end - k * stride}, prefix, out);
    prefix.pop_back();
  };
  const Index first = std::max<Index>(range.begin, 0) / stride;
  const Index last = std::min(digits[j].digit.count - 1, (range.end - 1) / stride);
  if (first > last)
    return;
  Span middle{whole(first) ? first : first + 1, whole(last) ? last + 1 : last};
  if (!whole(first))
    recurse(first);
  if (middle.begin < middle.end) {
    Box box = prefix;
    box.push_back(middle);
    for (std::size_t k = j + 1; k < digits.size(); ++k)
      box.push_back({0, digits[k].digit.count});
    out.push_back(std::move(box));
  }
  if (last != first && !whole(last))
    recurse(last);
}

/// Appends a segment, or continues the last one where slot, address and stride go on. A segment of one element has no
/// stride of its own and takes whichever continues it.
void append(std::vector<Segment>& segments, Segment next) {
  if (!segments.empty()) {
    Segment& last = segments.back();
    if (last.slot + last.length == next.slot) {
      const Index step = last.length > 1 ? last.stride : next.local - last.local;
      const bool next_agrees = next.length == 1 || next.stride == step;
      if (next_agrees && step > 0 && next.local == last.local + last.length * step) {
        last.stride = step;
        last.length += next.length;
        return;
      }
    }
  }
  segments.push_back(next);
}

/// A digit of a slot dim: the range held of it, what a step of it is in the local buffer and in the slot.
struct HeldDigit {
  Span range;
  Index count = 1; ///< of the whole digit
  Index local_stride = 1;
  Index slot_stride = 1;
};

/// The segments of one slot dim; digits outermost first, those before `k` fixed in `slot` and `local`.
void segments_of(const std::vector<HeldDigit>& digits, std::size_t k, Index slot, Index local,
                 std::vector<Segment>& out) {
  if (k == digits.size())
    return append(out, {slot, 1, local, 1});
  const HeldDigit& digit = digits[k];
  if (k + 1 == digits.size() && digit.slot_stride == 1)
    return append(out, {slot + digit.range.begin, digit.range.end - digit.range.begin,
                        local + digit.range.begin * digit.local_stride, digit.local_stride});
  for (Index i = digit.range.begin; i < digit.range.end; ++i)
    segments_of(digits, k + 1, slot + i * digit.slot_stride, local + i * digit.local_stride, out);
}

/// Moves the first segment's address into the base, so that contributions (and regions) compare.
template <class Part>
void normalise(Part& part) {
  for (auto& segments : part.dims) {
    const Index shift = segments.front().local;
    part.base += shift;
    for (Segment& segment : segments)
      segment.local -= shift;
  }
}

/// Joins the parts that differ along slot dim `d` only. Requires that they are normalised, and that no two cover the
/// same elements. Returns whether any were joined.
template <class Part>
bool join_along(std::vector<Part>& parts, std::size_t d) {
  const auto compare = [d](const Part& a, const Part& b) { // equal: all dims but d are
    for (std::size_t i = 0; i < a.dims.size(); ++i) {
      if (i == d)
        continue;
      const auto order = std::lexicographical_compare_three_way(
        a.dims[i].begin(), a.dims[i].end(), b.dims[i].begin(), b.dims[i].end(), [](const Segment& x, const Segment& y) {
          return std::tie(x.slot, x.length, x.local, x.stride) <=> std::tie(y.slot, y.length, y.local, y.stride);
        });
      if (order != 0)
        return order;
    }
    return std::strong_ordering::equal;
  };
  std::stable_sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) { return compare(a, b) < 0; });
  std::vector<Part> joined;
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    while (end < parts.size() && compare(parts[begin], parts[end]) == 0)
      ++end;
    Part& first = parts[begin];
    if (end - begin > 1) {
      std::vector<Segment> all;
      for (std::size_t i = begin; i < end; ++i)
        for (Segment segment : parts[i].dims[d]) {
          segment.local += parts[i].base - first.base;
          all.push_back(segment);
        }
      std::sort(all.begin(), all.end(), [](const Segment& x, const Segment& y) { return x.slot < y.slot; });
      first.dims[d].clear();
      for (const Segment& segment : all)
        append(first.dims[d], segment);
      normalise(first);
    }
    joined.push_back(std::move(first));
  }
  const bool any = joined.size() < parts.size();
  parts = std::move(joined);
  return any;
}

template <class Part>
void join_all(std::vector<Part>& parts) {
  for (bool any = parts.size() > 1; any;) {
    any = false;
    for (std::size_t d = 0; d < parts.front().dims.size(); ++d)
      any = join_along(parts, d) || any;
  }
}

/// Dims of the parameter and of the slot that coordinates tie together: they contribute as one, whatever the others do.
struct Component {
  std::vector<std::size_t> dims;
  std::vector<std::size_t> slot_dims;
  std::vector<const CommonDim*> common;
};

std::vector<Component> components_of(const AppliedMap& map) {
  const std::size_t dims = map.base.size();
  std::vector<std::size_t> root(dims + map.slot_base.size()); // parameter dims, then slot dims
  std::iota(root.begin(), root.end(), std::size_t{0});
  const auto find = [&](std::size_t node) {
    while (root[node] != node)
      node = root[node];
    return node;
  };
  for (const CommonDim& common : map.common)
    root[find(common.dim)] = find(dims + common.slot_dim);
  std::vector<Component> components;
  std::vector<std::size_t> number(root.size(), root.size());
  for (std::size_t node = 0; node < root.size(); ++node) {
    std::size_t& place = number[find(node)];
    if (place == root.size()) {
      place = components.size();
      components.emplace_back();
    }
    if (node < dims)
      components[place].dims.push_back(node);
    else
      components[place].slot_dims.push_back(node - dims);
  }
  for (const CommonDim& common : map.common)
    components[number[find(common.dim)]].common.push_back(&common);
  return components;
}

/// Builds what one component contributes.
class Composer {
public:
  Composer(const AppliedMap& map, const Component& component, const ShardBox& held)
    : map_(map), component_(component), held_(held), chosen_(component.common.size()) {}

  std::vector<Contribution> run() {
    choose(0);
    if (component_.slot_dims.size() == 1 && result_.size() > 1)
      return {one_list()};
    join_all(result_);
    return std::move(result_);
  }

private:
  /// One box of a dim's digits, and what the digits' zero is in the local buffer.
  struct DimBox {
    Index base = 0;
    Box box;
  };

  void choose(std::size_t i) {
    if (i == chosen_.size())
      return place();
    for (const Stretch& stretch : component_.common[i]->stretches) {
      chosen_[i] = &stretch;
      choose(i + 1);
    }
  }

  /// All boxes held, for the chosen stretches.
  void place() {
    digits_.assign(component_.dims.size(), {});
    std::vector<std::vector<DimBox>> boxes(component_.dims.size());
    for (std::size_t i = 0; i < component_.dims.size(); ++i) {
      const std::size_t dim = component_.dims[i];
      Index base = map_.base[dim];
      for (std::size_t c = 0; c < chosen_.size(); ++c) {
        if (component_.common[c]->dim != dim)
          continue;
        base += chosen_[c]->offset;
        for (const Digit& digit : chosen_[c]->digits)
          digits_[i].push_back({c, digit});
      }
      // a digit of one element has no stride of its own: it nests anywhere, so last
      std::stable_sort(digits_[i].begin(), digits_[i].end(), [](const DimDigit& a, const DimDigit& b) {
        return std::pair{a.digit.count == 1, -a.digit.stride} < std::pair{b.digit.count == 1, -b.digit.stride};
      });
      const auto place_stretch = [&](Index global, Index local, Index length) {
        std::vector<Box> found;
        Box prefix;
        boxes_within(digits_[i], 0, {global - base, global - base + length}, prefix, found);
        for (Box& box : found)
          boxes[i].push_back({(base + local - global) * held_.strides[dim], std::move(box)});
      };
      for (const Interval& held : held_.dims[dim]) {
        if (held.step == 1)
          place_stretch(held.global, held.local, held.length);
        else // dealt: each position is a stretch of its own
          for (Index k = 0; k < held.length; ++k)
            place_stretch(held.global + k * held.step, held.local + k, 1);
      }
    }
    std::vector<const DimBox*> taken(boxes.size());
    take(boxes, taken, 0);
  }

  void take(const std::vector<std::vector<DimBox>>& boxes, std::vector<const DimBox*>& taken, std::size_t i) {
    if (i == boxes.size())
      return add(taken);
    for (const DimBox& box : boxes[i]) {
      taken[i] = &box;
      take(boxes, taken, i + 1);
    }
  }

  void add(const std::vector<const DimBox*>& taken) {
    Contribution next;
    for (const DimBox* box : taken)
      next.base += box->base;
    for (const std::size_t slot_dim : component_.slot_dims) {
      std::vector<HeldDigit> digits;
      Index slot = map_.slot_base[slot_dim];
      for (std::size_t c = 0; c < chosen_.size(); ++c)
        if (component_.common[c]->slot_dim == slot_dim)
          slot += chosen_[c]->slot_offset;
      for (std::size_t i = 0; i < taken.size(); ++i)
        for (std::size_t k = 0; k < digits_[i].size(); ++k) {
          const DimDigit& digit = digits_[i][k];
          if (component_.common[digit.common]->slot_dim == slot_dim)
            digits.push_back({taken[i]->box[k], digit.digit.count,
                              digit.digit.stride * held_.strides[component_.dims[i]], digit.digit.slot_stride});
        }
      std::stable_sort(digits.begin(), digits.end(),
                       [](const HeldDigit& a, const HeldDigit& b) { return a.slot_stride > b.slot_stride; });
      // a digit of one element is a stride to no place, and is kept only where there is no other
      while (digits.size() > 1) {
        const auto one = std::find_if(digits.begin(), digits.end(), [](const HeldDigit& d) { return d.count == 1; });
        if (one == digits.end())
          break;
        digits.erase(one);
      }
      next.dims.emplace_back();
      segments_of(digits, 0, slot, 0, next.dims.back());
    }
    normalise(next);
    result_.push_back(std::move(next));
  }

  /// The common case in one pass: every contribution is a part of the one slot dim's list.
  Contribution one_list() const {
    std::vector<Segment> all;
    for (const Contribution& piece : result_)
      for (Segment segment : piece.dims.front()) {
        segment.local += piece.base;
        all.push_back(segment);
      }
    std::sort(all.begin(), all.end(), [](const Segment& x, const Segment& y) { return x.slot < y.slot; });
    Contribution one;
    one.dims.emplace_back();
    for (const Segment& segment : all)
      append(one.dims.front(), segment);
    normalise(one);
    return one;
  }

  const AppliedMap& map_;
  const Component& component_;
  const ShardBox& held_;
  std::vector<const Stretch*> chosen_;
  std::vector<std::vector<DimDigit>> digits_; ///< one list a dim of the component
  std::vector<Contribution> result_;
};

/// The regions of one box of the shard.
std::vector<Region> compose_box(const AppliedMap& map, std::span<const Component> components, const ShardBox& box) {
  std::vector<Region> regions(1);
  regions.front().base = box.base;
  regions.front().dims.resize(map.slot_base.size());
  for (const Component& component : components) {
    const std::vector<Contribution> pieces = Composer(map, component, box).run();
    std::vector<Region> next;
    for (const Region& region : regions)
      for (const Contribution& piece : pieces) {
        Region grown = region;
        grown.base += piece.base;
        for (std::size_t i = 0; i < component.slot_dims.size(); ++i)
          grown.dims[component.slot_dims[i]] = piece.dims[i];
        next.push_back(std::move(grown));
      }
    regions = std::move(next);
  }
  return regions;
}

} // namespace

std::vector<Region> compose(const AppliedMap& map, const Shard& shard, std::span<const Index> strides) {
  for (const auto* kept : {&map.kept, &map.slot_kept})
    for (const auto& spans : *kept)
      if (spans.empty())
        return {};
  std::vector<Region> regions;
  const std::vector<Component> components = components_of(map);
  const std::vector<ShardBox> boxes = boxes_of(shard, strides);
  for (const ShardBox& box : boxes)
    for (Region& region : compose_box(map, components, box))
      regions.push_back(std::move(region));
  if (boxes.size() > 1)
    join_all(regions); // a slice may keep of two boxes what makes one
  return regions;
}

} // namespace deltawire::layout
