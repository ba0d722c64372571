// `deltawire diff`: what changed between two checkpoints, and what moving it costs.
#pragma once

#include "replay/exit_status.hpp"

#include <cstddef>
#include <string>

namespace deltawire::diff {

struct DiffOptions {
  std::string before; ///< a checkpoint: a file, an index or a folder
  std::string after;
  std::size_t top = 20; ///< tensors with a row of their own
  bool json = false;
};

/// Runs it; messages go to standard error.
[[nodiscard]] replay::ExitStatus diff_command(const DiffOptions& options);

} // namespace deltawire::diff
