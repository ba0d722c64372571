#include "telemetry/actor_meter.hpp"

#include "telemetry/catalogue.hpp"

namespace deltawire::telemetry {

ActorMeter::ActorMeter(std::shared_ptr<Registry> registry, std::shared_ptr<Recorder> recorder, std::string owner,
                       std::string actor, bool trace_messages)
  : registry_(std::move(registry)), recorder_(std::move(recorder)), actor_(std::move(actor)), owner_(std::move(owner)),
    lane_(owner_ + ": " + actor_), trace_messages_(trace_messages && recorder_ && recorder_->enabled()),
    running_(registry_->gauge(family::actor_running, {{"actor", actor_}})),
    busy_(registry_->stopwatch(family::actor_busy, {{"actor", actor_}})),
    errors_(registry_->counter(family::actor_errors, {{"actor", actor_}})),
    mailbox_(registry_->gauge(family::mailbox_length, {{"actor", actor_}})),
    mailbox_peak_(registry_->gauge(family::mailbox_length_high_water, {{"actor", actor_}})) {
  running_.set(1);
  registry_->gauge(family::actor_start_time, {{"actor", actor_}}).set(static_cast<std::uint64_t>(now_ns()));
}

ActorMeter::~ActorMeter() {
  if (blocked_ != nullptr && blocked_->runs())
    blocked_->stop(std::chrono::steady_clock::now());
  running_.set(0);
}

void ActorMeter::follow(const HighWater& held, const std::string& actor, std::uint64_t cap) {
  const Labels labels{{"actor", actor}};
  followed_.push_back({&held, registry_->gauge(family::held_bytes, labels),
                       registry_->gauge(family::held_bytes_high_water, labels), owner_ + ": " + actor + " bytes"});
  if (cap != 0)
    registry_->gauge(family::cap_bytes, labels).set(cap);
}

void ActorMeter::block_when(std::function<bool()> blocked) {
  blocked_when_ = std::move(blocked);
  blocked_ = &registry_->stopwatch(family::actor_blocked, {{"actor", actor_}});
}

void ActorMeter::captured(std::uint64_t changed) {
  registry_->counter(family::captures).add();
  registry_->counter(family::captured_changes).add(changed);
}

ActorMeter::Message ActorMeter::message(std::string_view kind) {
  const Labels labels{{"actor", actor_}, {"message", std::string(kind)}};
  return {std::string(kind), registry_->counter(family::messages, labels),
          registry_->histogram(family::message_seconds, labels), registry_->counter(family::message_bytes, labels)};
}

ActorMeter::SteadyPoint ActorMeter::begin(std::size_t waiting) noexcept {
  mailbox_.set(waiting);
  mailbox_peak_.raise(waiting);
  const SteadyPoint now = std::chrono::steady_clock::now();
  if (blocked_ != nullptr && blocked_->runs())
    blocked_->stop(now);
  busy_.start(now);
  return now;
}

void ActorMeter::end(const Message& message, SteadyPoint begin, std::uint64_t bytes) {
  const SteadyPoint ended = std::chrono::steady_clock::now();
  const auto taken = ended - begin;
  const auto ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(taken).count());
  busy_.stop(ended);
  message.handled.add();
  message.seconds.record(ns);
  if (bytes != 0)
    message.bytes.add(bytes);
  for (Followed& each : followed_) {
    const std::uint64_t held = each.held->now();
    if (held == each.last && each.peak.value() == each.held->peak())
      continue;
    each.last = held;
    each.now.set(held);
    each.peak.set(each.held->peak());
    if (recorder_)
      recorder_->count(each.name, now(), held);
  }
  if (trace_messages_) {
    const TimePoint end = now();
    recorder_->span(lane_, message.kind, end - std::chrono::nanoseconds(taken), end);
  }
  look_whether_blocked(begin, ended);
}

/// In the trace a stretch goes on over messages that change nothing.
void ActorMeter::look_whether_blocked(SteadyPoint begin, SteadyPoint end) {
  const bool blocked = blocked_when_ && blocked_when_();
  if (blocked)
    blocked_->start(end);
  if (!recorder_ || blocked == blocked_since_.has_value())
    return;
  if (blocked) {
    blocked_since_ = now();
    return;
  }
  recorder_->span(lane_, "blocked", *blocked_since_, now() - std::chrono::nanoseconds(end - begin));
  blocked_since_.reset();
}

void ActorMeter::failed(const Message& message, SteadyPoint begin, std::uint64_t bytes) {
  errors_.add();
  end(message, begin, bytes);
}

Traffic::Traffic(std::shared_ptr<Registry> owner)
  : registry(std::move(owner)), control{registry->counter(family::connection_sent_bytes, {{"channel", "control"}}),
                                        registry->counter(family::connection_received_bytes, {{"channel", "control"}})},
    data{registry->counter(family::connection_sent_bytes, {{"channel", "data"}}),
         registry->counter(family::connection_received_bytes, {{"channel", "data"}})} {}

} // namespace deltawire::telemetry
