// Device kernels against the device's own copy, and streaming to it against a plain copy from pinned memory. By the
// device's clock (events), turn by turn.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"

#include "result.hpp"

namespace deltawire::bench {

/// Fails, with the reason, where there is no device.
[[nodiscard]] Result<Report> gpu_bench(const BenchOptions& options);

} // namespace deltawire::bench
