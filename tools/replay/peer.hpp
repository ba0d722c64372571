// Who takes part in a replay, as messages and events name them.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire::replay {

/// One trainer rank or one worker.
struct Peer {
  enum class Side : std::uint8_t { trainer, worker };

  Side side = Side::trainer;
  std::uint32_t index = 0; ///< rank, or global worker index

  friend bool operator==(const Peer&, const Peer&) = default;
};

/// "trainer rank 2", "worker 0".
[[nodiscard]] inline std::string to_string(const Peer& peer) {
  return (peer.side == Peer::Side::trainer ? "trainer rank " : "worker ") + std::to_string(peer.index);
}

} // namespace deltawire::replay
