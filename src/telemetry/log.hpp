// What deltawire has to say to people while it runs: one line at a time, on standard error unless the program takes the
// lines itself. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace deltawire::telemetry {

/// Gets every line, without a newline, on the thread that says it; must not throw. Empty: standard error again.
using LogSink = std::function<void(std::string_view line)>;
void set_log(LogSink sink);

/// "deltawire: " and the line.
void log(const std::string& line);

} // namespace deltawire::telemetry
