// How long workers stand still for an update, against what exchanging the same elements and reading them back takes: in
// a model, and in one of four times the size with as many changes.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"
#include "result.hpp"

namespace deltawire::bench {

/// Every update is compared with the trainer's weights, outside the measured time. --density is that of the smaller
/// model. Fails as update_bench() does.
[[nodiscard]] Result<Report> pause_bench(const BenchOptions& options);

} // namespace deltawire::bench
