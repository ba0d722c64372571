#include "telemetry/trace.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deltawire::telemetry {

namespace {

/// A JSON string; bytes that are no UTF-8 become U+FFFD.
std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Rounded down, as whatever else happens within it: what came before stays before, and what held still holds.
std::int64_t microseconds(std::int64_t ns) {
  return ns / 1000 - (ns % 1000 < 0 ? 1 : 0);
}

/// 0, or the system's reason why no file can be written at the path. What is there keeps its content; nothing new
/// stays.
int why_not_writable(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode))
    return ::access(path.c_str(), W_OK) == 0 ? 0 : errno; // opening a pipe would wait for its reader
  const bool made = ::lstat(path.c_str(), &found) != 0;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (made ? O_EXCL : 0), 0666);
  if (descriptor < 0)
    return errno == EEXIST ? 0 : errno; // somebody else's by now
  ::close(descriptor);
  if (made)
    ::unlink(path.c_str());
  return 0;
}

} // namespace

bool Recorder::Names::intern(std::string_view text, std::uint32_t& id) {
  const auto found = ids.find(text);
  if (found != ids.end()) {
    id = found->second;
    return true;
  }
  if (texts.size() == most_names)
    return false;
  id = static_cast<std::uint32_t>(texts.size());
  texts.emplace_back(text);
  ids.emplace(texts.back(), id);
  return true;
}

void Recorder::record(std::string_view lane, std::string_view name, TimePoint begin, TimePoint end,
                      std::initializer_list<Argument> arguments, Flow flow) {
  Span span;
  span.flow = flow;
  span.begin_us = microseconds(begin.time_since_epoch().count());
  span.end_us = microseconds(std::max(begin, end).time_since_epoch().count());

  const std::lock_guard lock{mutex_};
  bool fits =
    spans_.size() + counts_.size() < capacity_ && lanes_.intern(lane, span.lane) && names_.intern(name, span.name);
  for (const Argument& argument : arguments) {
    if (!fits || span.argument_count == most_arguments)
      break;
    KeptArgument& kept = span.arguments[span.argument_count];
    kept.value = argument.value;
    fits = names_.intern(argument.key, kept.key);
    ++span.argument_count;
  }
  if (fits)
    spans_.push_back(span);
  else
    ++dropped_;
}

void Recorder::record_count(std::string_view counter, TimePoint at, std::uint64_t value) {
  Count count{microseconds(at.time_since_epoch().count()), value, 0};
  const std::lock_guard lock{mutex_};
  if (spans_.size() + counts_.size() < capacity_ && names_.intern(counter, count.name))
    counts_.push_back(count);
  else
    ++dropped_;
}

/// By time, what holds others before what it holds.
std::vector<std::size_t> Recorder::by_time(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(spans[a].begin_us, -spans[a].end_us) < std::pair(spans[b].begin_us, -spans[b].end_us);
  });
  return order;
}

/// Which of its lane's rows each span goes to: the first in which it lies within, or after, the spans that are there.
std::vector<std::uint32_t> Recorder::rows_of(const std::vector<Span>& spans, const std::vector<std::size_t>& order,
                                             std::size_t lanes) {
  std::vector<std::uint32_t> rows(spans.size(), 0);
  std::vector<std::vector<std::vector<std::int64_t>>> open(
    lanes); // by lane and row: ends of open spans, innermost last
  for (const std::size_t s : order) {
    const Span& span = spans[s];
    std::uint32_t row = 0;
    for (;; ++row) {
      if (row == open[span.lane].size())
        open[span.lane].emplace_back();
      std::vector<std::int64_t>& ends = open[span.lane][row];
      while (!ends.empty() && ends.back() <= span.begin_us)
        ends.pop_back();
      if (ends.empty() || span.end_us <= ends.back())
        break;
    }
    open[span.lane][row].push_back(span.end_us);
    rows[s] = row;
  }
  return rows;
}

void Recorder::in_session(std::uint64_t session) {
  if (!enabled_)
    return;
  const std::lock_guard lock{mutex_};
  if (sessions_.size() < most_sessions && std::find(sessions_.begin(), sessions_.end(), session) == sessions_.end())
    sessions_.push_back(session);
}

std::size_t Recorder::recorded() const {
  const std::lock_guard lock{mutex_};
  return spans_.size();
}

std::uint64_t Recorder::dropped() const {
  const std::lock_guard lock{mutex_};
  return dropped_;
}

std::string Recorder::json() const {
  // Copied under the lock and formatted outside it, so that actors wait for a copy and not for the text.
  std::vector<Span> spans;
  std::vector<Count> counts;
  std::vector<std::string> lanes;
  std::vector<std::string> names;
  std::vector<std::uint64_t> sessions;
  std::uint64_t lost = 0;
  {
    const std::lock_guard lock{mutex_};
    spans = spans_;
    counts = counts_;
    lanes = lanes_.texts;
    names = names_.texts;
    sessions = sessions_;
    lost = dropped_;
  }
  std::transform(names.begin(), names.end(), names.begin(), json_string);

  std::string text = "{\"traceEvents\":[\n";
  auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", pid_,
                 json_string(process_));
  std::stable_sort(counts.begin(), counts.end(), [](const Count& a, const Count& b) { return a.at_us < b.at_us; });
  const std::vector<std::size_t> order = by_time(spans);
  const std::vector<std::uint32_t> rows = rows_of(spans, order, lanes.size());
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> threads; // (lane, row): rows of a lane side by side
  for (std::uint32_t lane = 0; lane < lanes.size(); ++lane)
    threads.emplace(std::pair(lane, 0u), 0);
  for (std::size_t i = 0; i < spans.size(); ++i)
    threads.emplace(std::pair(spans[i].lane, rows[i]), 0);
  std::size_t thread = 0;
  for (auto& [place, number] : threads) {
    number = ++thread;
    text += ",\n";
    const auto& [lane, row] = place;
    if (row == 0)
      fmt::format_to(out, R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", pid_, number,
                     json_string(lanes[lane]));
    else
      fmt::format_to(out, R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{},"lane":{}}}}})", pid_,
                     number, json_string(fmt::format("{} (at the same time, {})", lanes[lane], row + 1)),
                     json_string(lanes[lane]));
  }
  for (const std::size_t s : order) {
    const Span& span = spans[s];
    const std::size_t tid = threads.at({span.lane, rows[s]});
    text += ",\n";
    fmt::format_to(out, R"({{"ph":"X","pid":{},"tid":{},"name":{},"ts":{},"dur":{},"args":{{)", pid_, tid,
                   names[span.name], span.begin_us, span.end_us - span.begin_us);
    for (std::uint32_t i = 0; i < span.argument_count; ++i)
      fmt::format_to(out, "{}{}:{}", i == 0 ? "" : ",", names[span.arguments[i].key], span.arguments[i].value);
    text += "}}";
    // Bound to the span that began last on the thread by their time and place in the file: this one.
    for (const auto& [phase, number] : {std::pair("f", span.flow.in), std::pair("s", span.flow.out)})
      if (number != 0)
        fmt::format_to(
          out,
          ",\n"
          R"({{"ph":"{}","bp":"e","pid":{},"tid":{},"cat":"flow","name":"hand-over","id":"{:#x}","ts":{}}})",
          phase, pid_, tid, number, span.begin_us);
  }
  for (const Count& count : counts) {
    text += ",\n";
    fmt::format_to(out, R"({{"ph":"C","pid":{},"name":{},"ts":{},"args":{{"bytes":{}}}}})", pid_, names[count.name],
                   count.at_us, count.value);
  }
  fmt::format_to(out, "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_spans\":{},\"sessions\":[", lost);
  for (std::size_t i = 0; i < sessions.size(); ++i)
    fmt::format_to(out, "{}\"{}\"", i == 0 ? "" : ",", session_text(sessions[i]));
  text += "]}}\n";
  return text;
}

std::string trace_path(const std::string& trace, const std::string& process) {
  if (process == "rank 0")
    return trace;
  const std::filesystem::path path(trace);
  std::string suffix = process;
  std::erase(suffix, ' ');
  std::filesystem::path named = path;
  named.replace_filename(path.stem().string() + "-" + suffix + path.extension().string());
  return named.string();
}

Result<void> check_trace_path(const std::string& trace, const std::string& process) {
  const std::string path = trace_path(trace, process);
  if (const int error = why_not_writable(path); error != 0)
    return fail(Code::output_failed, "telemetry.trace: {}: the trace of {} cannot be written there: {}", path, process,
                std::strerror(error));
  return {};
}

std::string session_text(std::uint64_t session) {
  return fmt::format("{:016x}", session);
}

Result<void> Recorder::write(const std::string& path) const {
  if (!enabled_)
    return {};
  const std::string text = json();
  const auto failed = [&] {
    return fail(Code::output_failed, "telemetry.trace: {}: the trace could not be written: {}", path,
                std::strerror(errno == 0 ? EIO : errno));
  };
  errno = 0;
  std::ofstream stream{path, std::ios::binary | std::ios::trunc};
  if (!stream)
    return failed();
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  stream.close();
  if (!stream)
    return failed();
  return {};
}

} // namespace deltawire::telemetry
