// Shards: the part of a parameter that one rank or worker holds, in closed form.
//
// Cuts leave a product of index lists, one a dim, packed. A flat cut keeps an interval of the row-major elements of
// what was packed; such an interval is at most 2k - 1 boxes over k dims. boxes_of() gives every shard as boxes.
#pragma once

#include "layout/shape.hpp"

#include <optional>
#include <span>
#include <vector>

namespace deltawire::layout {

/// Indices of one dim that a rank holds: global, global + step, .. (`length` of them) lie at local..local+length of the
/// packed dim.
struct Interval {
  Index global = 0;
  Index local = 0;
  Index length = 0;
  Index step = 1; ///< 1 where length is 1

  friend bool operator==(const Interval&, const Interval&) = default;
};

/// begin..end of the row-major elements of a tensor.
struct FlatRange {
  Index begin = 0;
  Index end = 0;

  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

struct Shard {
  Shape full_shape;
  Shape local_shape; ///< of the memory: the packed dims, or the length of the flat interval
  /// One list a dim, sorted by global and by local, packed without gaps. With a flat cut: before it.
  std::vector<std::vector<Interval>> dims;
  std::optional<FlatRange> flat; ///< of the packed dims' elements
  bool held = true;              ///< false: `on` leaves this rank out, it has no such parameter
  /// Lowest coordinate on every replicating axis (an axis that cuts nothing of this parameter). A map with cuts of its
  /// own may have another owner for its slice.
  bool owner = true;
};

/// A box of a shard: the product of `dims`, whose elements lie at base + sum over d of local_d * strides[d].
struct ShardBox {
  std::vector<std::vector<Interval>> dims;
  std::vector<Index> strides;
  Index base = 0;
};

/// The shard as the fewest boxes, in the order of its elements; none where it has no elements. `strides`: of the local
/// memory, in elements, one a dim of local_shape.
[[nodiscard]] std::vector<ShardBox> boxes_of(const Shard& shard, std::span<const Index> strides);

} // namespace deltawire::layout
