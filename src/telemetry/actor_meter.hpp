// What is measured of one actor while it handles messages: how many of each kind and for how long, bytes that came with
// them, how many wait, what its credit covers, how long it is blocked; and a lane of the trace. Handling takes two
// looks at the clock and a few atomic operations. actors/metered.hpp wraps an actor's handlers around it.
//
// One actor's thread at a time calls it; its metrics may be read from anywhere. Nothing here knows of actors.
#pragma once

#include "telemetry/metrics.hpp"
#include "telemetry/trace.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::telemetry {

class ActorMeter {
public:
  /// One kind of message.
  struct Message {
    std::string kind;
    Counter& handled;
    Histogram& seconds;
    Counter& bytes;
  };

  /// `actor` is the label, and the last part of the lane: "gather queue" of rank 2 has the lane "rank 2: gather queue".
  /// With `trace_messages` every handled message is a span of the lane, for actors that record no spans of their own.
  ActorMeter(std::shared_ptr<Registry> registry, std::shared_ptr<Recorder> recorder, std::string owner,
             std::string actor, bool trace_messages = false);
  ActorMeter(const ActorMeter&) = delete;
  ActorMeter& operator=(const ActorMeter&) = delete;
  /// The actor has ended.
  ~ActorMeter();

  /// Follows a count of bytes that this actor changes: sampled after each message, as metrics under `actor` and as a
  /// counter of the trace, until unfollow(), which must come before the count goes. A cap of 0 is none.
  void follow(const HighWater& held, const std::string& actor, std::uint64_t cap);
  void unfollow() noexcept {
    followed_.clear();
    blocked_when_ = nullptr;
  }

  /// `blocked` tells whether the actor has work that waits for byte credit; asked after each message, on its thread,
  /// until unfollow(). While it has and handles no message, time counts as blocked.
  void block_when(std::function<bool()> blocked);

  /// A capture of this rank is complete and found so many elements changed.
  void captured(std::uint64_t changed);

  /// The metrics of a kind of message. Valid for the life of this.
  [[nodiscard]] Message message(std::string_view kind);

  using SteadyPoint = std::chrono::steady_clock::time_point;

  /// A message is about to be handled, `waiting` more are in the mailbox.
  [[nodiscard]] SteadyPoint begin(std::size_t waiting) noexcept;
  /// It was.
  void end(const Message& message, SteadyPoint begin, std::uint64_t bytes);
  /// Its handler threw.
  void failed(const Message& message, SteadyPoint begin, std::uint64_t bytes);

private:
  void look_whether_blocked(SteadyPoint begin, SteadyPoint end);

  struct Followed {
    const HighWater* held = nullptr;
    Gauge& now;
    Gauge& peak;
    std::string name;
    std::uint64_t last = 0;
  };

  std::shared_ptr<Registry> registry_;
  std::shared_ptr<Recorder> recorder_;
  const std::string actor_;
  const std::string owner_;
  const std::string lane_;
  const bool trace_messages_;
  Gauge& running_;
  Stopwatch& busy_;
  Stopwatch* blocked_ = nullptr; ///< null: never asked
  Counter& errors_;
  Gauge& mailbox_;
  Gauge& mailbox_peak_;
  std::vector<Followed> followed_;
  std::function<bool()> blocked_when_;
  std::optional<TimePoint> blocked_since_; ///< messages may have come meanwhile
};

/// Bytes that went over connections, by channel: "control", "data".
struct Traffic {
  struct Channel {
    Counter& sent;
    Counter& received;
  };
  explicit Traffic(std::shared_ptr<Registry> registry);

  std::shared_ptr<Registry> registry; ///< keeps what is below
  Channel control, data;
};

} // namespace deltawire::telemetry
