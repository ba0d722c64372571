// Which elements of a slot a set of regions covers never, once, or more than once: in closed form on the regions'
// segments, never an element at a time.
#pragma once

#include "layout/region.hpp"
#include "result.hpp"

#include <span>
#include <string>
#include <vector>

namespace deltawire::layout {

/// Indices begin..end of one dim.
struct Range {
  Index begin = 0;
  Index end = 0;

  friend auto operator<=>(const Range&, const Range&) = default;
};

/// One range a slot dim; a scalar's box is empty.
using Box = std::vector<Range>;

/// "[0:4, 2:3]"; a scalar's box is "[]".
[[nodiscard]] std::string to_string(const Box& box);

/// Elements that the same regions cover, and not exactly one does.
struct Fault {
  std::vector<std::uint32_t> regions; ///< ascending indices into the regions given; empty: a hole
  Box first;          ///< the box at the first of these elements (row-major), grown over equal neighbours
  Index elements = 0; ///< all of them, in this box and elsewhere
};

enum class Cover {
  exactly_once,  ///< holes and overlaps are faults
  at_least_once, ///< only holes are faults
};

/// Holes first, then overlaps in the order of their first element. Regions must be valid for `shape` (segments sorted,
/// disjoint, within the dims; one list a dim); a dim without segments makes a region empty. At most `most` overlaps
/// come back; the walk stops there. Fails where the regions lie over each other in so many ways that finding out would
/// take long: the work is bounded by a multiple of their segments.
[[nodiscard]] Result<std::vector<Fault>> find_faults(const Shape& shape, std::span<const Region* const> regions,
                                                     Cover cover, std::size_t most);

} // namespace deltawire::layout
