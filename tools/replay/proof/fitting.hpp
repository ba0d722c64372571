// The shape of a tensor that no one states, from the maps that read or fill it. Design, section 4.
#pragma once

#include "kept.hpp"

namespace deltawire::replay::proof {

/// A map's side, and the shape that the other side keeps.
struct Demand {
  Pick pick;
  Shape result;
};

/// The one shape of which each pick keeps its result: `:` takes what the result says, a range its end, a number itself,
/// a view its product; the largest counts where slices only bound an extent. Fails where there is no such shape, or
/// several.
[[nodiscard]] Result<Shape> fitting_shape(const std::vector<Demand>& demands);

} // namespace deltawire::replay::proof
