#include "actors/snapshotter.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

using Self = SnapshotterActor::stateful_pointer<SnapshotterState>;
using Work = sync::CaptureWalk::Work;

void announce(Self self) {
  SnapshotterState& state = self->state;
  state.announced = true;
  state.report.digest_changes.assign(state.digest_changes.begin(), state.digest_changes.end());
  std::erase_if(state.report.digest_changes, [](const auto& entry) { return entry.second == 0; });
  self->send(state.colleagues->gather_queue, CaptureReported{state.report});
  self->send(state.colleagues->supervisor, CaptureDone{state.report.version});
}

void advance(Self self) {
  SnapshotterState& state = self->state;
  for (;;) {
    if (state.announced && state.walk->idle() && !state.waiting.empty()) {
      const CaptureRequest request = state.waiting.front();
      state.waiting.pop_front();
      state.report = {};
      state.report.version = request.version;
      state.report.step = request.step;
      state.report.kind = state.seeded ? wire::DeliveryKind::delta : wire::DeliveryKind::seed;
      state.report.elements = state.work->elements;
      state.digest_changes.clear();
      state.walk->start(!state.seeded);
      state.seeded = true;
      state.announced = false;
    }
    while (const auto hand_out = state.walk->next()) {
      const bool seed = state.report.kind == wire::DeliveryKind::seed;
      const std::vector<DifferActor>& differs = state.colleagues->differs;
      self->send(differs[state.next_differ], ChunkTask{state.report.version, *hand_out, seed});
      state.next_differ = (state.next_differ + 1) % differs.size();
    }
    if (state.announced || !state.walk->captured())
      return;
    announce(self);
  }
}

} // namespace

SnapshotterActor::behavior_type snapshotter(Self self, std::shared_ptr<RankWork> work, std::uint32_t differs,
                                            std::uint64_t inflight) {
  SnapshotterState& initial = self->state;
  std::vector<std::uint64_t> worst;
  for (const Chunk& chunk : work->chunks)
    worst.push_back(chunk.worst_case);
  // Two chunks a Differ: one it works on, one that waits for it.
  initial.walk = std::make_unique<sync::CaptureWalk>(std::move(worst), inflight, 2 * differs);
  initial.work = std::move(work);
  return {
    [self](const CaptureRequest& request) {
      self->state.waiting.push_back(request);
      advance(self);
    },
    [self](CaptureCancel) {
      SnapshotterState& state = self->state;
      for (const CaptureRequest& request : state.waiting)
        self->send(state.colleagues->supervisor, CaptureDone{request.version});
      state.waiting.clear();
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
