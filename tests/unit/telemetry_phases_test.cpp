// Contract: src/telemetry/phases.hpp.
#include "telemetry/phases.hpp"

#include "catch.hpp"
#include "random.hpp"

#include <vector>

namespace deltawire::telemetry {

TEST_CASE("a phase that never started is empty and takes no time") {
  PhaseClock clock;
  for (Phase phase : all_phases) {
    CHECK(clock.span(phase).empty());
    CHECK(clock.seconds(phase) == 0);
  }
}

TEST_CASE("a phase spans from its first start to its last end") {
  PhaseClock clock;
  clock.start(Phase::send, 2'000'000'000);
  clock.stop(Phase::send, 3'000'000'000);
  clock.record(Phase::send, 4'000'000'000, 4'500'000'000);
  clock.record(Phase::send, 1'500'000'000, 1'600'000'000);
  CHECK(clock.span(Phase::send) == PhaseSpan{1'500'000'000, 4'500'000'000});
  CHECK(clock.seconds(Phase::send) == 3.0);
  CHECK(clock.span(Phase::diff).empty());
  clock.clear();
  CHECK(clock.span(Phase::send).empty());
}

TEST_CASE("a phase that is never left ends where it last began, and a clock that was set back gives no negative time") {
  PhaseClock clock;
  clock.start(Phase::stage, 100);
  CHECK(clock.span(Phase::stage) == PhaseSpan{100, 100});
  CHECK_FALSE(clock.span(Phase::stage).empty());
  clock.record(Phase::commit, 100, 50);
  CHECK(clock.span(Phase::commit) == PhaseSpan{100, 100});
}

TEST_CASE("merged clocks equal one clock that saw everything, whatever the order") {
  CAPTURE(test::seed());
  auto random = test::generator(2);
  for (int round = 0; round < 200; ++round) {
    std::vector<PhaseClock> parts(1 + random() % 5);
    std::array<std::vector<std::pair<std::int64_t, std::int64_t>>, all_phases.size()> seen;
    for (auto n = random() % 30; n-- > 0;) {
      const Phase phase = all_phases[random() % all_phases.size()];
      const auto begin = static_cast<std::int64_t>(1 + random() % 1'000'000);
      const auto end = begin + static_cast<std::int64_t>(random() % 1000);
      parts[random() % parts.size()].record(phase, begin, end);
      seen[static_cast<std::size_t>(phase)].push_back({begin, end});
    }
    PhaseClock whole;
    for (const PhaseClock& part : parts)
      whole.merge(part);
    for (Phase phase : all_phases) {
      const auto& spans = seen[static_cast<std::size_t>(phase)];
      CHECK(whole.span(phase).empty() == spans.empty());
      std::int64_t first = INT64_MAX;
      std::int64_t last = 0;
      for (const auto& [begin, end] : spans) {
        first = begin < first ? begin : first;
        last = end > last ? end : last;
      }
      if (!spans.empty())
        CHECK(whole.span(phase) == PhaseSpan{first, last});
    }
  }
}

TEST_CASE("phases have the names of the report") {
  std::string names;
  for (Phase phase : all_phases)
    names += std::string{to_string(phase)} + " ";
  CHECK(names == "diff gather assemble send stage commit ");
}

} // namespace deltawire::telemetry
