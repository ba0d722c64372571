// Transports against what carries their bytes: TCP on this machine against bare sockets, in-process against memcpy,
// shared memory against both; to one peer, and each body to several.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"
#include "result.hpp"

namespace deltawire::bench {

/// --gib is what is sent a turn. Fails as the transports do.
[[nodiscard]] Result<Report> transport_bench(const BenchOptions& options);

} // namespace deltawire::bench
