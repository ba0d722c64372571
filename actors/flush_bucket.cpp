#include "actors/flush_bucket.hpp"

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
    self->send(state.colleagues->sender,
               FlushSealed{step->flush->sequence, std::make_shared<const Bytes>(std::move(step->flush->payload))});
  }
  if (state.gathered && state.assembly->finished()) {
    DeliverySealed sealed;
    sealed.gathered = std::move(*state.gathered);
    sealed.flushes = state.assembly->flushes();
    sealed.assemble = state.assemble;
    sealed.flush_bucket_peak = state.work->counters.flush_bucket.peak();
    state.gathered.reset();
    self->send(state.colleagues->sender, std::move(sealed));
  }
}

} // namespace

FlushBucketActor::behavior_type flush_bucket(Self self, std::shared_ptr<RankWork> work, std::uint64_t cap) {
  FlushBucketState& initial = self->state;
  initial.work = std::move(work);
  initial.assembly = std::make_unique<sync::FlushAssembly>(cap);
  return {
    [self](const DeliveryBegin&) {
      FlushBucketState& state = self->state;
      state.assembly->begin();
      state.gathered.reset();
      state.assemble = {};
      count(state);
    },
    [self](const RoundGathered& round) {
      self->state.assembly->add_round(std::move(*round.pieces));
      advance(self);
    },
    [self](const WindowGathered&) {
      self->state.assembly->window_ended();
      advance(self);
    },
    [self](const GatherComplete& complete) {
      self->state.gathered = complete;
      self->state.assembly->finish();
      advance(self);
    },
    [self](FlushCredit) {
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
