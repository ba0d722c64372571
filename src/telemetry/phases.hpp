// When the phases of one update ran: from the first start to the last end of each, over all processes of a host or over
// hosts with agreeing clocks. Pure values; times are nanoseconds since the Unix epoch (trace.hpp, now()).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deltawire::telemetry {

enum class Phase : std::uint8_t { diff, gather, assemble, send, stage, commit };

inline constexpr std::array<Phase, 6> all_phases{Phase::diff, Phase::gather, Phase::assemble,
                                                 Phase::send, Phase::stage,  Phase::commit};

/// "diff", "gather", ...: the names of the report.
[[nodiscard]] std::string_view to_string(Phase phase) noexcept;

/// Empty (both 0) when the phase never started.
struct PhaseSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;

  [[nodiscard]] bool empty() const noexcept { return begin_ns == 0 && end_ns == 0; }
  [[nodiscard]] double seconds() const noexcept { return static_cast<double>(end_ns - begin_ns) * 1e-9; }

  friend bool operator==(const PhaseSpan&, const PhaseSpan&) = default;
};

/// One span a phase, in the order of Phase: what a process reports to the root.
using PhaseSpans = std::array<PhaseSpan, all_phases.size()>;

/// Collects the spans of one update. Not thread-safe: each actor has its own, and they are merged. Copyable.
class PhaseClock {
public:
  /// Widens the phase's span to hold this one. An end before its begin (a clock that was set back) counts as no time
  /// at all, at the begin. Requires begin_ns > 0.
  void record(Phase phase, std::int64_t begin_ns, std::int64_t end_ns) noexcept {
    merge(phase, PhaseSpan{begin_ns, std::max(begin_ns, end_ns)});
  }

  /// A phase that is entered and left at different places; what is never left ends where it last began.
  void start(Phase phase, std::int64_t now_ns) noexcept { record(phase, now_ns, now_ns); }
  void stop(Phase phase, std::int64_t now_ns) noexcept { record(phase, now_ns, now_ns); }

  /// Widens by another process's span; an empty one changes nothing.
  void merge(Phase phase, const PhaseSpan& other) noexcept;
  void merge(const PhaseSpans& others) noexcept;
  void merge(const PhaseClock& other) noexcept { merge(other.spans_); }

  [[nodiscard]] const PhaseSpan& span(Phase phase) const noexcept { return spans_[static_cast<std::size_t>(phase)]; }
  [[nodiscard]] const PhaseSpans& spans() const noexcept { return spans_; }

  /// Length of the span; 0 when the phase never started.
  [[nodiscard]] double seconds(Phase phase) const noexcept { return span(phase).seconds(); }

  /// Forgets everything, for the next update.
  void clear() noexcept { spans_ = {}; }

private:
  PhaseSpans spans_{};
};

} // namespace deltawire::telemetry
