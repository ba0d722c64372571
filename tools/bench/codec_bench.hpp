// Position codecs and value lanes against memory: encoding what a diff found, checking pieces, and decoding them.
#pragma once

#include "bench_command.hpp"
#include "report.hpp"
#include "result.hpp"

namespace deltawire::bench {

/// One thread. Every codec's pieces are decoded and compared with what was encoded before anything is timed; fails with
/// Code::verification_failed where they differ.
[[nodiscard]] Result<Report> codec_bench(const BenchOptions& options);

} // namespace deltawire::bench
