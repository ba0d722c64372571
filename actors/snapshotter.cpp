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

/// Some chunk has never been captured: what is captured first is all values.
bool is_first(const SnapshotterState& state) {
  return std::any_of(state.first_captured.begin(), state.first_captured.end(),
                     [](std::uint64_t version) { return version == 0; });
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

// Updates in parts
// ---------------------------------------------------------------------------------------------------

/// Nothing more is captured: the update's version never exists, and what is captured of it so far comes with the next.
void abort_capture(Self self) {
  SnapshotterState& state = self->state;
  const std::uint64_t version = state.report.version;
  state.report.aborted = 1;
  state.parts = std::make_shared<sync::CaptureParts>();
  state.walk->drop_changes();
  state.walk->drop_catch_up();
  state.dropped.insert(sync::gather_of(version));
  state.dropped.insert(sync::catch_up_gather_of(version));
  state.walk->finish({});
  self->send(state.colleagues->gather_queue, UpdateAbandoned{version});
}

/// What the caller says of the running capture.
void take_part(Self self, const UpdatePart& part) {
  SnapshotterState& state = self->state;
  if (!state.walk->open())
    return; // ended with the session
  switch (part.kind) {
  case UpdatePart::Kind::sent:
    for (const std::uint32_t chunk : state.chunk_parts->sent(part.parameters))
      state.walk->ready(chunk);
    return;
  case UpdatePart::Kind::finished:
    state.parts = part.captured;
    return state.walk->finish(state.chunk_parts->patched(*part.captured));
  case UpdatePart::Kind::aborted:
    return abort_capture(self);
  }
}

/// What was said of the running capture before it began.
void take_early_parts(Self self) {
  SnapshotterState& state = self->state;
  for (const UpdatePart& part : state.early)
    if (part.version == state.report.version)
      take_part(self, part);
  std::erase_if(state.early, [&](const UpdatePart& part) { return part.version <= state.report.version; });
}

// Captures
// -----------------------------------------------------------------------------------------------------------

void begin_capture(Self self, const CaptureRequest& request) {
  SnapshotterState& state = self->state;
  wire::CaptureReport report;
  report.digest_changes = std::move(state.report.digest_changes); // its memory
  report.digest_changes.clear();
  state.report = std::move(report);
  state.report.version = request.version;
  state.report.step = request.step;
  state.after = request.after;
  state.report.kind = request.version == 1 ? wire::DeliveryKind::seed : wire::DeliveryKind::delta;
  state.report.elements = state.work->elements;
  state.digest_changes.clear();
  if (request.in_parts)
    state.walk->start_in_parts(is_first(state));
  else
    state.walk->start(is_first(state));
  state.chunk_parts->start();
  state.parts.reset();
  state.announced = false;
  std::erase_if(state.log_bytes, [&](const auto& entry) { return entry.first <= state.planned.keep_logs_after; });
  std::erase_if(state.dropped, [&](std::uint64_t gather) { return gather < sync::gather_of(request.version); });
  if (state.dropped.contains(sync::gather_of(request.version)))
    state.walk->drop_changes();
  if (catches_up(state))
    begin_catch_up(self);
  take_early_parts(self);
}

void announce(Self self) {
  SnapshotterState& state = self->state;
  state.announced = true;
  state.digest_changes.list(state.report.digest_changes);
  std::erase_if(state.report.digest_changes, [](const auto& entry) { return entry.second == 0; });
  for (const auto& [cell, change] : state.report.digest_changes)
    state.digests.add(cell, change);
  if (state.audit_every != 0 && state.report.version % state.audit_every == 0)
    ++state.audits_due;
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
  std::uint64_t& first = state.first_captured[hand_out.chunk];
  if (hand_out.work == Work::catch_up) {
    task.all = state.planned.kind == wire::DeliveryKind::seed;
  } else {
    task.all = first == 0 || first == task.version;
    task.parts = state.parts;
    task.after = state.after;
    // The first update holds every parameter, or it is aborted.
    if (first == 0 && state.report.aborted == 0)
      first = task.version;
  }
  task.keep_logs_after = state.keep_logs_after;
  task.base = state.planned.base;
  const std::vector<DifferActor>& differs = state.colleagues->differs;
  self->send(differs[state.next_differ], task);
  state.next_differ = (state.next_differ + 1) % differs.size();
  ++state.out;
}

// Audits
// -----------------------------------------------------------------------------------------------------------

void begin_audit(Self self) {
  SnapshotterState& state = self->state;
  --state.audits_due;
  state.auditing = true;
  state.audit.audit += 1;
  state.audit.version = state.report.version;
  state.audit.error.clear();
  state.audit_next = 0;
  state.audited.clear();
}

/// Every chunk was read: is the snapshot what the captures made it?
void end_audit(Self self) {
  SnapshotterState& state = self->state;
  state.auditing = false;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> audited;
  state.audited.list(audited);
  for (const auto& [cell, digest] : audited) {
    const std::uint64_t expected = state.digests.at(cell);
    if (digest == expected)
      continue;
    const auto block = std::find_if(state.work->blocks.begin(), state.work->blocks.end(),
                                    [cell = cell](const layout::Block& each) { return each.cell == cell; });
    state.audit.error = fmt::format(
      "slot '{}', cell {}: the snapshot has digest {:016x}, its captures made it {:016x}: somebody else has "
      "written to it, or memory is broken; nothing that is published from it can be proven: restart the "
      "trainer",
      state.work->slots[block->slot].name, cell, digest, expected);
    break;
  }
  self->send(state.colleagues->supervisor, SnapshotAudited{state.work->rank, state.audit});
}

/// Hands out what of the snapshot is not read yet.
void audit_on(Self self) {
  SnapshotterState& state = self->state;
  const std::vector<DifferActor>& differs = state.colleagues->differs;
  for (; state.audit_next < state.work->chunks.size() && state.audit_out < 2 * differs.size(); ++state.audit_next) {
    if (state.first_captured[state.audit_next] == 0)
      continue; // of a first update that was aborted: nothing is there
    ChunkTask task;
    task.version = state.audit.version;
    task.hand_out.chunk = static_cast<std::uint32_t>(state.audit_next);
    task.audit = true;
    self->send(differs[state.next_differ], task);
    state.next_differ = (state.next_differ + 1) % differs.size();
    ++state.out;
    ++state.audit_out;
  }
  if (state.audit_out == 0)
    end_audit(self);
}

/// A Differ has failed: no capture goes on. Memory may change once no Differ reads it any more.
void end_captures(Self self) {
  SnapshotterState& state = self->state;
  if (state.out > 0)
    return;
  if (state.report.version > 0 && !std::exchange(state.announced, true))
    self->send(state.colleagues->supervisor, CaptureDone{state.report.version});
  for (const CaptureRequest& request : state.waiting)
    self->send(state.colleagues->supervisor, CaptureDone{request.version});
  state.waiting.clear();
}

void advance(Self self) {
  SnapshotterState& state = self->state;
  if (state.failed)
    return end_captures(self);
  for (;;) {
    // An audit reads what the last capture left, before the next one changes it.
    while (state.announced && state.walk->idle() && !state.auditing && state.audits_due > 0) {
      begin_audit(self);
      audit_on(self);
    }
    if (state.auditing)
      return;
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
  initial.audit_every = settings.audit_every;
  initial.first_captured.resize(work->chunks.size());
  std::vector<std::uint32_t> cells;
  cells.reserve(work->blocks.size());
  for (const layout::Block& block : work->blocks)
    cells.push_back(block.cell);
  for (sync::CellSums* sums : {&initial.digest_changes, &initial.digests, &initial.audited})
    *sums = sync::CellSums(cells);
  initial.chunk_parts = std::make_unique<sync::ChunkParts>(work->chunks, work->blocks);
  initial.work = std::move(work);
  auto meter =
    meter_of(*initial.work, "snapshotter", true, initial.work->counters.differ, "differ", cap_of(settings.inflight));
  if (meter)
    meter->block_when([self] { return self->state.walk->blocked(); });
  return Metered{
    self,
    std::move(meter),
    [self](const CaptureRequest& request) {
      self->state.waiting.push_back(request);
      abandon_if_busy(self);
      advance(self);
    },
    [self](const UpdatePart& part) {
      SnapshotterState& state = self->state;
      if (state.failed)
        return;
      if (part.version > state.report.version) {
        state.early.push_back(part);
        // Of a capture that has not begun, no memory will be read.
        if (part.kind == UpdatePart::Kind::aborted)
          self->send(state.colleagues->supervisor, CaptureDone{part.version});
        return;
      }
      if (part.version == state.report.version)
        take_part(self, part);
      advance(self);
    },
    [self](CaptureCancel) {
      SnapshotterState& state = self->state;
      if (state.walk->open() && !state.failed) {
        abort_capture(self);
        advance(self);
      }
      for (const CaptureRequest& request : state.waiting)
        self->send(state.colleagues->supervisor, CaptureDone{request.version});
      state.waiting.clear();
      state.early.clear();
      state.audits_due = 0;
    },
    [self](SnapshotAudit) {
      ++self->state.audits_due;
      advance(self);
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
      --state.out;
      state.failed = state.failed || worked.failed;
      if (state.failed)
        return end_captures(self);
      if (worked.audit) {
        for (const auto& [cell, digest] : state.work->memory.digest_changes[worked.hand_out.chunk])
          state.audited.add(cell, digest);
        --state.audit_out;
        audit_on(self);
        return advance(self);
      }
      state.walk->done(worked.hand_out, worked.changed, worked.encoded);
      if (worked.hand_out.work == Work::capture || worked.hand_out.work == Work::capture_and_encode) {
        wire::CaptureReport& report = state.report;
        report.changed += worked.changed;
        report.diff.begin =
          report.diff.begin > report.diff.end ? worked.begin_ns : std::min(report.diff.begin, worked.begin_ns);
        report.diff.end = std::max(report.diff.end, worked.end_ns);
        for (const auto& [cell, change] : state.work->memory.digest_changes[worked.hand_out.chunk])
          state.digest_changes.add(cell, change);
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
