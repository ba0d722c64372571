// Spans of one process, recorded while it runs and written as Chrome trace events (JSON object format), which
// chrome://tracing and ui.perfetto.dev open. One lane (an actor) is one thread of the view; spans of a lane that
// overlap without one holding the other, which a thread cannot have, get further threads, numbered: "rank 0: sender",
// "rank 0: sender (at the same time, 2)", whose argument "lane" is the lane's name. The format: "Trace Event Format",
// complete events (ph "X"), flows ("s", "f"), counters ("C") and metadata ("M").
//
// Times are whole microseconds since the Unix epoch, and spans come by time, outer ones before inner ones: a reader
// that takes numbers for doubles (which since 1970 have no bits left for fractions), or that nests in the order of the
// file, sees the same spans. Perfetto takes fractions for doubles, and drops spans that then overlap.
#pragma once

#include "result.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::telemetry {

/// Wall time, so that the processes of one host agree; nanoseconds since the Unix epoch.
using Clock = std::chrono::system_clock;
using TimePoint = std::chrono::sys_time<std::chrono::nanoseconds>;

[[nodiscard]] inline TimePoint now() {
  return std::chrono::time_point_cast<std::chrono::nanoseconds>(Clock::now());
}

[[nodiscard]] inline std::int64_t now_ns() {
  return now().time_since_epoch().count();
}

/// A number that a span carries: bytes, a version, a window.
struct Argument {
  std::string_view key;
  std::int64_t value = 0;
};

/// Arrows between spans, also of different processes: from the span whose `out` has a number to the one whose `in` has
/// it. 0: none.
struct Flow {
  std::uint64_t in = 0;
  std::uint64_t out = 0;
};

/// A flow's number from what names it on both sides, never 0.
[[nodiscard]] constexpr std::uint64_t flow_number(std::initializer_list<std::uint64_t> parts) noexcept {
  std::uint64_t mixed = 0x9e3779b97f4a7c15;
  for (const std::uint64_t part : parts) {
    mixed = (mixed ^ part) * 0xbf58476d1ce4e5b9;
    mixed ^= mixed >> 29;
  }
  return mixed | 1;
}

/// Thread-safe. Memory is bounded: what does not fit is dropped and counted. A default-constructed recorder is
/// disabled: span() is then one test of a constant. Not copied, not moved.
class Recorder {
public:
  static constexpr std::size_t most_arguments = 4; ///< of a span; further ones are not kept
  static constexpr std::size_t most_names = 1u << 16;
  static constexpr std::size_t most_sessions = 1000;
  static constexpr std::size_t default_capacity = 1u << 18; ///< spans and counts; 34 MB when full

  /// Disabled.
  Recorder() = default;

  /// `process` and `pid` label the process in the view.
  Recorder(std::string process, std::int64_t pid, std::size_t capacity = default_capacity)
    : enabled_(true), capacity_(capacity), pid_(pid), process_(std::move(process)) {}

  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// To skip work that only a trace needs.
  [[nodiscard]] bool enabled() const noexcept { return enabled_; }

  /// Nothing borrowed is kept. An end before its begin (a clock that was set back) becomes a span of no length.
  void span(std::string_view lane, std::string_view name, TimePoint begin, TimePoint end,
            std::initializer_list<Argument> arguments = {}, Flow flow = {}) {
    if (enabled_)
      record(lane, name, begin, end, arguments, flow);
  }

  /// The value of a counter from now on.
  void count(std::string_view counter, TimePoint at, std::uint64_t value) {
    if (enabled_)
      record_count(counter, at, value);
  }

  /// The process has joined a trainer's session: the trace names it, so that files of one run are known by it. A worker
  /// that outlives its trainer joins several; of those past most_sessions the trace names the first.
  void in_session(std::uint64_t session);

  [[nodiscard]] std::size_t recorded() const;
  [[nodiscard]] std::uint64_t dropped() const;

  /// The trace as JSON text. Spans may be recorded meanwhile; they are in it or not.
  [[nodiscard]] std::string json() const;

  /// Writes json() to a file, replacing it. A disabled recorder writes nothing. Fails (output_failed) with the key, the
  /// path and the system's reason.
  [[nodiscard]] Result<void> write(const std::string& path) const;

private:
  struct KeptArgument {
    std::uint32_t key = 0;
    std::int64_t value = 0;
  };

  struct Span {
    std::int64_t begin_us = 0;
    std::int64_t end_us = 0;
    std::uint32_t lane = 0;
    std::uint32_t name = 0;
    std::uint32_t argument_count = 0;
    std::array<KeptArgument, most_arguments> arguments{};
    Flow flow;
  };

  struct Count {
    std::int64_t at_us = 0;
    std::uint64_t value = 0;
    std::uint32_t name = 0;
  };

  /// Names by id, ids by name. Spans repeat a few names many times.
  struct Names {
    std::map<std::string, std::uint32_t, std::less<>> ids;
    std::vector<std::string> texts;

    /// The id, a new one if need be; false when there are too many names.
    bool intern(std::string_view text, std::uint32_t& id);
  };

  void record(std::string_view lane, std::string_view name, TimePoint begin, TimePoint end,
              std::initializer_list<Argument> arguments, Flow flow);
  void record_count(std::string_view counter, TimePoint at, std::uint64_t value);
  [[nodiscard]] static std::vector<std::size_t> by_time(const std::vector<Span>& spans);
  [[nodiscard]] static std::vector<std::uint32_t> rows_of(const std::vector<Span>& spans,
                                                          const std::vector<std::size_t>& order, std::size_t lanes);

  const bool enabled_ = false;
  const std::size_t capacity_ = 0;
  const std::int64_t pid_ = 0;
  const std::string process_;

  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<Count> counts_;
  Names lanes_;
  Names names_; ///< of spans and arguments
  std::uint64_t dropped_ = 0;
  std::vector<std::uint64_t> sessions_; ///< as they came, each once
};

/// Where a process writes its trace, of what telemetry.trace says: "trace.json" for "rank 0", the root;
/// "trace-rank1.json" for "rank 1", "trace-worker0.json" for "worker 0".
[[nodiscard]] std::string trace_path(const std::string& trace, const std::string& process);

/// Whether that file can be written. What is there keeps its content, and nothing new stays. Fails (output_failed) with
/// the key, the path, the process and the system's reason.
[[nodiscard]] Result<void> check_trace_path(const std::string& trace, const std::string& process);

/// A session as people and files write it: 16 hexadecimal digits.
[[nodiscard]] std::string session_text(std::uint64_t session);

} // namespace deltawire::telemetry
