// What the pipeline holds is bounded by its caps, whatever the size of the model. Counted by an allocator that shares
// nothing with the product's counters: the peak of live bytes above the level at rest, for all ranks and workers
// together.

#include "allocations.hpp"
#include "bounds.hpp"
#include "catch.hpp"
#include "dense_session.hpp"

using namespace deltawire;
using namespace deltawire::test;

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;
constexpr std::uint64_t unlimited = ~0ull;

struct Peaks {
  std::uint64_t seed = 0;    ///< above the level before the seed
  std::uint64_t delta = 0;   ///< above the level after the seed
  std::uint64_t changed = 0; ///< by the largest delta
};

/// A seed and two deltas. Checks bits and, where there is a cap, the product's own counters.
Peaks measure(const DenseModel& model, std::uint64_t cap) {
  DenseSession session(model, caps_of(cap));
  Peaks peaks;
  const std::uint64_t before = bytes_at_rest();
  restart_peak();
  session.update();
  peaks.seed = peak_bytes() - before;
  const std::uint64_t seeded = bytes_at_rest();
  CHECK(seeded < before + small_things); // nothing of a seed stays
  restart_peak();
  for (int update = 0; update < 2; ++update) {
    session.train();
    const Outcome outcome = session.update();
    peaks.changed = std::max(peaks.changed, outcome.changed);
    CHECK(outcome.high_water.differ <= cap);
    CHECK(outcome.high_water.gather_queue <= cap);
    CHECK(outcome.high_water.flush_bucket / 2 <= cap);
    CHECK(outcome.high_water.flush_bucket > 0);
  }
  peaks.delta = peak_bytes() - seeded;
  CHECK(session.differences() == 0);
  return peaks;
}

/// All ranks and workers. A worker owns what it receives: of a seed, a flush that is being written.
std::uint64_t seed_holds(std::uint64_t cap) {
  return DenseModel::members * (rank_holds(cap) + cap) + root_holds(cap) + small_things;
}

/// Of a delta, a worker has a flush that it decodes, and what it has decoded.
std::uint64_t delta_holds(const DenseModel& model, const Peaks& peaks, std::uint64_t cap) {
  return DenseModel::members * (rank_holds(cap) + cap) + root_holds(cap) +
         logs_hold(model.elements(), peaks.changed, cap) + stages_hold(model.elements(), peaks.changed, cap) +
         small_things;
}

} // namespace

TEST_CASE("live bytes stay under the sum of the caps, position logs and stages, and pass it without caps") {
  struct Case {
    std::uint64_t bytes; // of the model: tiny caps take their time
    std::vector<std::uint64_t> caps;
  };
  for (const Case& each : {Case{4 * mib, {2 * kib}}, Case{32 * mib, {64 * kib, 1 * mib}}}) {
    const DenseModel model = DenseModel::of_bytes(each.bytes);
    CAPTURE(model.bytes());
    const Peaks without = measure(model, unlimited);
    for (const std::uint64_t cap : each.caps) {
      CAPTURE(cap);
      const Peaks peaks = measure(model, cap);
      CHECK(peaks.seed <= seed_holds(cap));
      CHECK(peaks.delta <= delta_holds(model, peaks, cap));
      CHECK(without.seed > seed_holds(cap));
      CHECK(without.delta > peaks.delta); // most of either is what the workers stage
    }
  }
}
