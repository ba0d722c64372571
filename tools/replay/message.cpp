#include "message.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace deltawire::replay {

void print_error(const Failure& failure) {
  const std::string text = fmt::format("deltawire: {}\n", failure.message);
  std::fputs(text.c_str(), stderr);
}

ExitStatus report_failure(const Failure& failure) {
  print_error(failure);
  return exit_status(failure.code);
}

Result<void> print_out(const std::string& text, const std::string& option) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return fail(Code::output_failed, "{}standard output: cannot be written: {}", option.empty() ? "" : option + ": ",
                std::strerror(errno));
  return {};
}

} // namespace deltawire::replay
