// What the command says: results on standard output, failures on standard error.
#pragma once

#include "exit_status.hpp"

#include <string>

namespace deltawire::replay {

/// "deltawire: MESSAGE" on standard error.
void print_error(const Failure& failure);

/// print_error, and the status that goes with it.
[[nodiscard]] ExitStatus report_failure(const Failure& failure);

/// Writes to standard output and flushes; Code::output_failed where that fails, naming the option that asked for the
/// text, if one did.
[[nodiscard]] Result<void> print_out(const std::string& text, const std::string& option = "");

} // namespace deltawire::replay
