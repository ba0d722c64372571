// `deltawire replay`: checkpoints through the whole pipeline, proven on every worker.
#pragma once

#include "exit_status.hpp"

#include <string>
#include <vector>

namespace deltawire::replay {

struct ReplayOptions {
  std::string topology;
  std::vector<std::string> checkpoints; ///< one a version: a file, an index or a folder
  std::vector<std::string> overrides;   ///< "key.path=value"
  bool processes = false;               ///< a process a peer, instead of a thread
  std::size_t parts = 0;                ///< of an update, at random on each rank; 0: all parameters in one call
  std::string dump;                     ///< directory; empty: no dumps
  bool dump_each = false;
  std::string keep_flushes; ///< folder for a file a flush; empty: none
  std::string report;       ///< file; empty: none
  bool quiet = false;       ///< no progress bar
  bool json = false;        ///< the report on standard output, and nothing else there
};

/// Runs it; messages go to standard error. Does not return where peers hang after a failure.
[[nodiscard]] ExitStatus replay_command(const ReplayOptions& options);

} // namespace deltawire::replay
