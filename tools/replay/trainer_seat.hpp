// One trainer rank of a run, on the caller's thread: holds its shards, publishes a version a checkpoint.
#pragma once

#include "events.hpp"
#include "inputs.hpp"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace deltawire::replay {

struct TrainerSeat {
  std::string topology;
  std::vector<std::string> overrides;
  std::uint32_t rank = 0;
  int listening_socket = -1; ///< root: taken over by the publisher; -1: none
  std::size_t parts = 0;     ///< of an update, at random, each rank its own; 0: all parameters in one call
  std::optional<std::uint32_t> metrics_index{}; ///< as the facade's
};

/// Returns when every worker holds and has proven this many versions; false when the run is given up meanwhile. The
/// next update waits for it, so that proofs and updates do not compete for the machine.
using Turns = std::function<bool(std::size_t versions)>;

/// Started by hand: nobody knows of the workers' proofs, and nobody waits.
[[nodiscard]] inline Turns at_once() {
  return [](std::size_t) { return true; };
}

/// Runs to the end of the session; stops at the first update that is not committed. The root tells of every update.
/// Fails as the facade does, and with the outcome's error.
[[nodiscard]] Result<void> run_trainer(const TrainerSeat& seat, const Sides& sides,
                                       std::span<const checkpoint::Checkpoint> files, const EventSink& sink,
                                       const Turns& turns);

} // namespace deltawire::replay
