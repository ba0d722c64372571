// What the actor tests share: an actor system with CAF's deterministic scheduler, probes that stand in for colleagues
// and log what they are told, and connections of which the test is the other end.
//
// Nothing runs but in run(): a test sends, runs, and looks at the log. CAF's own test macros do not live together with
// Catch2, hence this fixture.
#pragma once

#include "actors/applier.hpp"
#include "actors/gather_queue.hpp"
#include "actors/interfaces.hpp"
#include "actors/port.hpp"
#include "delta/digest.hpp"
#include "wire/framing.hpp"

#include <caf/scheduler/test_coordinator.hpp>

#include <any>
#include <chrono>
#include <string>
#include <vector>

namespace deltawire::test {

/// Every message that a probe got, in order.
class Log {
public:
  template <class Message>
  void add(const Message& message) {
    entries_.emplace_back(message);
  }

  template <class Message>
  [[nodiscard]] std::vector<Message> all() const {
    std::vector<Message> found;
    for (const std::any& entry : entries_)
      if (const auto* message = std::any_cast<Message>(&entry))
        found.push_back(*message);
    return found;
  }

  template <class Message>
  [[nodiscard]] std::size_t count() const {
    return all<Message>().size();
  }

  /// What was logged after the last call of this.
  [[nodiscard]] Log take() { return std::exchange(*this, Log{}); }

private:
  std::vector<std::any> entries_;
};

/// Declared first in a test: outlives every handle.
class TestSystem {
public:
  TestSystem();
  ~TestSystem();
  TestSystem(const TestSystem&) = delete;
  TestSystem& operator=(const TestSystem&) = delete;

  /// Spawns an actor that ends with the system.
  template <class... Arguments>
  auto spawn(Arguments&&... arguments) {
    auto handle = system_.spawn(std::forward<Arguments>(arguments)...);
    spawned_.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }

  template <class Handle, class Message>
  void send(const Handle& to, Message message) {
    caf::anon_send(to, std::move(message));
    run();
  }

  /// Handles messages until there are none.
  void run() { scheduler_->run(); }
  /// Lets this much time pass for delayed messages, and runs.
  void advance(std::chrono::nanoseconds time);

private:
  caf::actor_system_config config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator* scheduler_;
  std::vector<caf::actor> spawned_;
};

/// Probes in place of all colleagues; a test replaces those that it tests. `log` must outlive the system.
[[nodiscard]] std::shared_ptr<actors::Colleagues> probes(TestSystem& system, Log& log);

/// A probe of FailureReport for who takes an untyped supervisor.
[[nodiscard]] caf::actor failure_probe(TestSystem& system, Log& log);

/// A connection: the actor under test holds `port()`, the test is the peer.
class Peer {
public:
  struct Frame {
    wire::FrameHeader header;
    actors::Bytes body;
  };

  Peer(std::shared_ptr<actors::Routes> routes, wire::Role role, std::uint32_t index, wire::Channel channel);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] const std::shared_ptr<actors::Port>& port() const { return port_; }

  template <class Message>
  void say(const Message& message) {
    wire::FrameHeader header;
    header.type = Message::type;
    say_data(header, wire::encode(message));
  }
  /// `corrupt`: flips a bit of the payload behind its checksum.
  void say_data(wire::FrameHeader header, actors::Bytes payload, bool corrupt = false);

  /// The control messages of this type that came in, and are now forgotten.
  template <class Message>
  [[nodiscard]] std::vector<Message> heard() {
    std::vector<Message> messages;
    for (const Frame& frame : take(Message::type))
      messages.push_back(wire::decode<Message>(frame.body).value());
    return messages;
  }
  [[nodiscard]] std::vector<Frame> take(std::uint16_t type);
  [[nodiscard]] const std::vector<Frame>& frames() const { return frames_; }

private:
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<transport::Listener> listener_;
  std::shared_ptr<transport::Connection> far_;
  std::shared_ptr<actors::Port> port_;
  std::vector<Frame> frames_;
};

/// A block of `count` elements, contiguous on both sides.
[[nodiscard]] layout::Block flat_block(std::uint32_t id, DType dtype, std::int64_t count, std::int64_t local_offset = 0,
                                       std::int64_t local_stride = 1);

/// Digest of 16-bit values at slot positions 0...
[[nodiscard]] delta::Digest digest_of(const std::vector<std::uint16_t>& values);

/// A piece with all values, or with those at `positions`.
[[nodiscard]] actors::Bytes seed_piece(const layout::Block& block, const std::vector<std::uint16_t>& values);
[[nodiscard]] actors::Bytes delta_piece(const layout::Block& block, const std::vector<std::uint16_t>& positions,
                                        const std::vector<std::uint16_t>& values);

} // namespace deltawire::test
