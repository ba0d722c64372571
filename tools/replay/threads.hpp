// All peers in this process, each on a thread of its own, over the in-process transport.
#pragma once

#include "inputs.hpp"
#include "progress.hpp"
#include "record.hpp"
#include "trainer_seat.hpp"
#include "worker_seat.hpp"

namespace deltawire::replay {

/// Everybody who takes part.
struct Seats {
  std::vector<TrainerSeat> trainers; ///< by rank
  std::vector<WorkerSeat> workers;   ///< by index
};

/// Runs all seats to their ends. Returns false where some peers hung for long after one had failed: their threads still
/// run, so that the caller must leave the process without tear-down (the record is complete by then). `seats`, `sides`
/// and `files` are shared with those threads.
[[nodiscard]] bool run_in_threads(std::shared_ptr<const Seats> seats, std::shared_ptr<const Sides> sides,
                                  std::shared_ptr<const std::vector<checkpoint::Checkpoint>> files,
                                  const std::shared_ptr<Record>& record, Progress& progress);

} // namespace deltawire::replay
