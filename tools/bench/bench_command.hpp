// `deltawire bench [NAME] [--json]`: benchmarks, each with its ratio to the machine's own limit measured in the same
// run.
#pragma once

#include "replay/exit_status.hpp"

#include <string>

namespace deltawire::bench {

struct BenchOptions {
  std::string name;            ///< empty: all of them
  std::string instruction_set; ///< empty: the best one
  bool json = false;
};

/// The names to choose from, for help and messages: "kernel, ...".
[[nodiscard]] std::string bench_names();

/// Prints results as they come (a table), or one JSON object at the end.
[[nodiscard]] replay::ExitStatus bench_command(const BenchOptions& options);

} // namespace deltawire::bench
