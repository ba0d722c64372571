#include "shard_copy.hpp"

#include <cstring>

namespace deltawire::replay {

namespace {

using layout::Index;

bool is_whole(const std::vector<layout::Interval>& intervals, Index extent) {
  return intervals.size() == 1 && intervals.front() == layout::Interval{0, 0, extent};
}

struct Copy {
  const layout::Shard& shard;
  std::vector<Index> full_strides;  ///< bytes
  std::vector<Index> local_strides; ///< bytes
  std::size_t cut_dims = 0; ///< dims from here on are held whole, so that an index of the last cut one is one run

  void run(std::size_t dim, const std::byte* full, std::byte* local) const {
    for (const layout::Interval& interval : shard.dims[dim]) {
      const std::byte* from = full + interval.global * full_strides[dim];
      std::byte* to = local + interval.local * local_strides[dim];
      if (dim + 1 == cut_dims) {
        std::memcpy(to, from, static_cast<std::size_t>(interval.length * full_strides[dim]));
        continue;
      }
      for (Index i = 0; i < interval.length; ++i)
        run(dim + 1, from + i * full_strides[dim], to + i * local_strides[dim]);
    }
  }
};

std::vector<Index> byte_strides(const layout::Shape& shape, std::size_t element_bytes) {
  std::vector<Index> strides = layout::row_major_strides(shape);
  for (Index& stride : strides)
    stride *= static_cast<Index>(element_bytes);
  return strides;
}

} // namespace

void copy_shard(const layout::Shard& shard, std::size_t element_bytes, const std::byte* full, std::byte* local) {
  for (const Index extent : shard.local_shape)
    if (extent == 0)
      return;
  std::size_t cut_dims = shard.dims.size();
  while (cut_dims > 0 && is_whole(shard.dims[cut_dims - 1], shard.full_shape[cut_dims - 1]))
    --cut_dims;
  if (cut_dims == 0) { // the whole tensor, or a scalar
    std::size_t bytes = element_bytes;
    for (const Index extent : shard.full_shape)
      bytes *= static_cast<std::size_t>(extent);
    std::memcpy(local, full, bytes);
    return;
  }
  const Copy copy{shard, byte_strides(shard.full_shape, element_bytes), byte_strides(shard.local_shape, element_bytes),
                  cut_dims};
  copy.run(0, full, local);
}

} // namespace deltawire::replay
