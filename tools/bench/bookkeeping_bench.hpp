// What an update costs where nothing changed, beyond reading the memory: a model of many small tensors, many ranks in
// one process.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"
#include "result.hpp"

namespace deltawire::bench {

/// Rows of experts that lie whole on a rank each, and of experts that are cut over all ranks; each with a quarter of
/// the slots too, of four times their size. --tensors are slots. Fails as the facade does.
[[nodiscard]] Result<Report> bookkeeping_bench(const BenchOptions& options);

} // namespace deltawire::bench
