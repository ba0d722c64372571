// What the facade and the supervisors share: tickets, the state of the session, and what a process was opened with.
#pragma once

#include "actors/engine_loop.hpp"
#include "actors/network.hpp"
#include "actors/port.hpp"
#include "actors/rank_work.hpp"
#include "config/topology.hpp"
#include "deltawire/deltawire.hpp"
#include "layout/side.hpp"
#include "sync/silence.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace deltawire::actors {

/// How long a goodbye may be behind the end of the data connection that it announces.
inline constexpr std::chrono::milliseconds goodbye_grace{500};

/// How often the supervisors look around.
inline constexpr std::chrono::milliseconds look_around{50};

/// How often a peer says that it is alive, so that within update.stall several of its words are due.
[[nodiscard]] inline std::chrono::nanoseconds heartbeat_interval(const config::Update& update) {
  return std::clamp<std::chrono::nanoseconds>(update.stall / 8, look_around, std::chrono::seconds(1));
}

/// A process of a running session says that it is alive, and tells when its peers fall silent: after update.stall and
/// what is due of heartbeats.
class LifeSigns {
public:
  explicit LifeSigns(const config::Update& update);

  /// Once each time around. True when a heartbeat is due: every peer is to be sent one.
  [[nodiscard]] bool tick(std::int64_t now);
  /// As sync::SilenceWatch::look().
  [[nodiscard]] sync::SilenceWatch::News look(std::uint64_t peer, const Port& control) {
    return watch_.look(peer, control.frames());
  }
  /// "nothing was heard of it for 20.0 s (update.stall)"
  [[nodiscard]] const std::string& silent_for() const noexcept { return silent_for_; }

private:
  std::int64_t interval_;
  std::int64_t last_beat_ = 0;
  sync::SilenceWatch watch_;
  std::string silent_for_;
};

/// What a peer waits beyond update.connect for the root's message, which names who is missing.
[[nodiscard]] inline std::chrono::nanoseconds connect_grace(const config::Update& update) {
  return std::min<std::chrono::nanoseconds>(std::chrono::seconds(5), update.connect / 4);
}

/// One publish(), or update in parts, under way. Thread-safe; each half is fulfilled once.
struct TicketPromise {
  /// Called with the report before anyone who waits gets it; gives the warnings that go with it. May be empty.
  std::function<std::vector<std::string>(const wire::DeliveryReport&)> observe;
  std::uint64_t version = 0;
  std::uint64_t step = 0;
  bool in_parts = false;
  std::int64_t published_ns = 0;
  std::shared_ptr<device::Event> after; ///< what the capture waits for on the rank's GPU; null: nothing

  void set_captured();
  void set_report(wire::DeliveryReport report);
  void wait_captured();
  [[nodiscard]] wire::DeliveryReport wait_report();
  /// Of the report; empty before.
  [[nodiscard]] std::vector<std::string> warnings();

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool captured_ = false;
  std::optional<wire::DeliveryReport> report_;
  std::vector<std::string> warnings_;
};

/// How the session stands, for calls that must fail at once. Thread-safe.
class SessionStatus {
public:
  void fail(const Failure& failure);
  void end();                    ///< the root said goodbye
  void part(const Failure& why); ///< the root is gone, a worker waits for the next one
  void meet();                   ///< which is there
  [[nodiscard]] std::optional<Failure> parted() const;
  [[nodiscard]] std::optional<Failure> failure() const;
  /// Until it ended or failed.
  void wait() const;
  [[nodiscard]] bool ended() const;

private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::optional<Failure> parted_;
  bool ended_ = false;
};

/// A tensor and where it is.
struct HeldTensor {
  layout::LocalTensor tensor;
  std::byte* data = nullptr; ///< trainer: only read
  std::optional<int> gpu{};  ///< whose memory it is (device::Identity::index); nothing: the host's
};

/// What a trainer rank was opened with; not changed after connect().
struct TrainerSetup {
  config::Topology topology;
  layout::Side side;
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint32_t workers = 1;
  std::uint32_t workers_per_replica = 1;
  std::string master;
  int listening_socket = -1;
  std::vector<HeldTensor> tensors;
  std::shared_ptr<Networks> networks;
  std::shared_ptr<SessionStatus> status;
  std::shared_ptr<telemetry::Recorder> recorder;
  std::shared_ptr<telemetry::Registry> metrics;
  std::shared_ptr<RankWork> work; ///< set by the agreement; the facade's rebind() reaches memory through it
};

/// What a worker was opened with; not changed after start().
struct WorkerSetup {
  config::Topology topology;
  layout::Side side;
  std::uint32_t worker = 0;
  std::uint32_t workers = 1;
  std::string master;
  std::vector<HeldTensor> tensors;
  std::function<void()> on_pause;
  std::function<void(Version, std::span<const Change>)> on_commit;
  std::function<void(Version)> on_resume;
  std::shared_ptr<EngineLoop> engine; ///< the engine commits in its own loop; null: by the hooks
  std::shared_ptr<Networks> networks;
  std::shared_ptr<SessionStatus> status;
  std::shared_ptr<telemetry::Recorder> recorder;
  std::shared_ptr<telemetry::Registry> metrics;
  std::vector<layout::SlotSpec> catalogue; ///< set when the root has sent it
  std::shared_ptr<struct WorkerWork> work; ///< set by the agreement
};

/// Answers a request of the facade, once; nothing when none is pending.
void answer(std::shared_ptr<Answer>& pending, Result<void> result);

/// Opens a connection to the root, trying until the deadline. The supervisor of `routes` gets a PortOpened, with the
/// port or with why there is none.
void connect_port(transport::Network& network, const std::string& master,
                  std::chrono::steady_clock::time_point deadline, const std::shared_ptr<Routes>& routes,
                  wire::Channel channel);

/// A number that differs from process to process and from start to start.
[[nodiscard]] std::uint64_t random_identity();

} // namespace deltawire::actors
