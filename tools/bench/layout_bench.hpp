// The layout against the machine: positions translated to the full tensor, against a plain copy of the positions.
#pragma once

#include "report.hpp"

namespace deltawire::bench {

/// translate_flat_indices for contiguous blocks, shards of an inner dim and blocks cut in three dims.
[[nodiscard]] Report layout_bench();

} // namespace deltawire::bench
