#include "actors/sender.hpp"

#include "actors/metered.hpp"

#include <algorithm>
#include <fstream>
#include <numeric>

namespace deltawire::actors {
namespace {

using Self = SenderActor::stateful_pointer<SenderState>;

void carry_out(Self self, const sync::RootDelivery::Actions& actions);

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
                                 {.out = telemetry::flow_number({header.delivery, w, header.sequence})});
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

void send_manifest(Self self) {
  SenderState& state = self->state;
  state.manifest_sent = true;
  // Of a delta, the cells that changed; else all of them: more have changed since the base.
  std::vector<std::uint32_t> cells = state.changed_cells;
  if (state.plan.kind != wire::DeliveryKind::delta) {
    cells.resize(state.digests.size());
    std::iota(cells.begin(), cells.end(), 0);
  }
  const auto digests_of = [&](std::uint32_t worker) {
    sync::RootDelivery::Digests own;
    for (const std::uint32_t cell : cells)
      if (state.settings.routes->meets(worker, cell))
        own.emplace_back(cell, state.digests[cell]);
    return own;
  };
  carry_out(self, state.delivery->seal(digests_of, telemetry::now_ns()));
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
    worker.bytes = state.bytes_sent[w];
    worker.flushes = state.flushes_sent[w];
    worker.pieces = state.pieces_sent[w];
    worker.digest_ok = record.digest_ok ? 1 : 0;
    worker.pause_ns = record.pause_ns;
    worker.error = record.error;
    report.workers.push_back(std::move(worker));
  }
}

/// The update has ended: what became of it, and what the next one must bring.
void finish_update(Self self) {
  SenderState& state = self->state;
  state.updating = false;
  wire::DeliveryReport& report = state.report;
  report.committed = state.committed ? 1 : 0;
  if (state.committed)
    state.committed_version = report.version;
  if (!state.committed) {
    const Failure failure = state.failed.value_or(state.delivery->nobody());
    report.error = failure.code;
    report.error_message = failure.message;
  }
  report.counts.slots = state.settings.slots;
  report.times.committed_ns = telemetry::now_ns() - state.begun.published_ns;
  report.high_water.differ = std::max(report.high_water.differ, state.work->counters.differ.peak());
  report.high_water.gather_queue = std::max(report.high_water.gather_queue, state.work->counters.gather_queue.peak());
  report.high_water.flush_bucket = state.work->counters.flush_bucket.peak();
  report_workers(state);

  wire::NextUpdate next;
  next.version = report.version + 1;
  next.keep_logs_after = state.delivery->oldest_version(report.version);
  if (const auto plan = state.delivery->catch_up(report.version)) {
    next.catch_up = 1;
    next.kind = plan->kind;
    next.base = plan->base;
  }
  self->send(state.colleagues->supervisor, UpdateOver{std::move(report), next});
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
    return finish_update(self);
  const std::uint64_t gather = sync::catch_up_gather_of(state.begun.version);
  if (state.aborted || state.left_half_done) {
    drop_gather(self, gather);
    return finish_update(self);
  }
  if (!begin_delivery(self, gather, *plan))
    finish_update(self);
}

void begin_update(Self self, const UpdateBegin& begin) {
  SenderState& state = self->state;
  state.begun = begin;
  state.updating = true;
  state.carries_catch_up = begin.catch_up.has_value();
  state.changed_cells.clear();
  state.report = {};
  state.report.version = begin.version;
  state.report.kind = begin.version == 1 ? wire::DeliveryKind::seed : wire::DeliveryKind::delta;
  state.failed.reset();
  state.committed = false;
  for (auto* sent : {&state.bytes_sent, &state.flushes_sent, &state.pieces_sent})
    std::fill(sent->begin(), sent->end(), 0);
  state.delivery->begin_update();
  state.left_half_done = begin.aborted.has_value();
  if (begin.abandoned || begin.aborted) {
    state.failed = begin.aborted.value_or(superseded(begin.version));
    drop_gather(self, sync::gather_of(begin.version));
    return begin_catch_up(self);
  }
  const sync::DeliveryPlan own{state.report.kind, begin.version - 1, begin.version};
  if (!begin_delivery(self, sync::gather_of(begin.version), own))
    begin_catch_up(self);
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
        // Of another session's delivery: in the header that would be one of ours.
        const std::uint64_t delivery = std::is_same_v<Message, wire::Settle> ? 0 : m.delivery;
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
                               {.in = telemetry::flow_number({state.gather, state.flush_sequence})});
    self->send(state.colleagues->flush_bucket, FlushCredit{state.gather});
  }
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
  initial.delivery = std::make_unique<sync::RootDelivery>(
    sync::DeliverySettings{workers, settings.workers_per_replica, settings.quorum, settings.stall.count(),
                           settings.timeout.count(), settings.engine.count(), settings.session});
  initial.digests.resize(settings.cells);
  initial.bytes_sent.resize(workers);
  initial.flushes_sent.resize(workers);
  initial.pieces_sent.resize(workers);
  schedule_tick(self);
  return Metered{
    self,
    meter_of(*initial.work, "sender"),
    [self](const UpdateBegin& begin) { begin_update(self, begin); },
    [self](const GatherFinished& finished) { take_totals(self->state, finished); },
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
    [self](const WorkersMet& met) { carry_out(self, self->state.delivery->met(met.standing)); },
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
        carry_out(self, state.delivery->abandon(superseded(abandon.version), telemetry::now_ns()));
    },
    [self](const UpdateAbort& abort) {
      // Its gathers never end, so that it is not committed, and what is not over can be given up.
      SenderState& state = self->state;
      if (!state.updating || abort.version != state.begun.version)
        return;
      state.left_half_done = true;
      if (!state.committed)
        state.failed = abort.reason;
      carry_out(self, state.delivery->abandon(abort.reason, telemetry::now_ns()));
    },
    [self](const DeliveryAbort& abort) {
      self->state.aborted = true;
      carry_out(self, self->state.delivery->abort(abort.reason, telemetry::now_ns()));
    },
    [self](Tick) {
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
