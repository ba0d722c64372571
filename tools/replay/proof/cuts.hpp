// Which elements of a parameter one worker holds. Design, section 4, placement: cuts in the order given, each of what
// the ones before left.
#pragma once

#include "reads.hpp"

namespace deltawire::replay::proof {

/// A box of positions, packed row-major; of that a range of elements where a cut is flat.
struct Holding {
  std::vector<Shape> positions; ///< for each dim which of the full parameter's, in the order held
  Shape box;                    ///< how many, for each dim
  Shape local_shape;            ///< `box`, or the length of the range
  Index begin = 0;              ///< of the box's elements
  Index end = 0;
};

[[nodiscard]] Result<Holding> holding_of(const std::string& name, const Shape& shape, const std::vector<Read>& reads,
                                         const Rules& rules, const Shape& coordinates);

} // namespace deltawire::replay::proof
