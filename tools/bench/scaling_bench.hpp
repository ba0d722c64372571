// How the cost of an update grows: with the weights, with ranks, with workers, and with what changes, one at a time.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"
#include "result.hpp"

namespace deltawire::bench {

/// --gib is the smallest size: it is doubled twice. Fails as update_bench() does.
[[nodiscard]] Result<Report> scaling_bench(const BenchOptions& options);

} // namespace deltawire::bench
