// Declarations come over the network: nothing in them is believed before it was checked here.
#pragma once

#include "layout/problems.hpp"
#include "layout/region.hpp"

#include <string_view>

namespace deltawire::layout {

/// Whose declaration, and so whose blocks, they are.
enum class Of { rank, worker };

/// Appends what is wrong with a declaration in itself, prefixed by `who` ("rank 3"). Without an addition the rest of
/// the room may rely on: indices, dtypes and dim counts in range, names unique, shapes countable, segments sorted,
/// disjoint, within the slot; every local address within the parameter's buffer, where it starts, ends, and anything
/// between below 2^62 in magnitude; a region's parameter of the dtype of its slot, or a rank's of one that is cast to
/// it.
void check_declaration(const Declaration& declaration, Of of, std::string_view who, Problems& problems);

/// Whether memory of dtype `held` goes with a slot of dtype `wire`.
[[nodiscard]] bool dtypes_fit(DType held, DType wire, Of of) noexcept;

/// True if the region covers no element.
[[nodiscard]] bool is_empty(const Region& region) noexcept;

} // namespace deltawire::layout
