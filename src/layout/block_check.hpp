// Blocks that came over the network, checked before anything is addressed with them.
#pragma once

#include "layout/declaration_check.hpp"
#include "layout/plan.hpp"

#include <span>

namespace deltawire::layout {

/// Ids ascending and below `block_ids`, indices in range, dtypes that go with the parameters' (dtypes_fit), extents
/// positive, and every local address within the parameter's local buffer. Fails with Code::invalid_input naming the
/// block.
[[nodiscard]] Result<void> check_blocks(std::span<const Block> blocks, Of of, std::span<const ParameterSpec> parameters,
                                        std::size_t slots, std::size_t cells, std::uint32_t block_ids,
                                        std::uint32_t windows);

} // namespace deltawire::layout
