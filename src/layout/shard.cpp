#include "layout/shard.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

/// Indices begin..end of a packed dim.
struct Stretch {
  Index begin = 0;
  Index end = 0;
};

/// Part of the intervals at these packed indices, which they keep.
std::vector<Interval> within(const std::vector<Interval>& held, Stretch stretch) {
  std::vector<Interval> result;
  for (const Interval& interval : held) {
    const Index begin = std::max(interval.local, stretch.begin);
    const Index end = std::min(interval.local + interval.length, stretch.end);
    if (begin < end)
      result.push_back({interval.global + (begin - interval.local) * interval.step, begin, end - begin,
                        end - begin == 1 ? 1 : interval.step});
  }
  return result;
}

class FlatBoxes {
public:
  FlatBoxes(const Shard& shard, Index stride) : shard_(shard) {
    for (const auto& held : shard.dims)
      packed_.push_back(held.empty() ? 0 : held.back().local + held.back().length);
    units_ = row_major_strides(packed_);
    for (const Index unit : units_)
      strides_.push_back(unit * stride);
    base_ = -shard.flat->begin * stride;
  }

  std::vector<ShardBox> run() && {
    if (shard_.flat->begin < shard_.flat->end)
      cut(shard_.flat->begin, shard_.flat->end);
    return std::move(boxes_);
  }

private:
  /// begin..end of the elements under the indices in prefix_; not empty. Rows that are held in part come first and
  /// last; those between are one box.
  void cut(Index begin, Index end) {
    const std::size_t d = prefix_.size();
    if (d == packed_.size())
      return emit();
    const Index unit = units_[d];
    Index first = begin / unit;
    const Index last = (end - 1) / unit; // the row of the last element
    const auto row = [&](Index index, Index from, Index to) {
      prefix_.push_back({index, index + 1});
      cut(from, to);
      prefix_.pop_back();
    };
    if (first == last && (begin % unit != 0 || end % unit != 0))
      return row(first, begin - first * unit, end - first * unit);
    if (begin % unit != 0) {
      row(first, begin % unit, unit);
      ++first;
    }
    const Index whole = end % unit != 0 ? last : last + 1;
    if (first < whole) {
      prefix_.push_back({first, whole});
      emit();
      prefix_.pop_back();
    }
    if (end % unit != 0)
      row(last, 0, end % unit);
  }

  void emit() {
    ShardBox box{{}, strides_, base_};
    for (std::size_t d = 0; d < packed_.size(); ++d)
      box.dims.push_back(d < prefix_.size() ? within(shard_.dims[d], prefix_[d]) : shard_.dims[d]);
    boxes_.push_back(std::move(box));
  }

  const Shard& shard_;
  Shape packed_;
  std::vector<Index> units_;   ///< elements under one index of each packed dim
  std::vector<Index> strides_; ///< the same in local memory
  Index base_ = 0;
  std::vector<Stretch> prefix_;
  std::vector<ShardBox> boxes_;
};

} // namespace

std::vector<ShardBox> boxes_of(const Shard& shard, std::span<const Index> strides) {
  if (!shard.held || std::find(shard.local_shape.begin(), shard.local_shape.end(), 0) != shard.local_shape.end())
    return {};
  if (shard.flat)
    return FlatBoxes(shard, strides.front()).run();
  return {{shard.dims, {strides.begin(), strides.end()}, 0}};
}

} // namespace deltawire::layout
