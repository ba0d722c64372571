#include "actors/snapshotter.hpp"

#include "actors/metered.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

using Self = SnapshotterActor::stateful_pointer<SnapshotterState>;
using Work = sync::CaptureWalk::Work;

bool is_seed(const SnapshotterState& state) {
  return state.report.kind == wire::DeliveryKind::seed;
}

/// What is planned for the running capture.
bool catches_up(const SnapshotterState& state) {
  return state.planned.version == state.report.version && state.planned.catch_up != 0;
}

void begin_catch_up(Self self) {
  SnapshotterState& state = self->state;
  const std::uint64_t gather = sync::catch_up_gather_of(state.report.version);
  if (state.dropped.contains(gather))
    return;
  state.walk->add_catch_up();
  self->send(state.colleagues->gather_queue, CatchUpBegun{gather});
}

void begin_capture(Self self, const CaptureRequest& request) {
  SnapshotterState& state = self->state;
  state.report = {};
  state.report.version = request.version;
  state.report.step = request.step;
  state.report.kind = state.seeded ? wire::DeliveryKind::delta : wire::DeliveryKind::seed;
  state.report.elements = state.work->elements;
  state.digest_changes.clear();
  state.walk->start(!state.seeded);
  state.seeded = true;
  state.announced = false;
  std::erase_if(state.log_bytes, [&](const auto& entry) { return entry.first <= state.planned.keep_logs_after; });
  std::erase_if(state.dropped, [&](std::uint64_t gather) { return gather < sync::gather_of(request.version); });
  if (state.dropped.contains(sync::gather_of(request.version)))
    state.walk->drop_changes();
  if (catches_up(state))
    begin_catch_up(self);
}

void announce(Self self) {
  SnapshotterState& state = self->state;
  state.announced = true;
  state.report.digest_changes.assign(state.digest_changes.begin(), state.digest_changes.end());
  std::erase_if(state.report.digest_changes, [](const auto& entry) { return entry.second == 0; });
  self->send(state.colleagues->gather_queue, CaptureReported{state.report});
  self->send(state.colleagues->supervisor, CaptureDone{state.report.version});
}

/// The oldest logs go with the next capture, so that all of them stay within the cap; one that no longer reaches back
/// makes a catch-up send all values.
std::uint64_t keep_logs_after(const SnapshotterState& state) {
  std::uint64_t bytes = 0;
  for (auto entry = state.log_bytes.rbegin(); entry != state.log_bytes.rend(); ++entry) {
    bytes += entry->second;
    if (bytes > state.log_cap)
      return std::max(entry->first, state.planned.keep_logs_after);
  }
  return state.planned.keep_logs_after;
}

void hand_out(Self self, const sync::CaptureWalk::HandOut& hand_out) {
  SnapshotterState& state = self->state;
  ChunkTask task;
  task.version = state.report.version;
  task.hand_out = hand_out;
  task.all = hand_out.work == Work::catch_up ? state.planned.kind == wire::DeliveryKind::seed : is_seed(state);
  task.keep_logs_after = state.keep_logs_after;
  task.base = state.planned.base;
  const std::vector<DifferActor>& differs = state.colleagues->differs;
  self->send(differs[state.next_differ], task);
  state.next_differ = (state.next_differ + 1) % differs.size();
}

void advance(Self self) {
  SnapshotterState& state = self->state;
  for (;;) {
    if (state.announced && state.walk->idle() && !state.waiting.empty()) {
      const CaptureRequest request = state.waiting.front();
      state.waiting.pop_front();
      state.keep_logs_after = keep_logs_after(state);
      begin_capture(self, request);
    }
    while (const auto next = state.walk->next())
      hand_out(self, *next);
    if (state.announced || !state.walk->captured())
      return;
    announce(self);
  }
}

/// A publish came while the last capture is still being read: its update is given up, unless it already carries what
/// an earlier one did not bring (else nothing would ever arrive).
void abandon_if_busy(Self self) {
  SnapshotterState& state = self->state;
  if (!state.fold || !state.announced || state.walk->idle() || is_seed(state) || catches_up(state))
    return;
  state.walk->drop_changes();
  const UpdateAbandoned abandoned{state.report.version};
  self->send(state.colleagues->gather_queue, abandoned);
  self->send(state.colleagues->supervisor, abandoned);
}

} // namespace

SnapshotterActor::behavior_type snapshotter(Self self, std::shared_ptr<RankWork> work,
                                            const SnapshotterSettings& settings) {
  SnapshotterState& initial = self->state;
  std::vector<std::uint64_t> worst;
  for (const Chunk& chunk : work->chunks)
    worst.push_back(chunk.worst_case);
  // Two chunks a Differ: one it works on, one that waits for it.
  initial.walk = std::make_unique<sync::CaptureWalk>(std::move(worst), settings.inflight, 2 * settings.differs);
  initial.log_cap = settings.log_cap;
  initial.fold = settings.fold;
  initial.work = std::move(work);
  return Metered{
    self,
    meter_of(*initial.work, "snapshotter", true, initial.work->counters.differ, "differ", cap_of(settings.inflight)),
    [self](const CaptureRequest& request) {
      self->state.waiting.push_back(request);
      abandon_if_busy(self);
      advance(self);
    },
    [self](CaptureCancel) {
      SnapshotterState& state = self->state;
      for (const CaptureRequest& request : state.waiting)
        self->send(state.colleagues->supervisor, CaptureDone{request.version});
      state.waiting.clear();
    },
    [self](const UpdatePlanned& planned) {
      SnapshotterState& state = self->state;
      state.planned = planned.next;
      if (catches_up(state))
        begin_catch_up(self);
      advance(self);
    },
    [self](const GatherDropped& dropped) {
      SnapshotterState& state = self->state;
      state.dropped.insert(dropped.gather);
      if (dropped.gather == sync::gather_of(state.report.version))
        state.walk->drop_changes();
      if (dropped.gather == sync::catch_up_gather_of(state.report.version))
        state.walk->drop_catch_up();
      advance(self);
    },
    [self](const ChunkWorked& worked) {
      SnapshotterState& state = self->state;
      state.walk->done(worked.hand_out, worked.changed, worked.encoded);
      if (worked.hand_out.work == Work::capture || worked.hand_out.work == Work::capture_and_encode) {
        wire::CaptureReport& report = state.report;
        report.changed += worked.changed;
        report.diff.begin =
          report.diff.begin > report.diff.end ? worked.begin_ns : std::min(report.diff.begin, worked.begin_ns);
        report.diff.end = std::max(report.diff.end, worked.end_ns);
        for (const auto& [cell, change] : worked.digest_changes)
          state.digest_changes[cell] += change;
        state.log_bytes[report.version] += worked.log_bytes;
      }
      advance(self);
    },
    [self](const CreditReturned& credit) {
      self->state.walk->returned(credit.bytes);
      advance(self);
    },
    [self](const Meet& meet) { self->state.colleagues = meet.colleagues; },
    [self](Stop) {
      self->state = {};
      self->quit();
    },
  };
}

} // namespace deltawire::actors
