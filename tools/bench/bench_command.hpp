// `deltawire bench [NAME] [--json]`: benchmarks, each with its ratio to the machine's own limit measured in the same
// run.
#pragma once

#include "replay/exit_status.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltawire::bench {

/// As given on the command line; what is not given has the benchmark's own default.
struct BenchOptions {
  std::string name;            ///< empty or "all": all of them
  std::string instruction_set; ///< empty: the best one
  bool json = false;
  bool markdown = false; ///< tables for README

  std::optional<double> gib; ///< of weights
  std::optional<std::int64_t> tensors;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> workers;
  std::vector<double> densities; ///< percent of the elements that change; empty: the default
  std::optional<std::int64_t> runs;
  bool clustered = false;
  bool processes = false;
  std::vector<std::string> overrides; ///< "key=value" over the topology
};

/// The names to choose from, for help and messages: "kernel, ...".
[[nodiscard]] std::string bench_names();

/// Prints results as they come (a table), or one JSON object at the end.
[[nodiscard]] replay::ExitStatus bench_command(const BenchOptions& options);

} // namespace deltawire::bench
