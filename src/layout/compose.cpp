#include "layout/compose.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

/// One parameter dim's contribution: an offset and a segment list for each slot dim made of it.
struct Contribution {
  Index base = 0;
  std::vector<std::vector<Segment>> dims;
};

/// Ranges of digits, one a part.
using Box = std::vector<Span>;

/// Hull of the positions that parts j.. keep, relative to the digits before.
Span kept_hull(const std::vector<Part>& parts, std::size_t j) {
  Span hull{0, 1};
  for (; j < parts.size(); ++j) {
    hull.begin += parts[j].kept.begin * parts[j].weight;
    hull.end += (parts[j].kept.end - 1) * parts[j].weight;
  }
  return hull;
}

/// Boxes of kept digits of the parts j.. whose positions lie in `range`; `prefix` holds the ranges before j.
void boxes_within(const std::vector<Part>& parts, std::size_t j, Span range, Box& prefix, std::vector<Box>& out) {
  const Span hull = kept_hull(parts, j);
  if (range.begin >= hull.end || range.end <= hull.begin)
    return;
  if (range.begin <= hull.begin && range.end >= hull.end) {
    Box box = prefix;
    for (std::size_t k = j; k < parts.size(); ++k)
      box.push_back(parts[k].kept);
    out.push_back(std::move(box));
    return;
  }
  // Digits whose kept rest lies wholly inside are one box; the one or two digits at the borders recurse.
  const Part& part = parts[j];
  const Span rest = kept_hull(parts, j + 1);
  auto whole = [&](Index digit) {
    return range.begin <= digit * part.weight + rest.begin && range.end >= digit * part.weight + rest.end;
  };
  auto recurse = [&](Index digit) {
    prefix.push_back({digit, digit + 1});
    boxes_within(parts, j + 1, {range.begin - digit * part.weight, range.end - digit * part.weight}, prefix, out);
    prefix.pop_back();
  };
  const Index first = std::max(part.kept.begin, std::max<Index>(range.begin, 0) / part.weight);
  const Index last = std::min(part.kept.end - 1, (range.end - 1) / part.weight);
  if (first > last)
    return;
  Span middle{whole(first) ? first : first + 1, whole(last) ? last + 1 : last};
  if (!whole(first))
    recurse(first);
  if (middle.begin < middle.end) {
    Box box = prefix;
    box.push_back(middle);
    for (std::size_t k = j + 1; k < parts.size(); ++k)
      box.push_back(parts[k].kept);
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

/// The segments of one slot dim for a box: parts from `k` on, outer digits fixed in `slot` and `local`.
void segments_of(const std::vector<Part>& parts, const SlotDim& slot_dim, std::size_t k, const Box& box, Index stride,
                 Index slot, Index local, std::vector<Segment>& out) {
  const std::size_t p = slot_dim.parts[k];
  Index inner = 1;
  for (std::size_t i = k + 1; i < slot_dim.parts.size(); ++i) {
    const Span& kept = parts[slot_dim.parts[i]].kept;
    inner *= kept.end - kept.begin;
  }
  const Index step = parts[p].weight * stride;
  const Span digits = box[p];
  if (k + 1 == slot_dim.parts.size()) {
    append(out,
           {slot + digits.begin - parts[p].kept.begin, digits.end - digits.begin, local + digits.begin * step, step});
    return;
  }
  for (Index digit = digits.begin; digit < digits.end; ++digit)
    segments_of(parts, slot_dim, k + 1, box, stride, slot + (digit - parts[p].kept.begin) * inner, local + digit * step,
                out);
}

/// Moves the first segment's address into the base, so that contributions compare.
void normalise(Contribution& contribution) {
  for (auto& segments : contribution.dims) {
    const Index shift = segments.front().local;
    contribution.base += shift;
    for (Segment& segment : segments)
      segment.local -= shift;
  }
}

/// Joins `b` into `a` where they differ along one slot dim only (and do not meet there).
bool join(Contribution& a, const Contribution& b) {
  std::size_t differing = a.dims.size();
  for (std::size_t d = 0; d < a.dims.size(); ++d) {
    if (a.dims[d] == b.dims[d])
      continue;
    if (differing != a.dims.size())
      return false;
    differing = d;
  }
  if (differing == a.dims.size())
    return false;
  std::vector<Segment> all = a.dims[differing];
  for (Segment segment : b.dims[differing]) {
    segment.local += b.base - a.base;
    all.push_back(segment);
  }
  std::sort(all.begin(), all.end(), [](const Segment& x, const Segment& y) { return x.slot < y.slot; });
  std::vector<Segment> joined;
  for (const Segment& segment : all) {
    if (!joined.empty() && joined.back().slot + joined.back().length > segment.slot)
      return false;
    append(joined, segment);
  }
  a.dims[differing] = std::move(joined);
  normalise(a);
  return true;
}

std::vector<Contribution> contributions(const std::vector<Part>& parts, std::span<const SlotDim* const> slot_dims,
                                        const std::vector<Interval>& held, Index stride) {
  std::vector<Contribution> result;
  for (const Interval& interval : held) {
    std::vector<Box> boxes;
    Box prefix;
    boxes_within(parts, 0, {interval.global, interval.global + interval.length}, prefix, boxes);
    for (const Box& box : boxes) {
      Contribution next;
      next.base = (interval.local - interval.global) * stride;
      for (std::size_t p = 0; p < parts.size(); ++p)
        if (parts[p].dropped)
          next.base += box[p].begin * parts[p].weight * stride;
      for (const SlotDim* slot_dim : slot_dims) {
        next.dims.emplace_back();
        segments_of(parts, *slot_dim, 0, box, stride, 0, 0, next.dims.back());
      }
      normalise(next);
      result.push_back(std::move(next));
    }
  }
  if (slot_dims.size() == 1 && result.size() > 1) {
    // the common case in one pass: every piece is a part of the one list
    std::vector<Segment> all;
    for (const Contribution& piece : result)
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
    return {one};
  }
  for (bool joined_any = true; joined_any;) {
    joined_any = false;
    for (std::size_t i = 0; i < result.size(); ++i)
      for (std::size_t k = result.size(); k-- > i + 1;)
        if (join(result[i], result[k])) {
          result.erase(result.begin() + static_cast<std::ptrdiff_t>(k));
          joined_any = true;
        }
  }
  return result;
}

} // namespace

std::vector<Region> compose(const AppliedMap& map, const Shard& shard, std::span<const Index> strides) {
  std::vector<Region> regions(1);
  regions.front().dims.resize(map.slot_dims.size());
  for (std::size_t d = 0; d < map.parts.size(); ++d) {
    if (map.kept[d].empty())
      return {};
    std::vector<const SlotDim*> slot_dims;
    std::vector<std::size_t> places;
    for (std::size_t s = 0; s < map.slot_dims.size(); ++s)
      if (map.slot_dims[s].dim == d) {
        slot_dims.push_back(&map.slot_dims[s]);
        places.push_back(s);
      }
    const std::vector<Contribution> pieces = contributions(map.parts[d], slot_dims, shard.dims[d], strides[d]);
    std::vector<Region> next;
    for (const Region& region : regions)
      for (const Contribution& piece : pieces) {
        Region grown = region;
        grown.base += piece.base;
        for (std::size_t i = 0; i < places.size(); ++i)
          grown.dims[places[i]] = piece.dims[i];
        next.push_back(std::move(grown));
      }
    regions = std::move(next);
  }
  return regions;
}

} // namespace deltawire::layout
