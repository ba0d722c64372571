// What a worker's parameters are made of: which slots each of them reads, by the worker's maps.
#pragma once

#include "slots.hpp"

#include <map>

namespace deltawire::replay::proof {

struct Read {
  const Slot* slot = nullptr;
  const Map* map = nullptr; ///< null: the slot under its own name
  Pick of_parameter;
  Pick of_slot;
};

/// By parameter, for the worker at these coordinates; without those that it does not hold. A slot that a map names on
/// any worker no longer stands for itself. The reads point into `worker` and `slots`.
[[nodiscard]] Result<std::map<std::string, std::vector<Read>>>
reads_of(const Rules& worker, const std::vector<Slot>& slots, const Shape& coordinates);

/// The full shape of a parameter: as declared, or what its reads tell.
[[nodiscard]] Result<Shape> full_shape_of(const std::string& name, const std::vector<Read>& reads, const Fact* fact);

} // namespace deltawire::replay::proof
