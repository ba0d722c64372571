// What telemetry costs an update: everything on (a metrics endpoint that is scraped every second, and a trace) against
// everything off.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace deltawire::bench {

/// Two sessions share the trainer's weights: each change of these is published by one and then by the other, the order
/// turning from pair to pair, so that what slows the machine down meets both; halfway new sessions are opened, in the
/// other order. Every update is compared with the weights. What only a build without telemetry would save, the metering
/// of messages, is measured by itself. Fails as update_bench() does.
[[nodiscard]] Result<Report> telemetry_bench(const BenchOptions& options);

/// The bounds of a confidence interval of the median that assumes nothing of the distribution: the narrowest two of the
/// sorted values that hold it with a probability of at least 95 %, or the least and the greatest where there are too
/// few (under six). Requires at least one value.
[[nodiscard]] std::pair<double, double> median_interval(std::vector<double> values);

} // namespace deltawire::bench
