// The process's actor system: one, shared by every Publisher and Subscriber in it, made by the first and ended by the
// last.
#pragma once

#include "actors/caf.hpp"

#include <memory>
#include <utility>

namespace deltawire::actors {

/// Thread-safe. The system must outlive every actor handle: who keeps handles keeps this, declared before them.
[[nodiscard]] std::shared_ptr<caf::actor_system> shared_system();

/// Lets the calling thread, one of the user's, go of the system: CAF ties the logger of a system to each thread that
/// makes it or spawns in it, and the system's end waits until no thread has it, for ever where another thread lives on.
void leave_system();

/// Spawns from a thread of the user's.
template <class Function, class... Arguments>
[[nodiscard]] auto spawn_from_outside(caf::actor_system& system, Function function, Arguments&&... arguments) {
  auto actor = system.spawn(function, std::forward<Arguments>(arguments)...);
  leave_system();
  return actor;
}

} // namespace deltawire::actors
