// Supervisor of a worker: meets the root, hands the catalogue to the facade, agrees, spawns and watches the Applier.
// When the root is gone it closes what is left of its connections, and tries again and again to meet the next one, as
// long as update.reconnect says; the Applier and what it holds stay.
#pragma once

#include "actors/applier.hpp"
#include "actors/session.hpp"

#include <chrono>

namespace deltawire::actors {

struct WorkerSupervisorState {
  enum class Phase : std::uint8_t { idle, meeting, met, agreeing, running, waiting, over, closing };

  std::shared_ptr<WorkerSetup> setup;
  Phase phase = Phase::idle;
  std::shared_ptr<Routes> routes;
  std::uint64_t session = 0;
  std::uint64_t incarnation = 0;
  std::shared_ptr<Answer> connect_answer; ///< of the request under way: catalogue first, agreement second
  std::shared_ptr<Answer> close_answer;
  std::chrono::steady_clock::time_point deadline;
  std::vector<std::shared_ptr<Port>> open;
  std::shared_ptr<Port> control, data;
  bool consented = false; ///< to the root's agreement
  std::uint32_t welcomes = 0;
  layout::Declaration declaration;
  ApplierActor applier;
  std::size_t children = 0;
  std::optional<LifeSigns> life; ///< while the session runs

  // while no root is there
  std::optional<Failure> hung_up;                      ///< before the first one: how the last attempt ended
  std::optional<Failure> parted;                       ///< why the last root is gone; none while one is there
  std::chrono::steady_clock::time_point patience_ends; ///< no root by then: the worker fails
  std::chrono::steady_clock::time_point next_attempt;  ///< while waiting: when to try again, if nothing is open
  std::chrono::milliseconds pause{0};                  ///< before that, doubled by each attempt
  std::uint32_t opening = 0;                           ///< connections on their way
};

WorkerSupervisorActor::behavior_type
worker_supervisor(WorkerSupervisorActor::stateful_pointer<WorkerSupervisorState> self,
                  std::shared_ptr<WorkerSetup> setup);

} // namespace deltawire::actors
