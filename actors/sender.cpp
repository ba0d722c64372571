#include "actors/sender.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

using Self = SenderActor::stateful_pointer<SenderState>;

void carry_out(Self self, const sync::RootDelivery::Actions& actions);

/// Sends the flush to every worker: one payload, shared by all connections.
void send_flush(Self self, const FlushSealed& flush) {
  SenderState& state = self->state;
  state.flush_begin = telemetry::now();
  state.flush_sequence = flush.sequence;
  if (state.send.begin > state.send.end)
    state.send.begin = state.send.end = state.flush_begin.time_since_epoch().count();
  wire::FrameHeader header;
  header.type = static_cast<std::uint16_t>(wire::FrameType::flush);
  header.delivery = state.next_delivery - 1;
  header.sequence = flush.sequence;
  state.delivery->flush_sent(flush.sequence, flush.payload->size());
  for (std::size_t w = 0; w < state.ports.data.size(); ++w)
    state.bytes_sent[w] += state.ports.data[w]->send_data(header, flush.payload);
}

void send_manifest(Self self) {
  SenderState& state = self->state;
  const sync::GatherTotals& totals = state.sealed->gathered.totals;
  state.manifest_sent = true;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digests;
  if (totals.seed) {
    std::fill(state.digests.begin(), state.digests.end(), 0);
    for (const auto& [cell, digest] : totals.digest_changes)
      state.digests[cell] = digest;
    for (std::uint32_t cell = 0; cell < state.digests.size(); ++cell)
      digests.emplace_back(cell, state.digests[cell]);
  } else {
    for (const auto& [cell, change] : totals.digest_changes)
      digests.emplace_back(cell, state.digests[cell] += change);
  }
  carry_out(self, state.delivery->seal(std::move(digests), telemetry::now_ns()));
}

wire::Span widen(wire::Span a, const wire::Span& b) {
  if (b.begin > b.end)
    return a;
  if (a.begin > a.end)
    return b;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

void report_over(Self self) {
  SenderState& state = self->state;
  const auto& records = state.delivery->records();
  const auto& failure = state.delivery->failure();
  wire::DeliveryReport report;
  report.version = state.begun.version;
  report.base = state.base;
  report.kind = state.begun.seed ? wire::DeliveryKind::seed : wire::DeliveryKind::delta;
  report.committed = failure ? 0 : 1;
  if (failure) {
    report.error = failure->code;
    report.error_message = failure->message;
  }
  report.counts.slots = state.settings.slots;
  const std::int64_t now = telemetry::now_ns();
  report.times.committed_ns = now - state.begun.published_ns;
  if (state.sealed) {
    const GatherComplete& gathered = state.sealed->gathered;
    report.step = gathered.totals.step;
    report.counts.elements = gathered.totals.elements;
    report.counts.changed = gathered.totals.changed;
    report.counts.gather_bytes = gathered.gather_bytes;
    report.counts.flushes = state.sealed->flushes;
    report.counts.rounds = gathered.totals.rounds;
    report.times.captured_ns = gathered.captured_ns - state.begun.published_ns;
    report.times.diff = {gathered.totals.diff_begin_ns, gathered.totals.diff_end_ns};
    if (gathered.totals.diff_begin_ns == 0)
      report.times.diff = {};
    report.times.gather = gathered.gather;
    report.times.assemble = state.sealed->assemble;
    report.high_water.differ = std::max(gathered.totals.differ_peak, state.work->counters.differ.peak());
    report.high_water.gather_queue =
      std::max(gathered.totals.gather_queue_peak, state.work->counters.gather_queue.peak());
    report.high_water.flush_bucket = state.sealed->flush_bucket_peak;
  }
  report.times.send = state.send;
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
    worker.state = record.lost ? "lost" : record.version == 0 ? "empty" : "serving";
    worker.bytes = state.bytes_sent[w];
    worker.digest_ok = record.digest_ok ? 1 : 0;
    worker.pause_ns = record.pause_ns;
    worker.error = record.error;
    report.workers.push_back(std::move(worker));
  }
  state.waiting.reset();
  state.sealed.reset();
  self->send(state.colleagues->supervisor, DeliveryOver{std::move(report)});
}

void carry_out(Self self, const sync::RootDelivery::Actions& actions) {
  SenderState& state = self->state;
  for (const auto& [worker, message] : actions.send)
    std::visit([&, w = worker](const auto& m) { state.bytes_sent[w] += state.ports.control[w]->send(m, m.delivery); },
               message);
  if (actions.may_send_flushes)
    state.may_send = true;
  if (actions.flush_credit) {
    const telemetry::TimePoint now = telemetry::now();
    state.send.end = now.time_since_epoch().count();
    state.work->recorder->span("rank 0: sender", "flush on the wire", state.flush_begin, now,
                               {{"flush", static_cast<std::int64_t>(state.flush_sequence)},
                                {"version", static_cast<std::int64_t>(state.begun.version)},
                                {"seed", state.begun.seed ? 1 : 0}});
    self->send(state.colleagues->flush_bucket, FlushCredit{});
  }
  if (actions.over)
    return report_over(self);
  if (!state.may_send)
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
  initial.delivery = std::make_unique<sync::RootDelivery>(workers, settings.workers_per_replica, settings.stall.count(),
                                                          settings.timeout.count());
  initial.digests.resize(settings.cells);
  initial.bytes_sent.resize(workers);
  schedule_tick(self);
  return {
    [self](const DeliveryBegin& begin) {
      SenderState& state = self->state;
      state.begun = begin;
      state.base = begin.seed ? 0 : begin.version - 1;
      state.may_send = false;
      state.manifest_sent = false;
      state.waiting.reset();
      state.sealed.reset();
      state.send = {};
      std::fill(state.bytes_sent.begin(), state.bytes_sent.end(), 0);
      carry_out(self, state.delivery->begin(state.next_delivery++, begin.seed, begin.version, telemetry::now_ns()));
    },
    [self](const FlushSealed& flush) {
      SenderState& state = self->state;
      if (!state.delivery->running())
        return; // given up meanwhile
      if (state.may_send)
        send_flush(self, flush);
      else
        state.waiting = flush;
    },
    [self](const DeliverySealed& sealed) {
      SenderState& state = self->state;
      if (!state.delivery->running())
        return;
      state.sealed = sealed;
      if (state.may_send)
        send_manifest(self);
    },
    [self](const FrameArrived& frame) {
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
      carry_out(self, self->state.delivery->lost(closed.port->index(), closed.reason, telemetry::now_ns()));
    },
    [self](const DeliveryAbort& abort) {
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
