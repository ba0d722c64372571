#include "telemetry/log.hpp"

#include <cstdio>
#include <mutex>
#include <unistd.h>
#include <utility>

namespace deltawire::telemetry {
namespace {

struct Log {
  std::mutex mutex;
  LogSink sink;
};

Log& the_log() {
  static Log log;
  return log;
}

} // namespace

void set_log(LogSink sink) {
  Log& log = the_log();
  const std::lock_guard lock{log.mutex};
  log.sink = std::move(sink);
}

void log(const std::string& line) {
  Log& log = the_log();
  const std::lock_guard lock{log.mutex};
  if (log.sink)
    return log.sink("deltawire: " + line);
  // A progress bar may stand on the line of a terminal.
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string whole = std::string(terminal ? "\r\x1b[K" : "") + "deltawire: " + line + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stderr); // one write: lines of several processes stay whole
}

} // namespace deltawire::telemetry
