// Bits of a worker's memory against those of checkpoint tensors, along a parameter's pieces.
#pragma once

#include "plan.hpp"

#include <span>

namespace deltawire::replay::proof {

/// An element that is not as it must be.
struct Difference {
  Index local = 0;
  std::optional<std::size_t> tensor; ///< of the checkpoint; nothing: padding
  Index origin = 0;                  ///< in that tensor
};

struct Compared {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;
  Difference first; ///< the least local one
};

/// Compares all that the worker holds of the parameter. `data`: of each tensor of the checkpoint.
[[nodiscard]] Compared compare(const Parameter& parameter, const std::byte* held,
                               std::span<const std::byte* const> data);

} // namespace deltawire::replay::proof
