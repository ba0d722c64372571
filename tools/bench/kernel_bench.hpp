// The kernels against the machine: memcmp over the same arrays, and plain loops that move the same bytes.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"

namespace deltawire::bench {

/// --gib is the size of each array, 0.25 GiB without it.
[[nodiscard]] Report kernel_bench(const BenchOptions& options);

} // namespace deltawire::bench
