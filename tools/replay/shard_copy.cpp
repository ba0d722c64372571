#include "shard_copy.hpp"

#include <cstring>

namespace deltawire::replay {

namespace {

using layout::Index;
using layout::Interval;

/// Copies one box: dim by dim, and by whole runs where elements follow each other on both sides.
class BoxCopy {
public:
  BoxCopy(const layout::ShardBox& box, std::span<const Index> full_strides, std::size_t element_bytes)
    : box_(box), full_strides_(full_strides), element_bytes_(static_cast<Index>(element_bytes)),
      run_dims_(box.dims.size()) {
    // The dims from run_dims_ on are one interval each that both sides hold without a gap.
    Index run = 1;
    while (run_dims_ > 0) {
      const std::vector<Interval>& held = box.dims[run_dims_ - 1];
      if (held.size() != 1 || held[0].step != 1 || full_strides[run_dims_ - 1] != run ||
          box.strides[run_dims_ - 1] != run)
        break;
      run *= held[0].length;
      --run_dims_;
    }
    run_bytes_ = run * element_bytes_;
  }

  /// Offsets in elements.
  void run(std::size_t dim, const std::byte* full, Index from, std::byte* local, Index to) const {
    if (dim == run_dims_) {
      for (std::size_t d = dim; d < box_.dims.size(); ++d) {
        from += box_.dims[d][0].global * full_strides_[d];
        to += box_.dims[d][0].local * box_.strides[d];
      }
      std::memcpy(local + to * element_bytes_, full + from * element_bytes_, static_cast<std::size_t>(run_bytes_));
      return;
    }
    for (const Interval& interval : box_.dims[dim])
      for (Index i = 0; i < interval.length; ++i)
        run(dim + 1, full, from + (interval.global + i * interval.step) * full_strides_[dim], local,
            to + (interval.local + i) * box_.strides[dim]);
  }

private:
  const layout::ShardBox& box_;
  std::span<const Index> full_strides_;
  Index element_bytes_;
  std::size_t run_dims_;
  Index run_bytes_ = 0;
};

} // namespace

void copy_shard(const layout::Shard& shard, std::size_t element_bytes, const std::byte* full, std::byte* local) {
  const std::vector<Index> full_strides = layout::row_major_strides(shard.full_shape);
  for (const layout::ShardBox& box : layout::boxes_of(shard, layout::row_major_strides(shard.local_shape)))
    BoxCopy(box, full_strides, element_bytes).run(0, full, 0, local, box.base);
}

} // namespace deltawire::replay
