// What an update allocates, once a session runs, does not grow with the model: not with its elements and not with its
// slots, as long as as much changes in as many chunks. Counted over all ranks and workers, at global operator new. What
// is left is what messages take (the envelopes of CAF, control messages, the buffers of what changed): as many for a
// large model as for a small one, since there are as many chunks.

#include "allocations.hpp"
#include "catch.hpp"
#include "slot_session.hpp"

#include <algorithm>

using namespace deltawire;
using namespace deltawire::test;

namespace {

/// The least that an update allocates: how often a queue grows, and how many messages share an envelope's memory, is a
/// matter of timing; what every update needs is not.
Allocations least_of_updates(const SlotModel& model, bool changes) {
  SlotSession session(model);
  (void)session.update();
  for (int warm = 0; warm < 6; ++warm) {
    session.train();
    (void)session.update();
  }
  (void)bytes_at_rest();
  Allocations least{UINT64_MAX, UINT64_MAX};
  for (int round = 0; round < 12; ++round) {
    if (changes)
      session.train();
    const Allocations before = allocations();
    const Outcome outcome = session.update();
    (void)bytes_at_rest();
    const Allocations made = allocations() - before;
    REQUIRE(outcome.changed == (changes ? model.touched * SlotModel::members : 0));
    REQUIRE(session.equal());
    least.count = std::min(least.count, made.count);
    least.bytes = std::min(least.bytes, made.bytes);
  }
  return least;
}

} // namespace

TEST_CASE("what an update allocates grows neither with elements nor with slots") {
  const SlotModel small{.slots = 512, .rows = 16, .touched = 128};
  const SlotModel more_elements{.slots = 512, .rows = 64, .touched = 128};
  const SlotModel more_slots{.slots = 2048, .rows = 16, .touched = 128};
  for (const bool changes : {false, true}) {
    const Allocations base = least_of_updates(small, changes);
    const Allocations elements = least_of_updates(more_elements, changes);
    const Allocations slots = least_of_updates(more_slots, changes);
    CAPTURE(changes, base.count, elements.count, slots.count, base.bytes, elements.bytes, slots.bytes);
    // A slot's share of the allocations of any actor would be 1536 or more of them. Timing is less: in how many flushes
    // the changes leave, 950 or 1180 allocations.
    constexpr std::uint64_t timing = 512, timing_bytes = 40 * 1024;
    CHECK(elements.count <= base.count + timing);
    CHECK(slots.count <= base.count + timing);
    CHECK(elements.bytes <= base.bytes + timing_bytes);
    CHECK(slots.bytes <= base.bytes + timing_bytes);
    WARN("an update " << (changes ? "with 256 changes: " : "without changes: ") << base.count << " allocations of "
                      << base.bytes << " bytes; four times the elements: " << elements.count << " of " << elements.bytes
                      << "; four times the slots: " << slots.count << " of " << slots.bytes);
  }
}
