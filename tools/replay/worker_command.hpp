// `deltawire worker`: one worker, by hand across machines or as a child of `replay --processes`.
#pragma once

#include "child_ties.hpp"

#include <string>
#include <vector>

namespace deltawire::replay {

struct WorkerCommand {
  std::string topology;
  std::uint32_t index = 0;
  std::vector<std::string> verify;    ///< checkpoints to prove its memory with, one a version; may be empty
  std::vector<std::string> overrides; ///< "key.path=value"
  std::string dump;                   ///< file for the last version; empty: none
  std::string dump_each;              ///< directory for every version; empty: none
  ChildTies ties;
};

/// Runs it; prints a line a version.
[[nodiscard]] ExitStatus worker_command(const WorkerCommand& command);

} // namespace deltawire::replay
