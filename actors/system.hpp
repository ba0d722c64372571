// The process's actor system: one, shared by every Publisher and Subscriber in it, made by the first and ended by the
// last.
#pragma once

#include "actors/caf.hpp"

#include <memory>

namespace deltawire::actors {

/// Thread-safe. The system must outlive every actor handle: who keeps handles keeps this, declared before them.
[[nodiscard]] std::shared_ptr<caf::actor_system> shared_system();

} // namespace deltawire::actors
