#include "report_command.hpp"

#include "page.hpp"
#include "replay/message.hpp"
#include "replay/report.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace deltawire::report {

namespace {

Result<std::string> read(const std::string& path) {
  const auto failed = [&](int error) {
    return fail(Code::invalid_input, "{}: cannot be read: {}", path, std::strerror(error == 0 ? EIO : error));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return fail(Code::invalid_input, "{}: is a directory; name the file", path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return failed(errno);
  try { // an iterator's read that fails throws, whatever the stream's exceptions
    return std::string{std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    return failed(errno);
  }
}

/// Reads and parses; failures name the file.
template <class Parse>
auto parsed(const std::string& path, Parse&& parse) -> decltype(parse(std::string{})) {
  auto text = read(path);
  if (!text)
    return pass_on(std::move(text));
  auto value = parse(*text);
  if (!value)
    return fail(value.error().code, "{}: {}", path, value.error().message);
  return value;
}

/// A trace of another run would be shown as this one's. Where files do not tell, as those of older versions, that is
/// noted.
Result<void> check_session(const std::string& run_path, const Run& run, const std::string& path, const Trace& trace,
                           std::vector<std::string>& notes) {
  if (run.session.empty() || trace.sessions.empty()) {
    notes.push_back(fmt::format("{} names no session: whether {} is of the same run is not known",
                                run.session.empty() ? run_path : path, run.session.empty() ? path : "it"));
    return {};
  }
  if (std::find(trace.sessions.begin(), trace.sessions.end(), run.session) != trace.sessions.end())
    return {};
  return fail(Code::invalid_input,
              "--trace {}: is of another run: its process was in session {}, and {} is of session {}; give the traces "
              "that the run itself has written",
              path, fmt::join(trace.sessions, ", "), run_path, run.session);
}

Result<void> write_page(const ReportOptions& options) {
  const auto run = parsed(options.run, [](const std::string& text) { return parse_run(text); });
  if (!run)
    return tl::make_unexpected(run.error());
  std::vector<Span> spans;
  std::vector<std::string> notes;
  for (const std::string& path : options.traces) {
    auto trace = parsed(path, [](const std::string& text) { return parse_trace(text); });
    if (!trace)
      return pass_on(std::move(trace));
    if (auto same = check_session(options.run, *run, path, *trace, notes); !same)
      return same;
    std::move(trace->spans.begin(), trace->spans.end(), std::back_inserter(spans));
  }
  for (const std::string& note : notes)
    replay::print_error({Code::invalid_input, "warning: " + note});
  return replay::write_text("--output", options.output,
                            page(std::filesystem::path(options.run).filename().string(), *run, spans, notes));
}

} // namespace

replay::ExitStatus report_command(const ReportOptions& options) {
  if (auto written = write_page(options); !written)
    return replay::report_failure(written.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::report
