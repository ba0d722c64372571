// The walk goes dim by dim. At each dim the segments of the regions that are still alive cut the dim into intervals;
// intervals with the same alive regions form a class, which is followed once, whatever its number of intervals. A class
// without regions is a hole, a leaf with several is an overlap, and one region alone needs only its lengths.
//
// Regions that lie over each other in many ways have a class for each way, to the power of the dims: no such layout is
// anybody's, and a declaration that comes over the network must not make the walk endless. So its steps are counted.

#include "layout/coverage.hpp"

#include <algorithm>

namespace deltawire::layout {

namespace {

/// Ends of segments that a walk may sort and members of classes that it may keep: this many, and so many more for each
/// segment that is given. Where every element has one owner a segment is visited once for each class of the dims before
/// it that its region is alive in.
constexpr std::size_t free_steps = std::size_t{1} << 22;
constexpr std::size_t steps_a_segment = 64;

/// Boxes kept of one fault before its first one is grown over its neighbours; a fault may have very many.
constexpr std::size_t kept_boxes = 256;

struct FoundFault {
  std::vector<std::uint32_t> regions;
  std::vector<Box> boxes;
  Index elements = 0;
};

/// Grows `box` by `other` if they differ in one dim at most, and touch there.
bool join(Box& box, const Box& other) {
  std::size_t differing = box.size();
  for (std::size_t d = 0; d < box.size(); ++d) {
    if (box[d] == other[d])
      continue;
    if (differing != box.size())
      return false;
    differing = d;
  }
  if (differing == box.size())
    return true;
  Range& range = box[differing];
  if (range.end != other[differing].begin && other[differing].end != range.begin)
    return false;
  range = {std::min(range.begin, other[differing].begin), std::max(range.end, other[differing].end)};
  return true;
}

/// The box whose first element comes first in row-major order.
bool corner_less(const Box& a, const Box& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](const Range& x, const Range& y) { return x.begin < y.begin; });
}

/// The first box, after boxes that touch were joined until none do.
Box first_box(std::vector<Box> boxes) {
  for (bool joined = true; joined;) {
    joined = false;
    for (std::size_t i = 0; i < boxes.size(); ++i)
      for (std::size_t j = i + 1; j < boxes.size();) {
        if (join(boxes[i], boxes[j])) {
          boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(j));
          joined = true;
        } else {
          ++j;
        }
      }
  }
  return *std::min_element(boxes.begin(), boxes.end(), corner_less);
}

class FaultWalk {
public:
  FaultWalk(const Shape& shape, std::span<const Region* const> regions, Cover cover, std::size_t most)
    : shape_(shape), regions_(regions), cover_(cover), most_(most), box_(shape.size()) {
    for (const Region* region : regions)
      for (const auto& segments : region->dims)
        steps_left_ += steps_a_segment * segments.size();
  }

  Result<std::vector<Fault>> run() {
    std::vector<std::uint32_t> alive;
    for (std::uint32_t r = 0; r < regions_.size(); ++r)
      if (std::none_of(regions_[r]->dims.begin(), regions_[r]->dims.end(), [](const auto& d) { return d.empty(); }))
        alive.push_back(r);
    descend(0, alive, 1);
    if (steps_left_ == 0)
      return fail(Code::limit_exceeded,
                  "the {} regions that cover it lie over each other in too many ways to be checked; check the maps and "
                  "placements of both sides",
                  regions_.size());

    std::vector<Fault> faults;
    if (hole_.elements > 0)
      faults.push_back({{}, first_box(std::move(hole_.boxes)), hole_.elements});
    const auto holes = static_cast<std::ptrdiff_t>(faults.size());
    for (FoundFault& found : overlaps_)
      faults.push_back({std::move(found.regions), first_box(std::move(found.boxes)), found.elements});
    std::stable_sort(faults.begin() + holes, faults.end(),
                     [](const Fault& a, const Fault& b) { return corner_less(a.first, b.first); });
    return faults;
  }

private:
  struct Event {
    Index at = 0;
    bool begins = false;
    std::uint32_t region = 0;
  };

  struct Class {
    std::vector<std::uint32_t> alive;
    Range first;
    Index length = 0; ///< of all its intervals
  };

  /// box_ holds the ranges of the dims before `dim`, `weight` the elements of their classes.
  void descend(std::size_t dim, const std::vector<std::uint32_t>& alive, Index weight) {
    if (stopped_)
      return;
    if (alive.empty()) {
      for (std::size_t d = dim; d < shape_.size(); ++d) {
        box_[d] = {0, shape_[d]};
        weight *= shape_[d];
      }
      add(hole_, weight);
      return;
    }
    if (alive.size() == 1 && covers_rest(*regions_[alive.front()], dim))
      return;
    if (cover_ == Cover::at_least_once &&
        std::any_of(alive.begin(), alive.end(), [&](std::uint32_t r) { return covers_rest(*regions_[r], dim); }))
      return;
    if (dim == shape_.size()) {
      add_overlap(alive, weight);
      return;
    }
    for (const Class& cls : classes(dim, alive)) {
      box_[dim] = cls.first;
      descend(dim + 1, cls.alive, weight * cls.length);
    }
  }

  [[nodiscard]] bool covers_rest(const Region& region, std::size_t dim) const {
    for (std::size_t d = dim; d < shape_.size(); ++d) {
      Index covered = 0;
      for (const Segment& segment : region.dims[d])
        covered += segment.length;
      if (covered != shape_[d])
        return false;
    }
    return true;
  }

  /// Whether so many steps may still be taken; otherwise the walk is over.
  bool take(std::size_t steps) {
    steps_left_ -= std::min(steps_left_, steps);
    stopped_ = stopped_ || steps_left_ == 0;
    return steps_left_ > 0;
  }

  /// In the order of their first index; some of them where steps_left_ ends.
  [[nodiscard]] std::vector<Class> classes(std::size_t dim, const std::vector<std::uint32_t>& alive) {
    std::vector<Event> events;
    std::size_t ends = 0;
    for (const std::uint32_t r : alive)
      ends += 2 * regions_[r]->dims[dim].size();
    if (!take(ends))
      return {};
    events.reserve(ends);
    for (std::uint32_t r : alive)
      for (const Segment& segment : regions_[r]->dims[dim]) {
        events.push_back({segment.slot, true, r});
        events.push_back({segment.slot + segment.length, false, r});
      }
    // Ends before beginnings, so that a region whose segments touch leaves and comes back at the same place.
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return a.at != b.at ? a.at < b.at : a.begins < b.begins; });

    std::vector<Class> result;
    std::vector<std::size_t> by_alive; // indices into result, sorted by their alive sets
    std::vector<std::uint32_t> now;
    const auto add_interval = [&](Index begin, Index end) {
      if (begin == end || stopped_)
        return;
      const auto found =
        std::lower_bound(by_alive.begin(), by_alive.end(), now,
                         [&](std::size_t index, const auto& set) { return result[index].alive < set; });
      if (found == by_alive.end() || result[*found].alive != now) {
        if (!take(now.size()))
          return;
        by_alive.insert(found, result.size());
        result.push_back({now, {begin, end}, end - begin});
        return;
      }
      Class& cls = result[*found];
      cls.length += end - begin;
      if (cls.first.end == begin)
        cls.first.end = end;
    };
    Index begin = 0;
    for (const Event& event : events) {
      add_interval(begin, event.at);
      begin = event.at;
      const auto place = std::lower_bound(now.begin(), now.end(), event.region);
      if (event.begins)
        now.insert(place, event.region);
      else
        now.erase(place);
    }
    add_interval(begin, shape_[dim]);
    return result;
  }

  void add(FoundFault& fault, Index elements) const {
    fault.elements += elements;
    if (fault.boxes.size() < kept_boxes)
      fault.boxes.push_back(box_);
  }

  void add_overlap(const std::vector<std::uint32_t>& alive, Index elements) {
    auto found =
      std::find_if(overlaps_.begin(), overlaps_.end(), [&](const FoundFault& fault) { return fault.regions == alive; });
    if (found == overlaps_.end()) {
      if (overlaps_.size() == most_) {
        stopped_ = true;
        return;
      }
      found = overlaps_.insert(overlaps_.end(), FoundFault{alive, {}, 0});
    }
    add(*found, elements);
  }

  const Shape& shape_;
  std::span<const Region* const> regions_;
  Cover cover_;
  std::size_t most_;
  Box box_;
  FoundFault hole_;
  std::vector<FoundFault> overlaps_;
  std::size_t steps_left_ = free_steps;
  bool stopped_ = false;
};

} // namespace

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box[d].begin, box[d].end);
  return text + "]";
}

Result<std::vector<Fault>> find_faults(const Shape& shape, std::span<const Region* const> regions, Cover cover,
                                       std::size_t most) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end())
    return std::vector<Fault>{};
  return FaultWalk(shape, regions, cover, most).run();
}

} // namespace deltawire::layout
