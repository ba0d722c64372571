// Cuts a rank's shard out of a full tensor, as a trainer's own sharding would have.
#pragma once

#include "layout/side.hpp"

#include <cstddef>

namespace deltawire::replay {

/// Copies the shard's elements from `full` (row-major over shard.full_shape) to `local` (row-major over
/// shard.local_shape). The buffers must not overlap.
void copy_shard(const layout::Shard& shard, std::size_t element_bytes, const std::byte* full, std::byte* local);

} // namespace deltawire::replay
