// `deltawire plan`: what will run where, what it may hold, and whether the tensors fit; starts nothing.
#pragma once

#include "replay/exit_status.hpp"

#include <string>
#include <vector>

namespace deltawire::plan {

struct PlanOptions {
  std::string topology;
  std::vector<std::string> checkpoints; ///< none: the graph and the caps alone
  std::vector<std::string> overrides;   ///< "key.path=value"
  bool dot = false;                     ///< the graph for Graphviz, and nothing else
  bool json = false;
};

/// Runs it; refusals go to standard error, all of them at once, and then nothing to standard output.
[[nodiscard]] replay::ExitStatus plan_command(const PlanOptions& options);

} // namespace deltawire::plan
