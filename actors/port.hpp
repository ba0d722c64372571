// A port: one connection of this process with the frame header's rules on it, and the table that says which actor a
// frame is for. Thread-safe; callbacks of the transport only check, and pass on.
#pragma once

#include "actors/interfaces.hpp"

#include "telemetry/actor_meter.hpp"
#include "wire/encode.hpp"

#include <atomic>
#include <mutex>

namespace deltawire::actors {

/// Which actor gets which frames. Set while the actors are spawned, before the peers may send what they handle; cleared
/// before they stop, so that nothing holds on to a detached actor.
class Routes {
public:
  void set_supervisor(caf::actor actor);
  void set_gather(caf::actor actor);
  void set_delivery(caf::actor actor);
  void clear();

  /// What ports count their bytes in. Before the first port; none: they do not count.
  void set_traffic(std::shared_ptr<telemetry::Traffic> traffic) { traffic_ = std::move(traffic); }
  [[nodiscard]] telemetry::Traffic* traffic() const noexcept { return traffic_.get(); }

  /// gather messages, delivery messages (root: Sender, worker: Applier), all else the supervisor's.
  [[nodiscard]] caf::actor find(std::uint16_t frame_type) const;
  [[nodiscard]] caf::actor supervisor() const;

private:
  mutable std::mutex mutex_;
  caf::actor supervisor_;
  caf::actor gather_;
  caf::actor delivery_;
  std::shared_ptr<telemetry::Traffic> traffic_;
};

class Port : public std::enable_shared_from_this<Port> {
public:
  Port(std::shared_ptr<transport::Connection> connection, std::shared_ptr<Routes> routes)
    : connection_(std::move(connection)), routes_(std::move(routes)) {}

  /// Begins to receive. Once.
  void start();

  /// Who is at the other end; set once, when it has introduced itself.
  void identify(wire::Role role, std::uint32_t index, wire::Channel channel);
  [[nodiscard]] bool identified() const noexcept { return identified_.load(std::memory_order_acquire); }
  [[nodiscard]] wire::Role role() const noexcept { return role_; }
  [[nodiscard]] std::uint32_t index() const noexcept { return index_; }
  [[nodiscard]] wire::Channel channel() const noexcept { return channel_; }
  /// "rank 2 (127.0.0.1:41234)"
  [[nodiscard]] std::string name() const;
  /// A reason about this peer, which names it in front: once, however often it is said (sync/naming.hpp).
  [[nodiscard]] Failure naming(const Failure& reason) const;

  /// From now on frames of another session are refused, and ours carry it.
  void join_session(std::uint64_t session) noexcept { session_.store(session, std::memory_order_release); }
  [[nodiscard]] std::uint64_t session() const noexcept { return session_.load(std::memory_order_acquire); }

  /// Sends a control message; returns the bytes of the frame.
  template <class Message>
  std::uint64_t send(const Message& message, std::uint64_t delivery = 0) {
    return send_encoded(Message::type, std::make_shared<const Bytes>(wire::encode(message)), delivery);
  }

  /// The same with a message that is encoded already, maybe for several peers.
  std::uint64_t send_encoded(std::uint16_t type, std::shared_ptr<const Bytes> payload, std::uint64_t delivery = 0);

  /// Sends a data frame; `header.session` and the checksums are filled in.
  std::uint64_t send_data(wire::FrameHeader header, std::shared_ptr<const Bytes> payload,
                          transport::SendDone done = {});

  /// The same with a header that describes the payload already, maybe for several peers.
  std::uint64_t send_described(wire::FrameHeader header, std::shared_ptr<const Bytes> payload,
                               transport::SendDone done = {});

  /// Frames received so far: a sign of life of the peer's process.
  [[nodiscard]] std::uint64_t frames() const noexcept { return frames_.load(std::memory_order_relaxed); }

  void close();
  void abort(const Failure& reason) { connection_->abort(reason); }

private:
  void on_frame(transport::Incoming&& incoming);
  [[nodiscard]] telemetry::Traffic::Channel* traffic() const noexcept;

  std::shared_ptr<transport::Connection> connection_;
  std::shared_ptr<Routes> routes_;
  std::atomic<bool> identified_{false};
  wire::Role role_ = wire::Role::rank;
  std::uint32_t index_ = 0;
  wire::Channel channel_ = wire::Channel::control;
  std::atomic<std::uint64_t> session_{0};
  std::atomic<std::uint64_t> frames_{0};
};

/// Decodes a control frame for its handler: a frame that does not decode becomes a failure that names the peer.
template <class Message>
[[nodiscard]] Result<Message> decode(const FrameArrived& frame) {
  auto message = wire::decode<Message>(*frame.body);
  if (!message)
    return tl::make_unexpected(frame.port->naming(message.error()));
  return message;
}

} // namespace deltawire::actors
