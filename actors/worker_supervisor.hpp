// Supervisor of a worker: meets the root, hands the catalogue to the facade, agrees, spawns and watches the Applier.
#pragma once

#include "actors/applier.hpp"
#include "actors/session.hpp"

#include <chrono>

namespace deltawire::actors {

struct WorkerSupervisorState {
  enum class Phase : std::uint8_t { idle, meeting, met, agreeing, running, over, closing };

  std::shared_ptr<WorkerSetup> setup;
  Phase phase = Phase::idle;
  std::shared_ptr<Routes> routes;
  std::uint64_t session = 0;
  std::uint64_t incarnation = 0;
  std::shared_ptr<Answer> connect_answer; ///< of the request under way: catalogue first, agreement second
  std::shared_ptr<Answer> close_answer;
  std::chrono::steady_clock::time_point deadline;
  std::vector<std::shared_ptr<Port>> open;
  std::shared_ptr<Port> control;
  std::uint32_t welcomes = 0;
  layout::Declaration declaration;
  ApplierActor applier;
  std::size_t children = 0;
  std::optional<LifeSigns> life; ///< while the session runs
};

WorkerSupervisorActor::behavior_type
worker_supervisor(WorkerSupervisorActor::stateful_pointer<WorkerSupervisorState> self,
                  std::shared_ptr<WorkerSetup> setup);

} // namespace deltawire::actors
