// Whole updates against two bounds that are measured between them: what memory needs to move the same bytes, and what
// the kernels need by themselves.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"
#include "update_rounds.hpp"

namespace deltawire::bench {

/// What the command line says, and the defaults for what it does not.
[[nodiscard]] UpdateSettings settings_of(const BenchOptions& options);

/// Every update is compared with the trainer's weights, outside the measured time. In the order of the densities.
[[nodiscard]] Result<std::vector<Rounds>> measure_updates(const UpdateSettings& settings);

/// A row of the report, with all that was measured.
[[nodiscard]] Row row_of(const UpdateSettings& settings, const Rounds& rounds);

/// Every update is compared with the trainer's weights, outside the measured time. Fails as the facade does, with
/// Code::verification_failed for bits that differ, and with Code::invalid_argument for options that cannot be.
[[nodiscard]] Result<Report> update_bench(const BenchOptions& options);

} // namespace deltawire::bench
