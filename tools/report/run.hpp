// A run as `deltawire replay --report` wrote it, checked key by key.
#pragma once

#include "result.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::report {

inline constexpr std::array<std::string_view, 6> phases{"diff", "gather", "assemble", "send", "stage", "commit"};

struct Worker {
  std::uint64_t index = 0;
  std::uint64_t version = 0;
  std::string state;
  std::uint64_t bytes = 0;
  bool digest_ok = false;
  std::string error;
};

struct Update {
  std::uint64_t version = 0;
  std::string kind;
  std::uint64_t elements = 0, changed = 0;
  std::uint64_t wire_bytes = 0, gather_bytes = 0;
  double captured_s = 0, committed_s = 0, pause_s = 0;
  std::array<double, phases.size()> phase_s{};
  std::vector<Worker> workers;
  std::vector<std::string> warnings; ///< reports of older versions have none
};

/// How fast memory was where the run was, by all cores together: bytes of each of two arrays compared, and copied.
struct Machine {
  std::uint64_t cores = 0;
  double compare_bytes_per_s = 0, copy_bytes_per_s = 0; ///< above 0
  std::uint64_t array_bytes = 0;
};

struct Run {
  std::vector<Update> updates;
  bool verified = false;
  // Reports of older versions have none of these.
  std::string session;               ///< the trainer's; empty: not told
  std::optional<Machine> machine;    ///< and then what follows
  std::uint64_t parameter_bytes = 0; ///< of a version, as the trainer holds it
  std::uint64_t snapshot_bytes = 0;  ///< in the dtypes that are sent
};

/// Fails with Code::invalid_input naming the key that is missing or has another type or value, e.g.
/// "updates[2].phase_s.diff", on text that is no JSON, and on a run that claims to be verified without an update.
[[nodiscard]] Result<Run> parse_run(std::string_view text);

/// A span of a trace file, in nanoseconds since the Unix epoch.
struct Span {
  std::string lane; ///< "rank 0: sender"
  std::string name;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t version = -1; ///< of its argument; -1: none
};

/// A process's trace.
struct Trace {
  std::vector<Span> spans;
  std::vector<std::string>
    sessions; ///< that the process was in, as Run names its own; traces of older versions have none
};

/// A trace-event file of deltawire. Fails likewise.
[[nodiscard]] Result<Trace> parse_trace(std::string_view text);

} // namespace deltawire::report
