// `deltawire inspect`: the header and the pieces of a flush file, as `replay --keep-flushes` writes them.
#pragma once

#include "replay/exit_status.hpp"

#include <string>

namespace deltawire::inspect {

struct InspectOptions {
  std::string flush; ///< file
  bool json = false;
};

/// Runs it; messages go to standard error.
[[nodiscard]] replay::ExitStatus inspect_command(const InspectOptions& options);

} // namespace deltawire::inspect
