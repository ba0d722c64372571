// What happens during a run, as the peers tell it: by a call within one process, by a line of JSON from a child process
// to its parent.
#pragma once

#include "deltawire/deltawire.hpp"
#include "peer.hpp"
#include "result.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace deltawire::replay {

/// The root: an update has ended, well or not.
struct UpdateEnded {
  Outcome outcome;
};

/// A worker: its replica holds a new version.
struct VersionHeld {
  enum class Proof : std::uint8_t { none, equal, different };

  std::uint32_t worker = 0;
  Version version = 0;
  std::uint64_t tensors = 0;  ///< parameters that changed
  std::uint64_t elements = 0; ///< elements written in this worker's shards
  std::uint64_t session = 0;  ///< the trainer's, which counted the version
  Proof proof = Proof::none;  ///< its memory against the checkpoint; none: it was given no checkpoints
  std::string difference;     ///< which tensor and element differ, when different
};

/// The last that is heard of a peer.
struct PeerEnded {
  Peer peer;
  std::optional<Failure> failure;
};

using Event = std::variant<UpdateEnded, VersionHeld, PeerEnded>;

/// Called from any thread.
using EventSink = std::function<void(const Event&)>;

/// One line, without its end. Text that is not UTF-8 is made so.
[[nodiscard]] std::string to_line(const Event& event);

/// The event of a line; Code::internal for anything else.
[[nodiscard]] Result<Event> event_from_line(std::string_view line);

} // namespace deltawire::replay
