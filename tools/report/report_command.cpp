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
