#include "telemetry/phases.hpp"

namespace deltawire::telemetry {

std::string_view to_string(Phase phase) noexcept {
  switch (phase) {
  case Phase::diff:
    return "diff";
  case Phase::gather:
    return "gather";
  case Phase::assemble:
    return "assemble";
  case Phase::send:
    return "send";
  case Phase::stage:
    return "stage";
  case Phase::commit:
    return "commit";
  }
  return "unknown";
}

void PhaseClock::merge(Phase phase, const PhaseSpan& other) noexcept {
  PhaseSpan& own = spans_[static_cast<std::size_t>(phase)];
  if (other.empty())
    return;
  if (own.empty()) {
    own = other;
    return;
  }
  own.begin_ns = std::min(own.begin_ns, other.begin_ns);
  own.end_ns = std::max(own.end_ns, other.end_ns);
}

void PhaseClock::merge(const PhaseSpans& others) noexcept {
  for (Phase phase : all_phases)
    merge(phase, others[static_cast<std::size_t>(phase)]);
}

} // namespace deltawire::telemetry
