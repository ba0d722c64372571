// Declarations come over the network: nothing in them is believed before it was checked here.
#pragma once

#include "layout/problems.hpp"
#include "layout/region.hpp"

#include <string_view>

namespace deltawire::layout {

/// Appends what is wrong with a declaration in itself, prefixed by `who` ("rank 3"). Without an addition the rest of
/// the room may rely on: indices, dtypes and dim counts in range, names unique, shapes countable, segments sorted,
/// disjoint, within the slot; every local address within the parameter's buffer, where it starts, ends, and anything
/// between below 2^62 in magnitude; a region and its slot and parameter of one dtype.
void check_declaration(const Declaration& declaration, std::string_view who, Problems& problems);

/// True if the region covers no element.
[[nodiscard]] bool is_empty(const Region& region) noexcept;

} // namespace deltawire::layout
