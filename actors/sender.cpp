#include "actors/sender.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"

#include <algorithm>
#include <fstream>
#include <numeric>

namespace deltawire::actors {
namespace {

using Self = SenderActor::stateful_pointer<SenderState>;

void carry_out(Self self, const sync::RootDelivery::Actions& actions);
void begin_catch_up(Self self);
void matched(Self self);

Failure superseded(std::uint64_t version) {
  return {Code::superseded, fmt::format("the update to version {} was given up for the next one, which brings its "
                                        "changes too (update.busy = \"fold\")",
                                        version)};
}

/// A part of a flush as a file: the frame, numbered as the flush. False where it could not be written. The header
/// describes the payload.
bool keep(const SenderState& state, wire::FrameHeader header, const FlushSealed& flush, const FlushSealed::Part& part) {
  header.sequence = flush.sequence;
  const wire::HeaderBytes bytes = wire::write_header(header);
  std::ofstream file(fmt::format("{}/v{}{}-flush{}-route{}.flush", state.settings.keep_flushes, state.begun.version,
                                 sync::is_catch_up(state.gather) ? "-catch-up" : "", flush.sequence, part.route),
                     std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.write(reinterpret_cast<const char*>(part.payload->data()), static_cast<std::streamsize>(part.payload->size()));
  file.close();
  return !file.fail();
}

/// Sends each part of a flush to the workers of its route that take part: one payload, shared by all connections.
void send_flush(Self self, const FlushSealed& flush) {
  SenderState& state = self->state;
  state.flush_begin = telemetry::now();
  state.flush_sequence = flush.sequence;
  if (state.send.begin > state.send.end)
    state.send.begin = state.send.end = state.flush_begin.time_since_epoch().count();
  wire::FrameHeader header;
  header.type = static_cast<std::uint16_t>(wire::FrameType::flush);
  header.delivery = state.next_delivery - 1;
  for (const FlushSealed::Part& part : flush.parts) {
    header.route = part.route;
    wire::describe_payload(header, *part.payload);
    if (!state.settings.keep_flushes.empty() && !keep(state, header, flush, part))
      self->send(state.colleagues->supervisor,
                 FailureReport{{Code::output_failed, fmt::format("telemetry.flushes: {}: a flush cannot be written",
                                                                 state.settings.keep_flushes)}});
    for (const std::uint32_t w : state.settings.routes->workers[part.route]) {
      if (!state.delivery->takes_part(w))
        continue;
      header.sequence = state.delivery->frame_sent(w, part.payload->size());
      const telemetry::TimePoint now = telemetry::now();
      state.bytes_sent[w] += state.ports.data[w]->send_described(header, part.payload);
      state.work->recorder->span("rank 0: sender", "frame", now, telemetry::now(),
                                 {{"worker", w},
                                  {"sequence", static_cast<std::int64_t>(header.sequence)},
                                  {"flush", static_cast<std::int64_t>(flush.sequence)}},
                                 {.out = arrow::frame(header.delivery, w, header.sequence)});
      ++state.flushes_sent[w];
      state.pieces_sent[w] += part.pieces;
    }
  }
  carry_out(self, state.delivery->flush_sent(telemetry::now_ns()));
}

wire::Span widen(wire::Span a, const wire::Span& b) {
  if (b.begin > b.end)
    return a;
  if (a.begin > a.end)
    return b;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// What the ranks reported. It may come when the update has failed already: the digests count all the same.
void take_totals(SenderState& state, const GatherFinished& finished) {
  const sync::GatherTotals& totals = finished.totals;
  for (const auto& [cell, change] : totals.digest_changes)
    state.digests[cell] += change;
  state.digests_version = sync::version_of_gather(totals.gather);
  if (!state.updating || sync::version_of_gather(totals.gather) != state.begun.version)
    return;
  wire::DeliveryReport& report = state.report;
  report.counts.gather_bytes += finished.gather_bytes;
  report.counts.rounds += totals.rounds;
  report.times.gather = widen(report.times.gather, finished.gather);
  if (!totals.reported)
    return;
  state.changed_cells.clear();
  for (const auto& [cell, change] : totals.digest_changes)
    state.changed_cells.push_back(cell);
  report.times.captured_ns = finished.captured_ns - state.begun.published_ns;
  report.step = totals.step;
  report.counts.elements = totals.elements;
  report.counts.changed = totals.changed;
  if (totals.diff_begin_ns != 0)
    report.times.diff = {totals.diff_begin_ns, totals.diff_end_ns};
  report.high_water.differ = totals.differ_peak;
  report.high_water.gather_queue = totals.gather_queue_peak;
}

std::vector<std::uint32_t> all_cells(const SenderState& state) {
  std::vector<std::uint32_t> cells(state.digests.size());
  std::iota(cells.begin(), cells.end(), 0);
  return cells;
}

/// Of those of `cells` that the worker holds.
sync::Digests digests_of(const SenderState& state, std::uint32_t worker, const std::vector<std::uint32_t>& cells) {
  sync::Digests own;
  for (const std::uint32_t cell : cells)
    if (state.settings.routes->meets(worker, cell))
      own.emplace_back(cell, state.digests[cell]);
  return own;
}

void send_manifest(Self self) {
  SenderState& state = self->state;
  state.manifest_sent = true;
  // Of a delta, the cells that changed; else all of them: more have changed since the base. None where none is checked.
  std::vector<std::uint32_t> cells = state.changed_cells;
  if (!state.settings.verify)
    cells.clear();
  else if (state.plan.kind != wire::DeliveryKind::delta)
    cells = all_cells(state);
  carry_out(self, state.delivery->seal([&](std::uint32_t worker) { return digests_of(state, worker, cells); },
                                       telemetry::now_ns()));
}

std::string_view name_of(wire::DeliveryKind kind) {
  switch (kind) {
  case wire::DeliveryKind::seed:
    return "seed";
  case wire::DeliveryKind::delta:
    return "delta";
  case wire::DeliveryKind::fold:
    return "fold";
  }
  return "";
}

/// `version`: the newest one that was committed.
std::string state_of(const sync::RootDelivery::Record& record, std::uint64_t version) {
  if (record.lost)
    return "lost";
  if (record.dirty)
    return "dirty";
  if (record.version == 0)
    return "empty";
  return record.version >= version ? "serving" : "lagging";
}

void report_workers(SenderState& state) {
  wire::DeliveryReport& report = state.report;
  const auto& records = state.delivery->records();
  for (std::uint32_t w = 0; w < records.size(); ++w) {
    const sync::RootDelivery::Record& record = records[w];
    report.times.stage = widen(report.times.stage, record.stage);
    report.times.commit = widen(report.times.commit, record.commit);
    report.times.pause_ns = std::max(report.times.pause_ns, record.pause_ns);
    report.high_water.applier = std::max(report.high_water.applier, record.applier_peak);
    report.counts.wire_bytes += state.bytes_sent[w];
    wire::WorkerReport worker;
    worker.index = w;
    worker.version = record.version;
    worker.state = state_of(record, state.committed_version);
    if (record.brought)
      worker.delivery = name_of(*record.brought);
    worker.matched = record.matched ? 1 : 0;
    worker.audited = record.audited ? 1 : 0;
    worker.bytes = state.bytes_sent[w];
    worker.flushes = state.flushes_sent[w];
    worker.pieces = state.pieces_sent[w];
    worker.digest_ok = record.digest_ok ? 1 : 0;
    worker.pause_ns = record.pause_ns;
    worker.error = record.error;
    report.workers.push_back(std::move(worker));
  }
}

/// To whom what the update itself changed goes.
sync::DeliveryPlan own_plan(const SenderState& state) {
  return {state.begun.version == 1 ? wire::DeliveryKind::seed : wire::DeliveryKind::delta, state.begun.version - 1,
          state.begun.version};
}

/// Of what begins now: an update, or an audit.
void start_report(SenderState& state) {
  state.report = {};
  state.report.version = state.begun.version;
  state.report.kind = own_plan(state).kind;
  state.failed.reset();
  state.committed = false;
  for (auto* sent : {&state.bytes_sent, &state.flushes_sent, &state.pieces_sent})
    std::fill(sent->begin(), sent->end(), 0);
  state.delivery->begin_update();
}

/// The update has ended: what became of it, and what the next one must bring.
void finish_update(Self self) {
  SenderState& state = self->state;
  state.updating = false;
  wire::DeliveryReport& report = state.report;
  report.committed = state.committed ? 1 : 0;
  if (!state.committed) {
    const Failure failure = state.failed.value_or(state.delivery->nobody());
    report.error = failure.code;
    report.error_message = failure.message;
  } else if (state.snapshot_wrong) {
    report.error = state.snapshot_wrong->code;
    report.error_message = state.snapshot_wrong->message;
  }
  report.counts.slots = state.settings.slots;
  report.times.committed_ns = telemetry::now_ns() - state.begun.published_ns;
  report.high_water.differ = std::max(report.high_water.differ, state.work->counters.differ.peak());
  report.high_water.gather_queue = std::max(report.high_water.gather_queue, state.work->counters.gather_queue.peak());
  report.high_water.flush_bucket = state.work->counters.flush_bucket.peak();
  report_workers(state);

  wire::NextUpdate next;
  next.version = state.last_update + 1;
  next.keep_logs_after = state.delivery->oldest_version(state.last_update);
  if (const auto plan = state.delivery->catch_up(state.last_update)) {
    next.catch_up = 1;
    next.kind = plan->kind;
    next.base = plan->base;
  }
  self->send(state.colleagues->supervisor, UpdateOver{std::move(report), next});
}

// Audits
// -----------------------------------------------------------------------------------------------------------

/// Workers are asked what their memory holds; false where nobody is to be asked.
bool ask(Self self, sync::AuditPlan plan) {
  SenderState& state = self->state;
  if (!state.delivery->anyone_for(plan))
    return false;
  plan.audit = state.next_audit++;
  state.gather = 0; // what is still on its way of a gather is nobody's any more
  state.may_send = false;
  const std::vector<std::uint32_t> cells = all_cells(state);
  carry_out(self, state.delivery->audit(
                    plan, [&](std::uint32_t worker) { return digests_of(state, worker, cells); }, telemetry::now_ns()));
  return true;
}

/// An audit of all memory, workers' and ranks', ends when both have answered, or the session is about to.
void audit_on(Self self) {
  SenderState& state = self->state;
  if (state.asking != SenderState::Asking::for_audit || state.delivery->running())
    return;
  if (!state.aborted && !state.ranks->missing(state.rank_audits).empty())
    return;
  state.asking = SenderState::Asking::nobody;
  if (std::exchange(state.audit_only, false)) {
    state.failed = state.delivery->found();
    const auto& records = state.delivery->records();
    const bool any = std::any_of(records.begin(), records.end(), [](const auto& record) { return record.audited; });
    state.committed = any && !state.failed;
    if (!any && !state.failed)
      state.failed = Failure{Code::peer_failed, fmt::format("no worker serves version {}, which is what the trainer's "
                                                            "ranks have: there is nothing to audit",
                                                            state.report.version)};
  }
  finish_update(self);
}

void begin_audit(Self self) {
  SenderState& state = self->state;
  state.asking = SenderState::Asking::for_audit;
  ++state.rank_audits;
  state.audit_begun_ns = telemetry::now_ns();
  if (!ask(self, {.version = state.digests_version}))
    audit_on(self);
}

/// The ranks call audit(): no update is under way, and none begins before it is over.
void begin_audit_only(Self self, const AuditBegin& begin) {
  SenderState& state = self->state;
  state.begun = {};
  state.begun.version = state.digests_version;
  state.begun.published_ns = begin.asked_ns;
  state.audit_only = true;
  start_report(state);
  state.report.of_audit = 1;
  state.report.kind = wire::DeliveryKind::delta;
  state.report.base = state.digests_version;
  begin_audit(self);
}

/// The update's deliveries are over.
void end_update(Self self) {
  SenderState& state = self->state;
  if (state.committed)
    state.committed_version = state.report.version;
  if (state.settings.audit_every != 0 && state.report.version % state.settings.audit_every == 0 && !state.aborted)
    return begin_audit(self);
  finish_update(self);
}

/// Ranks that do not read their snapshot again: they have not called audit(), or publish(), or stand still.
void check_rank_audits(Self self) {
  SenderState& state = self->state;
  const std::int64_t now = telemetry::now_ns();
  if (state.asking != SenderState::Asking::for_audit || now - state.audit_begun_ns < state.settings.timeout.count())
    return;
  const auto missing = state.ranks->missing(state.rank_audits);
  if (missing.empty())
    return;
  state.audit_begun_ns = now; // said once a timeout
  self->send(state.colleagues->supervisor,
             FailureReport{{Code::timed_out, fmt::format("rank {} did not audit its snapshot of version {} within "
                                                         "{:.1f} s (update.timeout): has it called {}?",
                                                         fmt::join(missing, ", rank "), state.report.version,
                                                         static_cast<double>(state.settings.timeout.count()) * 1e-9,
                                                         state.audit_only ? "audit()" : "publish()")}});
}

void drop_gather(Self self, std::uint64_t gather) {
  self->send(self->state.colleagues->gather_queue, GatherDrop{gather});
}

/// Delivers one gather to whom it is for; false where that is nobody.
bool begin_delivery(Self self, std::uint64_t gather, const sync::DeliveryPlan& plan) {
  SenderState& state = self->state;
  if (!state.delivery->anyone_for(plan)) {
    drop_gather(self, gather);
    return false;
  }
  state.gather = gather;
  state.plan = plan;
  state.may_send = false;
  state.manifest_sent = false;
  state.waiting.reset();
  state.sealed.reset();
  state.send = {};
  if (state.report.base == 0 && !state.committed) {
    state.report.kind = plan.kind;
    state.report.base = plan.base;
  }
  const GatherBegin begin{gather};
  self->send(state.colleagues->flush_bucket, begin);
  self->send(state.colleagues->gather_queue, begin);
  carry_out(self, state.delivery->begin(state.next_delivery++, plan, telemetry::now_ns()));
  return true;
}

void begin_catch_up(Self self) {
  SenderState& state = self->state;
  const auto plan = std::exchange(state.begun.catch_up, std::nullopt);
  if (!plan)
    return end_update(self);
  const std::uint64_t gather = sync::catch_up_gather_of(state.begun.version);
  if (state.aborted || state.left_half_done) {
    drop_gather(self, gather);
    return end_update(self);
  }
  if (!begin_delivery(self, gather, *plan))
    end_update(self);
}

/// The update's own changes, to whom they fit.
void begin_own(Self self) {
  SenderState& state = self->state;
  const std::uint64_t gather = sync::gather_of(state.begun.version);
  if (state.aborted || state.left_half_done) {
    drop_gather(self, gather);
    return begin_catch_up(self);
  }
  if (!begin_delivery(self, gather, own_plan(state)))
    begin_catch_up(self);
}

/// Workers with nothing whole may hold what the trainer has: the version before this one, which makes them fit for its
/// changes; or, where this is the first, the version itself, once the ranks have told its digests.
void look_for_matches(Self self) {
  SenderState& state = self->state;
  const bool first = state.begun.version == 1;
  const sync::AuditPlan plan{.version = first ? 1 : state.digests_version, .adopt = true};
  if (!state.settings.match || !state.delivery->anyone_for(plan))
    return begin_own(self);
  if (first && state.delivery->anyone_for(own_plan(state))) {
    state.asking = SenderState::Asking::for_the_capture;
    self->send(state.colleagues->gather_queue, GatherBegin{sync::gather_of(1), true});
    return;
  }
  if (first || state.digests_version == 0 || state.digests_version != state.committed_version)
    return begin_own(self);
  state.asking = SenderState::Asking::for_matches;
  (void)ask(self, plan);
}

/// The digests of the first version are known before any value is gathered.
void capture_known(Self self, const CaptureKnown& known) {
  SenderState& state = self->state;
  take_totals(state, {known.totals, 0, known.captured_ns, {}});
  if (state.asking != SenderState::Asking::for_the_capture)
    return; // given up meanwhile
  state.asking = SenderState::Asking::for_matches;
  if (!ask(self, {.version = state.digests_version, .adopt = true}))
    matched(self);
}

void begin_update(Self self, const UpdateBegin& begin) {
  SenderState& state = self->state;
  state.begun = begin;
  state.updating = true;
  state.last_update = begin.version;
  state.carries_catch_up = begin.catch_up.has_value();
  state.changed_cells.clear();
  start_report(state);
  state.left_half_done = begin.aborted.has_value();
  if (begin.abandoned || begin.aborted) {
    state.failed = begin.aborted.value_or(superseded(begin.version));
    drop_gather(self, sync::gather_of(begin.version));
    return begin_catch_up(self);
  }
  look_for_matches(self);
}

/// Who is asked for matches has answered, or nobody waits for it any more.
void matched(Self self) {
  SenderState& state = self->state;
  state.asking = SenderState::Asking::nobody;
  // Where that is the update's own version, it exists.
  const auto& records = state.delivery->records();
  state.committed = std::any_of(records.begin(), records.end(), [&](const sync::RootDelivery::Record& record) {
    return record.version == state.begun.version;
  });
  begin_own(self);
}

void delivery_over(Self self) {
  SenderState& state = self->state;
  const auto& failure = state.delivery->failure();
  if (state.sealed) {
    state.report.counts.flushes += state.sealed->flushes;
    state.report.times.assemble = widen(state.report.times.assemble, state.sealed->assemble);
  } else {
    drop_gather(self, state.gather);
  }
  state.report.times.send = widen(state.report.times.send, state.send);
  state.committed = state.committed || !failure;
  if (failure && !state.failed)
    state.failed = failure;
  state.waiting.reset();
  state.sealed.reset();
  begin_catch_up(self);
}

void carry_out(Self self, const sync::RootDelivery::Actions& actions) {
  SenderState& state = self->state;
  for (const auto& [worker, message] : actions.send)
    std::visit(
      [&, w = worker]<class Message>(const Message& m) {
        std::uint64_t delivery = 0;
        // Of another session's delivery: in the header that would be one of ours.
        if constexpr (requires { m.delivery; } && !std::is_same_v<Message, wire::Settle>)
          delivery = m.delivery;
        state.bytes_sent[w] += state.ports.control[w]->send(m, delivery);
      },
      message);
  if (actions.may_send_flushes)
    state.may_send = true;
  if (actions.flush_credit) {
    const telemetry::TimePoint now = telemetry::now();
    state.send.end = now.time_since_epoch().count();
    state.work->recorder->span("rank 0: sender", "flush on the wire", state.flush_begin, now,
                               {{"flush", static_cast<std::int64_t>(state.flush_sequence)},
                                {"version", static_cast<std::int64_t>(state.begun.version)},
                                {"seed", state.plan.kind == wire::DeliveryKind::seed ? 1 : 0}},
                               {.in = arrow::flush(state.gather, state.flush_sequence)});
    self->send(state.colleagues->flush_bucket, FlushCredit{state.gather});
  }
  if (actions.over && state.asking == SenderState::Asking::for_matches)
    return matched(self);
  if (actions.over && state.asking == SenderState::Asking::for_audit)
    return audit_on(self);
  if (actions.over)
    return delivery_over(self);
  if (!state.may_send || !state.delivery->running())
    return;
  if (state.waiting) {
    const FlushSealed flush = *state.waiting;
    state.waiting.reset();
    send_flush(self, flush);
  }
  if (state.sealed && !state.manifest_sent)
    send_manifest(self);
}

/// The update is not to be delivered, unless it is committed already.
void give_up(Self self, const Failure& reason) {
  SenderState& state = self->state;
  if (state.asking == SenderState::Asking::for_the_capture || state.asking == SenderState::Asking::for_matches) {
    state.left_half_done = true;
    state.failed = reason;
    if (state.asking == SenderState::Asking::for_the_capture)
      matched(self);
    return; // else as soon as who is asked has answered
  }
  carry_out(self, state.delivery->abandon(reason, telemetry::now_ns()));
}

template <class Message>
void answer(Self self, const FrameArrived& frame) {
  SenderState& state = self->state;
  const std::uint32_t worker = frame.port->index();
  const auto message = decode<Message>(frame);
  if (!message) {
    // A worker that cannot speak the protocol is as good as gone.
    frame.port->abort(message.error());
    return carry_out(self, state.delivery->lost(worker, message.error(), telemetry::now_ns()));
  }
  carry_out(self, state.delivery->on(worker, *message, telemetry::now_ns()));
}

void schedule_tick(Self self) {
  self->delayed_send(SenderActor{self}, std::max(self->state.settings.stall / 10, std::chrono::nanoseconds(1000000)),
                     Tick{});
}

} // namespace

SenderActor::behavior_type sender(Self self, std::shared_ptr<RankWork> work, WorkerPorts ports,
                                  SenderSettings settings) {
  SenderState& initial = self->state;
  initial.work = std::move(work);
  initial.ports = std::move(ports);
  initial.settings = settings;
  const auto workers = static_cast<std::uint32_t>(initial.ports.control.size());
  initial.delivery = std::make_unique<sync::RootDelivery>(sync::DeliverySettings{
    workers, settings.workers_per_replica, settings.quorum, settings.stall.count(), settings.timeout.count(),
    settings.engine.count(), settings.session, settings.verify,
    [slots = initial.work->slots, cells = settings.cells](std::uint32_t cell) {
      return cell < cells.size() ? fmt::format("slot '{}', cell {}", slots[cells[cell].slot].name, cell)
                                 : fmt::format("cell {}", cell);
    }});
  initial.ranks = std::make_unique<sync::RankAudits>(settings.ranks);
  initial.digests.resize(settings.cells.size());
  initial.bytes_sent.resize(workers);
  initial.flushes_sent.resize(workers);
  initial.pieces_sent.resize(workers);
  schedule_tick(self);
  return Metered{
    self,
    meter_of(*initial.work, "sender"),
    [self](const UpdateBegin& begin) { begin_update(self, begin); },
    [self](const GatherFinished& finished) { take_totals(self->state, finished); },
    [self](const CaptureKnown& known) { capture_known(self, known); },
    [self](const AuditBegin& begin) { begin_audit_only(self, begin); },
    [self](const SnapshotAudited& audited) {
      SenderState& state = self->state;
      if (auto right = state.ranks->on_report(audited.rank, audited.report); !right) {
        state.snapshot_wrong = right.error();
        self->send(state.colleagues->supervisor, FailureReport{right.error()});
      }
      audit_on(self);
    },
    [self](const FlushSealed& flush) {
      SenderState& state = self->state;
      if (!state.delivery->running() || flush.gather != state.gather)
        return; // given up meanwhile
      if (state.may_send)
        send_flush(self, flush);
      else
        state.waiting = flush;
    },
    [self](const DeliverySealed& sealed) {
      SenderState& state = self->state;
      if (!state.delivery->running() || sealed.gather != state.gather)
        return;
      state.sealed = sealed;
      if (state.may_send)
        send_manifest(self);
    },
    [self](const FrameArrived& frame) {
      if (frame.port->role() == wire::Role::worker && frame.port != self->state.ports.control[frame.port->index()])
        return; // of a process that was replaced
      if (frame.port->role() != wire::Role::worker || frame.port->channel() != wire::Channel::control)
        return frame.port->abort(
          Failure{Code::invalid_input,
                  fmt::format("{} sent {} to the sender", frame.port->name(), wire::type_name(frame.header.type))});
      switch (frame.header.type) {
      case wire::Ready::type:
        return answer<wire::Ready>(self, frame);
      case wire::FlushStaged::type:
        return answer<wire::FlushStaged>(self, frame);
      case wire::Staged::type:
        return answer<wire::Staged>(self, frame);
      case wire::Applied::type:
        return answer<wire::Applied>(self, frame);
      case wire::Released::type:
        return answer<wire::Released>(self, frame);
      case wire::Undone::type:
        return answer<wire::Undone>(self, frame);
      case wire::Failed::type:
        return answer<wire::Failed>(self, frame);
      case wire::Audited::type:
        return answer<wire::Audited>(self, frame);
      default:
        frame.port->abort(Failure{Code::invalid_input, fmt::format("{} sent {} to the root", frame.port->name(),
                                                                   wire::type_name(frame.header.type))});
      }
    },
    [self](const PortClosed& closed) {
      SenderState& state = self->state;
      const std::uint32_t worker = closed.port->index();
      // Another process may have taken its place, or be about to.
      if (closed.port == state.ports.control[worker] || closed.port == state.ports.data[worker])
        carry_out(self, state.delivery->lost(worker, closed.reason, telemetry::now_ns()));
    },
    [self](const WorkersMet& met) {
      SenderState& state = self->state;
      state.ports.control = met.control;
      state.ports.data = met.data;
      carry_out(self, state.delivery->met(met.standing));
    },
    [self](const WorkerJoined& joined) {
      SenderState& state = self->state;
      state.ports.control[joined.worker] = joined.control;
      state.ports.data[joined.worker] = joined.data;
      carry_out(self, state.delivery->joined(joined.worker, joined.standing));
    },
    [self](const WorkerSilent& news) {
      SenderState& state = self->state;
      if (!news.silent)
        return state.delivery->heard(news.worker);
      carry_out(self, state.delivery->silent(news.worker, news.reason, telemetry::now_ns()));
    },
    [self](const UpdateAbandon& abandon) {
      SenderState& state = self->state;
      if (state.updating && abandon.version == state.begun.version && !state.carries_catch_up)
        give_up(self, superseded(abandon.version));
    },
    [self](const UpdateAbort& abort) {
      // Its gathers never end, so that it is not committed, and what is not over can be given up.
      SenderState& state = self->state;
      if (!state.updating || abort.version != state.begun.version)
        return;
      state.left_half_done = true;
      if (!state.committed)
        state.failed = abort.reason;
      give_up(self, abort.reason);
    },
    [self](const DeliveryAbort& abort) {
      SenderState& state = self->state;
      state.aborted = true;
      if (state.asking != SenderState::Asking::nobody && !state.failed)
        state.failed = abort.reason;
      if (state.asking == SenderState::Asking::for_the_capture)
        return matched(self);
      carry_out(self, state.delivery->abort(abort.reason, telemetry::now_ns()));
      audit_on(self);
    },
    [self](Tick) {
      check_rank_audits(self);
      carry_out(self, self->state.delivery->tick(telemetry::now_ns()));
      schedule_tick(self);
    },
    [self](const Meet& meet) { self->state.colleagues = meet.colleagues; },
    [self](Stop) {
      self->state = {};
      self->quit();
    },
  };
}

} // namespace deltawire::actors
