// How a trainer or worker process is tied to the replay that started it.
#pragma once

#include "events.hpp"
#include "exit_status.hpp"
#include "message.hpp"
#include "processes.hpp"

#include <optional>

namespace deltawire::replay {

/// Defaults: started by hand.
struct ChildTies {
  int events_descriptor = -1; ///< events go here, and nothing to the standard streams; -1: none
  int parent = 0;             ///< process id; the child dies with it; 0: none

  [[nodiscard]] bool is_child() const noexcept { return events_descriptor >= 0; }
};

/// Runs `work(sink)`, which returns a Result<void>, as the peer that is given: tells the parent, or by hand passes
/// events to `by_hand`, how it went. The exit status follows from the result.
template <class Work>
[[nodiscard]] ExitStatus run_as(const Peer& peer, const ChildTies& ties, const EventSink& by_hand, Work&& work) {
  if (ties.parent != 0 && !die_with_parent(ties.parent))
    return ExitStatus::internal;
  std::optional<Pulse> pulse;
  if (ties.is_child())
    pulse.emplace(ties.events_descriptor);
  const EventSink sink = ties.is_child() ? line_sink(ties.events_descriptor) : by_hand;
  const Result<void> result = catching([&] { return work(sink); });
  if (ties.is_child())
    sink(PeerEnded{peer, result ? std::nullopt : std::optional<Failure>(result.error())});
  else if (!result)
    print_error({result.error().code, to_string(peer) + ": " + result.error().message});
  return result ? ExitStatus::verified : exit_status(result.error().code);
}

} // namespace deltawire::replay
