// The kernels against the machine: memcmp over the same arrays, and plain loops that move the same bytes.
#pragma once

#include "report.hpp"

namespace deltawire::bench {

[[nodiscard]] Report kernel_bench();

} // namespace deltawire::bench
