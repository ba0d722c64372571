#include "actors/system.hpp"

#include "actors/interfaces.hpp"

#include <caf/logger.hpp>

#include <algorithm>
#include <mutex>
#include <thread>

namespace deltawire::actors {
namespace {

/// The configuration must outlive the system: CAF keeps a reference.
struct System {
  caf::actor_system_config config;
  caf::actor_system system;

  static caf::actor_system_config& configure(caf::actor_system_config& config) {
    config.add_message_types<caf::id_block::deltawire_messages>();
    // "sharing" wakes a worker at once; the default policy lets idle workers sleep up to 10 ms.
    config.set("scheduler.policy", caf::atom("sharing"));
    config.set("scheduler.max-threads", std::max<std::size_t>(2, std::thread::hardware_concurrency()));
    config.set("scheduler.max-throughput", std::size_t{64});
    return config;
  }

  System() : system(configure(config)) {}
};

} // namespace

std::shared_ptr<caf::actor_system> shared_system() {
  static std::mutex mutex;
  static std::weak_ptr<System> shared;
  const std::lock_guard lock(mutex);
  std::shared_ptr<System> system = shared.lock();
  if (!system) {
    system = std::make_shared<System>();
    leave_system();
    shared = system;
  }
  return {system, &system->system};
}

void leave_system() {
  caf::logger::set_current_actor_system(nullptr);
}

} // namespace deltawire::actors
