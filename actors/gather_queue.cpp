#include "actors/gather_queue.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"
#include "sync/agreement.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

using Self = GatherQueueActor::stateful_pointer<GatherQueueState>;

void report(Self self, Failure failure) {
  self->send(self->state.colleagues->supervisor, FailureReport{std::move(failure)});
}

/// Runs a machine's step: a failure goes to the supervisor.
template <class T>
bool ok(Self self, Result<T>&& result) {
  if (result)
    return true;
  report(self, std::move(result).error());
  return false;
}

void advance_root(Self self);

void share_arrived(Self self, std::uint32_t rank, std::uint64_t gather, std::uint64_t round, SharedBytes pieces) {
  GatherQueueState& state = self->state;
  const std::uint64_t held = state.root->held_bytes();
  const auto wanted = state.root->on_share(rank, gather, round, pieces->size());
  if (!wanted)
    return report(self, wanted.error());
  if (!*wanted) {
    state.work->counters.gather_queue.remove(held - state.root->held_bytes());
    state.granted.erase({rank, round});
    return;
  }
  const telemetry::TimePoint now = telemetry::now();
  state.gather.end = now.time_since_epoch().count();
  state.progress_ns[rank] = state.gather.end;
  if (const auto since = state.granted.extract({rank, round}))
    state.work->recorder->span(state.lane, "gather", since.mapped(), now,
                               {{"from rank", rank},
                                {"round", static_cast<std::int64_t>(round)},
                                {"bytes", static_cast<std::int64_t>(pieces->size())}});
  const std::uint64_t bytes = pieces->size();
  const std::uint64_t onward = arrow::gathered(rank, gather, round);
  self->send(state.colleagues->flush_bucket, RoundGathered{gather, std::move(pieces), onward});
  state.work->recorder->span(
    state.lane, "share", now, telemetry::now(),
    {{"from rank", rank}, {"round", static_cast<std::int64_t>(round)}, {"bytes", static_cast<std::int64_t>(bytes)}},
    {.in = rank == state.work->rank ? 0 : arrow::share(rank, gather, round), .out = onward});
}

/// Another rank: its share of a round, or an empty one, leaves.
void send_share(Self self, const wire::Grant& grant, Bytes share) {
  GatherQueueState& state = self->state;
  state.share_under_way = true;
  const std::uint64_t bytes = share.size();
  state.work->counters.gather_queue.add(bytes);
  wire::FrameHeader header;
  header.type = static_cast<std::uint16_t>(wire::FrameType::round);
  header.delivery = grant.gather;
  header.source = state.work->rank;
  header.sequence = grant.round;
  const caf::actor_addr address = self->address();
  const auto begin = telemetry::now();
  state.ports.data[0]->send_data(
    header, std::make_shared<const Bytes>(std::move(share)),
    [address, bytes, begin, work = state.work, lane = state.lane, grant](const Result<void>& sent) {
      if (!sent)
        return; // the port reports its own end
      work->recorder->span(
        lane, "send share", begin, telemetry::now(),
        {{"round", static_cast<std::int64_t>(grant.round)}, {"bytes", static_cast<std::int64_t>(bytes)}},
        {.out = bytes == 0 ? 0 : arrow::share(work->rank, grant.gather, grant.round)});
      if (auto actor = caf::actor_cast<caf::actor>(address))
        caf::anon_send(actor, ShareSent{bytes});
    });
}

/// Encoded bytes that nobody will take: their credit returns.
void give_back(Self self, std::uint64_t bytes) {
  if (bytes == 0)
    return;
  self->state.work->counters.differ.remove(bytes);
  self->send(self->state.colleagues->snapshotter, CreditReturned{bytes});
}

void drop_own(Self self, std::uint64_t gather) {
  give_back(self, self->state.rank->drop(gather));
}

/// The rank's side of a grant: cut the share and send it.
void granted(Self self, const wire::Grant& grant) {
  GatherQueueState& state = self->state;
  auto share = state.rank->cut(grant);
  if (!share)
    return report(self, std::move(share).error());
  if (share->empty()) { // dropped meanwhile: what was queued was given back then
    if (state.root)
      return share_arrived(self, 0, grant.gather, grant.round, std::make_shared<Bytes>());
    return send_share(self, grant, std::move(*share));
  }
  state.work->counters.differ.remove(grant.bytes);
  if (state.root) {
    // The root's own share is gathered by being cut: the gather's budget covers it from here on.
    self->send(state.colleagues->snapshotter, CreditReturned{grant.bytes});
    return share_arrived(self, 0, grant.gather, grant.round, std::make_shared<Bytes>(std::move(*share)));
  }
  send_share(self, grant, std::move(*share));
}

/// Root: cuts and grants all rounds that may start now.
void grant_rounds(Self self) {
  GatherQueueState& state = self->state;
  for (auto round = state.root->next_round(); !round.empty(); round = state.root->next_round()) {
    const telemetry::TimePoint now = telemetry::now();
    if (state.gather.begin > state.gather.end)
      state.gather.begin = state.gather.end = now.time_since_epoch().count();
    for (const auto& [rank, grant] : round) {
      state.work->counters.gather_queue.add(grant.bytes);
      state.granted.emplace(std::pair{rank, grant.round}, now);
      state.progress_ns[rank] = now.time_since_epoch().count();
      if (rank == 0)
        granted(self, grant);
      else
        state.ports.control[rank]->send(grant, grant.gather);
    }
  }
}

/// Root: whatever can happen now.
void advance_root(Self self) {
  GatherQueueState& state = self->state;
  if (auto totals = state.root->known()) {
    const std::int64_t captured = state.captured_ns[sync::version_of_gather(totals->gather)];
    self->send(state.colleagues->sender, CaptureKnown{std::move(*totals), captured});
  }
  grant_rounds(self);
  while (state.root->window_ended()) {
    self->send(state.colleagues->flush_bucket, WindowGathered{state.gathering, state.windows_gathered++});
    // What is offered of the next window may have waited for this only: no other event needs to follow.
    grant_rounds(self);
  }
  if (auto totals = state.root->finished()) {
    const std::uint64_t gather_bytes = state.arrived[totals->gather];
    const std::int64_t captured = state.captured_ns[sync::version_of_gather(totals->gather)];
    state.arrived.erase(state.arrived.begin(), state.arrived.upper_bound(totals->gather));
    state.captured_ns.erase(state.captured_ns.begin(),
                            state.captured_ns.lower_bound(sync::version_of_gather(totals->gather)));
    totals->gather_queue_peak = std::max(totals->gather_queue_peak, state.work->counters.gather_queue.peak());
    const GatherComplete complete{totals->gather};
    self->send(state.colleagues->sender, GatherFinished{std::move(*totals), gather_bytes, captured, state.gather});
    self->send(state.colleagues->flush_bucket, complete);
  }
}

void offer(Self self, const wire::Offer& offer) {
  GatherQueueState& state = self->state;
  if (!state.root) {
    state.ports.control[0]->send(offer, offer.gather);
    return;
  }
  if (ok(self, state.root->on_offer(0, offer)))
    advance_root(self);
}

/// A Differ's chunk: queued, and offered to the root.
void take_chunk(Self self, sync::EncodedChunk& chunk) {
  GatherQueueState& state = self->state;
  const telemetry::TimePoint begin = telemetry::now();
  const std::uint64_t bytes = chunk.bytes.size();
  const std::uint64_t from = bytes == 0 ? 0 : arrow::chunk(state.work->rank, chunk.gather, chunk.chunk);
  const std::uint32_t number = chunk.chunk;
  if (state.rank->dropped(chunk.gather))
    give_back(self, bytes);
  else if (const auto ready = state.rank->add(std::move(chunk)))
    offer(self, *ready);
  if (bytes > 0)
    state.work->recorder->span(state.lane, "queue", begin, telemetry::now(),
                               {{"chunk", number}, {"bytes", static_cast<std::int64_t>(bytes)}}, {.in = from});
}

/// Root: a rank's capture has ended.
bool take_report(Self self, std::uint32_t rank, const wire::CaptureReport& report) {
  GatherQueueState& state = self->state;
  if (!ok(self, state.root->on_report(rank, report)))
    return false;
  state.captured_ns[report.version] = telemetry::now_ns();
  if (report.aborted != 0)
    self->send(state.colleagues->supervisor, CaptureAborted{report.version, rank});
  return true;
}

/// Root: a frame of another rank.
void on_root_frame(Self self, const FrameArrived& frame) {
  GatherQueueState& state = self->state;
  const std::uint32_t rank = frame.port->index();
  if (frame.port->role() != wire::Role::rank || rank == 0 || rank >= state.settings.ranks)
    return report(self, Failure{Code::invalid_input,
                                fmt::format("{} sent {}", frame.port->name(), wire::type_name(frame.header.type))});
  state.arrived[frame.header.delivery] += wire::header_bytes + frame.header.payload_bytes;
  state.progress_ns[rank] = telemetry::now_ns();
  switch (frame.header.type) {
  case wire::Offer::type: {
    const auto message = decode<wire::Offer>(frame);
    if (!message)
      return report(self, message.error());
    if (!ok(self, state.root->on_offer(rank, *message)))
      return;
    break;
  }
  case wire::CaptureReport::type: {
    const auto message = decode<wire::CaptureReport>(frame);
    if (!message)
      return report(self, message.error());
    if (!take_report(self, rank, *message))
      return;
    break;
  }
  case static_cast<std::uint16_t>(wire::FrameType::round): {
    if (auto checked = wire::check_payload(frame.header, *frame.body); !checked)
      return report(self, frame.port->naming(checked.error()));
    share_arrived(self, rank, frame.header.delivery, frame.header.sequence, frame.body);
    break;
  }
  default:
    return report(self, Failure{Code::invalid_input, fmt::format("{} sent {} to the root's gather", frame.port->name(),
                                                                 wire::type_name(frame.header.type))});
  }
  advance_root(self);
}

/// Root: a rank that owes a share and makes no progress is named after `stall`; one that has not captured the version,
/// because its publish() was not called or its process stands still, after `timeout`.
void check_progress(Self self) {
  GatherQueueState& state = self->state;
  const std::int64_t now = telemetry::now_ns();
  for (const auto& [key, since] : state.granted)
    if (now - state.progress_ns[key.first] > state.settings.stall.count())
      return report(
        self, Failure{Code::timed_out,
                      fmt::format("rank {} did not send its share of round {} for {:.1f} s (update.stall)", key.first,
                                  key.second, static_cast<double>(state.settings.stall.count()) * 1e-9)});
  if (!state.root->active() || now - state.begun_ns < state.settings.timeout.count())
    return;
  std::string names;
  for (const std::uint32_t rank : state.root->waiting_for())
    names += fmt::format("{}{}", names.empty() ? "rank " : ", rank ", rank);
  if (names.empty())
    return;
  state.begun_ns = now; // said once a timeout
  report(self, Failure{Code::timed_out, fmt::format("{} did not complete the capture of version {} within {:.1f} s "
                                                    "(update.timeout)",
                                                    names, sync::version_of_gather(state.gathering),
                                                    static_cast<double>(state.settings.timeout.count()) * 1e-9)});
}

void schedule_tick(Self self) {
  self->delayed_send(GatherQueueActor{self},
                     std::max(self->state.settings.stall / 10, std::chrono::nanoseconds(1000000)), Tick{});
}

} // namespace

GatherQueueActor::behavior_type gather_queue(Self self, std::shared_ptr<RankWork> work, GatherPorts ports,
                                             GatherSettings settings) {
  GatherQueueState& initial = self->state;
  std::vector<std::uint32_t> windows;
  for (const Chunk& chunk : work->chunks)
    windows.push_back(chunk.window);
  initial.rank = std::make_unique<sync::GatherRank>(std::move(windows), work->windows);
  if (work->rank == 0) {
    initial.root = std::make_unique<sync::GatherRoot>(settings.ranks, work->windows, settings.max_round);
    initial.progress_ns.resize(settings.ranks);
  }
  initial.lane = fmt::format("rank {}: gather queue", work->rank);
  initial.work = std::move(work);
  initial.ports = std::move(ports);
  initial.settings = settings;
  if (initial.root)
    schedule_tick(self);
  auto meter = meter_of(*initial.work, "gather queue", false, initial.work->counters.gather_queue, "gather queue",
                        cap_of(settings.max_round));
  if (meter)
    meter->block_when([self] {
      const GatherQueueState& state = self->state;
      return state.root ? state.root->blocked() : !state.waiting_grants.empty();
    });
  return Metered{
    self,
    std::move(meter),
    [self](const ChunkEncoded& encoded) { take_chunk(self, *encoded.chunk); },
    [self](const CaptureReported& reported) {
      GatherQueueState& state = self->state;
      if (state.work->chunks.empty())
        offer(self, state.rank->nothing(sync::gather_of(reported.report.version)));
      wire::CaptureReport report = reported.report;
      report.differ_peak = state.work->counters.differ.peak();
      report.gather_queue_peak = state.work->counters.gather_queue.peak();
      if (!state.root) {
        state.ports.control[0]->send(report, sync::gather_of(report.version));
        return;
      }
      if (take_report(self, 0, report))
        advance_root(self);
    },
    [self](const CatchUpBegun& begun) {
      if (self->state.work->chunks.empty())
        offer(self, self->state.rank->nothing(begun.gather));
    },
    [self](const UpdateAbandoned& abandoned) { drop_own(self, sync::gather_of(abandoned.version)); },
    [self](const FrameArrived& frame) {
      if (self->state.root)
        return on_root_frame(self, frame);
      if (frame.header.type == wire::Drop::type) {
        const auto dropped = decode<wire::Drop>(frame);
        if (!dropped)
          return report(self, dropped.error());
        drop_own(self, dropped->gather);
        return self->send(self->state.colleagues->snapshotter, GatherDropped{dropped->gather});
      }
      const auto grant = decode<wire::Grant>(frame);
      if (frame.header.type != wire::Grant::type || !grant)
        return report(
          self, !grant ? grant.error()
                       : Failure{Code::invalid_input, fmt::format("{} sent {} to a rank's gather", frame.port->name(),
                                                                  wire::type_name(frame.header.type))});
      if (self->state.share_under_way)
        self->state.waiting_grants.push_back(*grant);
      else
        granted(self, *grant);
    },
    [self](const ShareSent& sent) {
      GatherQueueState& state = self->state;
      state.work->counters.gather_queue.remove(sent.bytes);
      self->send(state.colleagues->snapshotter, CreditReturned{sent.bytes});
      state.share_under_way = false;
      if (state.waiting_grants.empty())
        return;
      const wire::Grant next = state.waiting_grants.front();
      state.waiting_grants.pop_front();
      granted(self, next);
    },
    [self](const GatherBegin& begin) {
      GatherQueueState& state = self->state;
      state.gathering = begin.gather;
      state.begun_ns = telemetry::now_ns();
      state.gather = {};
      state.windows_gathered = 0;
      state.root->begin(begin.gather, begin.held);
      advance_root(self);
    },
    [self](const GatherDrop& drop) {
      GatherQueueState& state = self->state;
      state.root->drop(drop.gather);
      state.arrived.erase(drop.gather);
      for (std::uint32_t rank = 1; rank < state.settings.ranks; ++rank)
        state.ports.control[rank]->send(wire::Drop{drop.gather}, drop.gather);
      drop_own(self, drop.gather);
      self->send(state.colleagues->snapshotter, GatherDropped{drop.gather});
    },
    [self](const RoundConsumed& consumed) {
      self->state.work->counters.gather_queue.remove(consumed.bytes);
      self->state.root->consumed(consumed.bytes);
      advance_root(self);
    },
    [self](Tick) {
      check_progress(self);
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
