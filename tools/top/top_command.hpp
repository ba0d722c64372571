// `deltawire top`: a live view of the actors and workers behind one or more metrics endpoints (telemetry.prometheus).
#pragma once

#include "replay/exit_status.hpp"

#include <string>
#include <vector>

namespace deltawire::top {

struct TopOptions {
  std::vector<std::string> addresses; ///< "host:port", merged into one view
  double interval_s = 1;              ///< between frames
  bool once = false;                  ///< one frame, and the end
};

/// Runs it until interrupted, or until no endpoint answers any more; messages go to standard error. Exit status 3 where
/// nothing answers the first time. On a terminal each frame replaces the one before; elsewhere they follow each other.
[[nodiscard]] replay::ExitStatus top_command(const TopOptions& options);

} // namespace deltawire::top
