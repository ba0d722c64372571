// Transfers between devices: one device, one stream on it, and at most one communicator among ranks at a time. What
// sync/stream_owner.hpp drives; nccl_communicator.hpp is the real one.
//
// Nothing here waits. What takes time says `under_way`, and poll() says when it is over; until then no other call but
// poll(), reached() and abort() is made. A failure of any call is the end of the communicator: what remains is abort(),
// and nothing is known of what was under way. Calls come from one thread. Spans are of device memory: they are never
// looked into.
#pragma once

#include "result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::transport {

/// What all ranks of a communicator are given to find each other. Whoever has it can join: it goes over the control
/// channel only.
using UniqueId = std::array<std::byte, 128>;

enum class Progress : std::uint8_t { done, under_way };

class Communicator {
public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual Result<UniqueId> make_id() = 0;

  /// Joins the communicator of `id`. It exists once poll() says done.
  [[nodiscard]] virtual Result<Progress> begin(const UniqueId& id, std::uint32_t ranks, std::uint32_t rank) = 0;

  /// Whether the last call that was under way is over; otherwise what has gone wrong since the last question.
  [[nodiscard]] virtual Result<Progress> poll() = 0;

  /// Transfers between the two happen together. Every group that has begun is ended, also when a transfer in it failed.
  [[nodiscard]] virtual Result<void> group_begin() = 0;
  [[nodiscard]] virtual Result<void> send(std::span<const std::byte> memory, std::uint32_t peer) = 0;
  [[nodiscard]] virtual Result<void> receive(std::span<std::byte> memory, std::uint32_t peer) = 0;
  [[nodiscard]] virtual Result<Progress> group_end() = 0;

  /// Marks the stream's work so far as that of a slot; a second time forgets the first.
  [[nodiscard]] virtual Result<void> record(std::uint32_t slot) = 0;
  [[nodiscard]] virtual Result<Progress> reached(std::uint32_t slot) = 0;

  /// Ends the communicator, and what it has on the stream, at once. quiet() says when nothing of it runs any more.
  virtual void abort() = 0;
  [[nodiscard]] virtual Result<Progress> quiet() = 0;

  /// Bytes of the device that nobody has taken.
  [[nodiscard]] virtual Result<std::uint64_t> free_memory() = 0;
};

} // namespace deltawire::transport
