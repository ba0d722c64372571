#include "report_command.hpp"

#include "page.hpp"
#include "replay/message.hpp"
#include "replay/report.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace deltawire::report {

namespace {

Result<std::string> read(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || std::filesystem::is_directory(path))
    return fail(Code::invalid_input, "{}: cannot be read: {}", path, std::strerror(errno == 0 ? EIO : errno));
  return text;
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

Result<void> write_page(const ReportOptions& options) {
  const auto run = parsed(options.run, [](const std::string& text) { return parse_run(text); });
  if (!run)
    return tl::make_unexpected(run.error());
  std::vector<Span> spans;
  for (const std::string& path : options.traces) {
    auto more = parsed(path, [](const std::string& text) { return parse_trace(text); });
    if (!more)
      return pass_on(std::move(more));
    std::move(more->begin(), more->end(), std::back_inserter(spans));
  }
  return replay::write_text(options.output, page(std::filesystem::path(options.run).filename().string(), *run, spans));
}

} // namespace

replay::ExitStatus report_command(const ReportOptions& options) {
  if (auto written = write_page(options); !written)
    return replay::report_failure(written.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::report
