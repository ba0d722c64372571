// Schedules of whole jobs (world.hpp) by the books of the oracle (oracle.hpp): DELTAWIRE_SIMULATION_SCHEDULES says how
// many, DELTAWIRE_TEST_SEED draws others, and DELTAWIRE_SIMULATION_FIRST begins with a later one. A schedule that fails
// runs again, and prints what happens. Then the same with each defect of the protocol planted: the books must tell.
#include "catch.hpp"
#include "random.hpp"
#include "world.hpp"

#include <cstdlib>
#include <numeric>

namespace {

using namespace deltawire;
using namespace deltawire::simulation;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

const std::uint64_t schedules = number_of("DELTAWIRE_SIMULATION_SCHEDULES", 10000);

void print(const Counts& counts) {
  fmt::print(
    "simulation: seed {}, {} schedules, {} events, {} sessions; {} updates, {} of them committed; {} published "
    "by a rank, {} in parts, {} patches\n"
    "  {} deliveries: {} seeds, {} deltas, {} folds; {} chunks encoded later, {} for a catch-up\n"
    "  workers: {} times released, {} undone, {} settled, {} joined; {} audits, {} times memory was wrong, {} times "
    "adopted\n",
    test::seed(), counts.schedules, counts.events, counts.sessions, counts.updates, counts.committed, counts.published,
    counts.in_parts, counts.patched, counts.deliveries, counts.seeds, counts.deltas, counts.folds, counts.deferred,
    counts.caught_up, counts.released, counts.undone, counts.settled, counts.joined, counts.audited, counts.found_wrong,
    counts.adopted);
  fmt::print("  {:<18}", "struck in");
  for (const char* phase : phase_names)
    fmt::print("{:>9}", phase);
  fmt::print("\n");
  for (std::size_t fault = 0; fault < fault_count; ++fault) {
    fmt::print("  {:<18}", fault_names[fault]);
    for (const std::uint64_t times : counts.struck[fault])
      fmt::print("{:>9}", times);
    fmt::print("\n");
  }
}

/// By the world's choice, not at the next pause, flush or part of an update.
bool strikes_any_time(Fault fault) {
  return fault < Fault::engine_fails || (fault > Fault::frame_repeats && fault < Fault::update_aborted);
}

} // namespace

TEST_CASE("whatever goes wrong, workers serve what was captured, whole, and the job heals") {
  const std::uint64_t first = number_of("DELTAWIRE_SIMULATION_FIRST", 0);
  Counts counts;
  for (std::uint64_t schedule = first; schedule < first + schedules; ++schedule) {
    const Verdict verdict = run_schedule(schedule, counts);
    if (!verdict.broken)
      continue;
    (void)run_schedule(schedule, counts, Planted::none, true);
    FAIL("seed " << test::seed() << ", schedule " << schedule << ": " << name_of(*verdict.broken) << ": "
                 << verdict.message);
  }
  print(counts);
  if (schedules < 10000)
    return;
  // What may strike at any time did so in every phase, and the others at all.
  for (std::size_t fault = 0; fault < fault_count; ++fault) {
    CAPTURE(fault_names[fault]);
    const auto& struck = counts.struck[fault];
    CHECK(std::accumulate(struck.begin(), struck.end(), std::uint64_t{0}) > 500);
    for (std::size_t phase = 0; phase < phase_count && strikes_any_time(static_cast<Fault>(fault)); ++phase) {
      CAPTURE(phase_names[phase]);
      CHECK(struck[phase] > 0);
    }
  }
  CHECK(counts.undone > 100);
  CHECK(counts.settled > 100);
  CHECK(counts.folds > 100);
  CHECK(counts.found_wrong > 100);
  CHECK(counts.adopted > 0); // memory that a new process was loaded with is seldom the newest
}

TEST_CASE("the books tell of every defect that is planted in the protocol") {
  fmt::print("simulation: planted defects, seed {}\n", test::seed());
  for (std::size_t which = 1; which < planted_count; ++which) {
    const auto planted = static_cast<Planted>(which);
    Counts counts;
    Verdict verdict;
    std::uint64_t schedule = 0;
    for (; schedule < schedules && !verdict.broken; ++schedule)
      verdict = run_schedule(schedule, counts, planted);
    fmt::print("  {:<48} {}\n", planted_names[which],
               verdict.broken
                 ? fmt::format("schedule {:>4}: {}: {}", schedule - 1, name_of(*verdict.broken), verdict.message)
                 : "not told");
    CAPTURE(planted_names[which]);
    CHECK(verdict.broken);
  }
}
