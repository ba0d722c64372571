// `deltawire report`: a run's JSON report, and its traces, as one page to look at.
#pragma once

#include "replay/exit_status.hpp"

#include <string>
#include <vector>

namespace deltawire::report {

struct ReportOptions {
  std::string run;                 ///< of replay --report
  std::vector<std::string> traces; ///< of telemetry.trace; may be empty
  std::string output;
};

/// Runs it; messages go to standard error. Bad input is named by file and key.
[[nodiscard]] replay::ExitStatus report_command(const ReportOptions& options);

} // namespace deltawire::report
