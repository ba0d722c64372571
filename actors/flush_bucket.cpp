#include "actors/flush_bucket.hpp"

#include "actors/arrows.hpp"
#include "actors/metered.hpp"

namespace deltawire::actors {
namespace {

using Self = FlushBucketActor::stateful_pointer<FlushBucketState>;

void count(FlushBucketState& state) {
  const std::uint64_t held = state.assembly->held_bytes();
  if (held > state.counted)
    state.work->counters.flush_bucket.add(held - state.counted);
  else
    state.work->counters.flush_bucket.remove(state.counted - held);
  state.counted = held;
}

void advance(Self self) {
  FlushBucketState& state = self->state;
  for (;;) {
    const telemetry::TimePoint begin = telemetry::now();
    auto step = state.assembly->advance();
    if (!step) {
      self->send(state.colleagues->supervisor, FailureReport{std::move(step).error()});
      return;
    }
    if (step->consumed > 0) {
      const telemetry::TimePoint end = telemetry::now();
      if (state.assemble.begin > state.assemble.end)
        state.assemble.begin = begin.time_since_epoch().count();
      state.assemble.end = end.time_since_epoch().count();
      state.work->recorder->span(
        "rank 0: flush bucket", "assemble", begin, end,
        {{"flush", static_cast<std::int64_t>(state.assembly->flushes() - (step->flush ? 1 : 0))},
         {"bytes", static_cast<std::int64_t>(step->consumed)}});
      self->send(state.colleagues->gather_queue, RoundConsumed{step->consumed});
    }
    count(state);
    if (!step->flush)
      break;
    FlushSealed sealed{state.gather, step->flush->sequence, {}};
    for (sync::FlushAssembly::Part& part : step->flush->parts)
      sealed.parts.push_back({part.route, std::make_shared<const Bytes>(std::move(part.payload)), part.pieces});
    state.work->recorder->span("rank 0: flush bucket", "seal", begin, telemetry::now(),
                               {{"flush", static_cast<std::int64_t>(sealed.sequence)}},
                               {.out = arrow::flush(sealed.gather, sealed.sequence)});
    self->send(state.colleagues->sender, std::move(sealed));
  }
  if (state.gathered && state.assembly->finished()) {
    DeliverySealed sealed;
    sealed.gather = state.gather;
    sealed.flushes = state.assembly->flushes();
    sealed.assemble = state.assemble;
    sealed.flush_bucket_peak = state.work->counters.flush_bucket.peak();
    state.gathered = false;
    self->send(state.colleagues->sender, std::move(sealed));
  }
}

} // namespace

FlushBucketActor::behavior_type flush_bucket(Self self, std::shared_ptr<RankWork> work,
                                             std::shared_ptr<const sync::RouteTable> routes, std::uint64_t cap) {
  FlushBucketState& initial = self->state;
  initial.work = std::move(work);
  initial.assembly = std::make_unique<sync::FlushAssembly>(cap, std::move(routes));
  auto meter =
    meter_of(*initial.work, "flush bucket", false, initial.work->counters.flush_bucket, "flush bucket", cap_of(cap, 2));
  if (meter)
    meter->block_when([self] { return self->state.assembly->blocked(); });
  return Metered{
    self,
    std::move(meter),
    [self](const GatherBegin& begin) {
      FlushBucketState& state = self->state;
      state.gather = begin.gather;
      const std::uint64_t discarded = state.assembly->begin();
      if (discarded > 0)
        self->send(state.colleagues->gather_queue, RoundConsumed{discarded});
      state.gathered = false;
      state.assemble = {};
      count(state);
    },
    [self](const RoundGathered& round) {
      FlushBucketState& state = self->state;
      const telemetry::TimePoint begin = telemetry::now();
      const std::uint64_t bytes = round.pieces->size();
      if (round.gather == state.gather) {
        state.assembly->add_round(std::move(*round.pieces));
        advance(self);
      } else {
        self->send(state.colleagues->gather_queue, RoundConsumed{bytes});
      }
      state.work->recorder->span("rank 0: flush bucket", "round", begin, telemetry::now(),
                                 {{"bytes", static_cast<std::int64_t>(bytes)}}, {.in = round.arrow});
    },
    [self](const WindowGathered& window) {
      if (window.gather != self->state.gather)
        return;
      self->state.assembly->window_ended();
      advance(self);
    },
    [self](const GatherComplete& complete) {
      if (complete.gather != self->state.gather)
        return;
      self->state.gathered = true;
      self->state.assembly->finish();
      advance(self);
    },
    [self](const FlushCredit& credit) {
      if (credit.gather != self->state.gather)
        return;
      self->state.assembly->wire_free();
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
