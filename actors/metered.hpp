// Wraps the handlers of an actor so that each message is counted and timed (src/telemetry/actor_meter.hpp):
//
//   return Metered{self, std::move(meter), [self](const Tick&) {...}, ...};
//
// instead of `return {...};`. The handlers keep their signatures. Without a meter they are used as they are.
#pragma once

#include "actors/interfaces.hpp"
#include "telemetry/actor_meter.hpp"

#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace deltawire::actors {

/// Bytes that a message brings along.
template <class Message>
std::uint64_t payload_bytes(const Message&) noexcept {
  return 0;
}
inline std::uint64_t payload_bytes(const FrameArrived& frame) noexcept {
  return frame.body->size();
}
inline std::uint64_t payload_bytes(const ChunkEncoded& encoded) noexcept {
  return encoded.chunk->bytes.size();
}
inline std::uint64_t payload_bytes(const RoundGathered& round) noexcept {
  return round.pieces->size();
}
inline std::uint64_t payload_bytes(const FlushSealed& flush) noexcept {
  std::uint64_t bytes = 0;
  for (const FlushSealed::Part& part : flush.parts)
    bytes += part.payload->size();
  return bytes;
}

/// "FrameArrived": the name of the message's type.
template <class Message>
std::string_view message_kind() {
  const std::string_view name = caf::type_name_by_id<caf::type_id<Message>::value>::value;
  return name.substr(name.rfind(':') + 1);
}

/// The meter of an actor of a rank or worker; none where nothing is measured. `Work`: RankWork or WorkerWork.
template <class Work>
std::shared_ptr<telemetry::ActorMeter> meter_of(const Work& work, std::string actor, bool trace_messages = false) {
  if (!work.metrics)
    return nullptr;
  std::string owner;
  if constexpr (requires { work.rank; })
    owner = fmt::format("rank {}", work.rank);
  else
    owner = fmt::format("worker {}", work.worker);
  return std::make_shared<telemetry::ActorMeter>(work.metrics, work.recorder, std::move(owner), std::move(actor),
                                                 trace_messages);
}

/// The same, following a count of bytes up to a cap.
template <class Work>
std::shared_ptr<telemetry::ActorMeter> meter_of(const Work& work, std::string actor, bool trace_messages,
                                                const telemetry::HighWater& held, const std::string& whose,
                                                std::uint64_t cap) {
  auto meter = meter_of(work, std::move(actor), trace_messages);
  if (meter)
    meter->follow(held, whose, cap);
  return meter;
}

/// A cap, or several of it, as a meter takes it: 0 where it is unlimited.
inline std::uint64_t cap_of(std::uint64_t cap, std::uint64_t times = 1) {
  return cap > std::numeric_limits<std::uint64_t>::max() / (2 * times) ? 0 : cap * times;
}

template <class Self, class Handler, class Signature = decltype(&Handler::operator())>
class MeteredHandler;

template <class Self, class Handler, class Answer, class Argument>
class MeteredHandler<Self, Handler, Answer (Handler::*)(Argument) const> {
  using Message = std::remove_cvref_t<Argument>;

public:
  MeteredHandler(Self self, std::shared_ptr<telemetry::ActorMeter> meter, Handler handler)
    : self_(self), meter_(std::move(meter)), message_(meter_->message(message_kind<Message>())),
      handler_(std::move(handler)) {}

  Answer operator()(Argument argument) const {
    const std::uint64_t bytes = payload_bytes(argument); // the handler may move it away
    const auto begin = meter_->begin(self_->mailbox().size());
    if constexpr (std::is_same_v<Message, Stop>)
      meter_->unfollow(); // counts go with the actor's state
    if constexpr (std::is_same_v<Message, CaptureReported>)
      meter_->captured(argument.report.changed);
    try {
      if constexpr (std::is_void_v<Answer>) {
        handler_(argument);
        meter_->end(message_, begin, bytes);
      } else {
        Answer answer = handler_(argument);
        meter_->end(message_, begin, bytes);
        return answer;
      }
    } catch (...) {
      meter_->failed(message_, begin, bytes);
      throw; // CAF ends the actor; its supervisor is told why
    }
  }

private:
  Self self_;
  std::shared_ptr<telemetry::ActorMeter> meter_;
  telemetry::ActorMeter::Message message_;
  Handler handler_;
};

/// Becomes the behavior of `self`, an actor's pointer to itself.
template <class Self, class... Handlers>
class Metered {
public:
  using Behavior = typename std::remove_pointer_t<Self>::behavior_type;

  Metered(Self self, std::shared_ptr<telemetry::ActorMeter> meter, Handlers... handlers)
    : self_(self), meter_(std::move(meter)), handlers_(std::move(handlers)...) {}

  operator Behavior() && { // NOLINT(google-explicit-constructor): stands where a behavior is returned
    return std::apply(
      [this](auto&... handlers) -> Behavior {
        if (!meter_)
          return {std::move(handlers)...};
        return {MeteredHandler<Self, Handlers>(self_, meter_, std::move(handlers))...};
      },
      handlers_);
  }

private:
  Self self_;
  std::shared_ptr<telemetry::ActorMeter> meter_;
  std::tuple<Handlers...> handlers_;
};

} // namespace deltawire::actors
