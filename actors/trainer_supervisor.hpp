// Supervisor of a trainer rank: meets everyone, agrees, spawns and watches the actors, sequences deliveries, and turns
// any failure into a named outcome. Rank 0 is the root: it listens, and everyone else connects to it.
#pragma once

#include "actors/gather_queue.hpp"
#include "actors/session.hpp"
#include "sync/agreement.hpp"
#include "sync/refusals.hpp"

#include <chrono>
#include <deque>
#include <map>

namespace deltawire::actors {

struct TrainerSupervisorState {
  enum class Phase : std::uint8_t { idle, connecting, running, failed, closing };

  std::shared_ptr<TrainerSetup> setup;
  Phase phase = Phase::idle;
  std::shared_ptr<Routes> routes;
  std::uint64_t session = 0;
  std::uint64_t incarnation = 0;
  std::shared_ptr<Answer> connect_answer;
  std::shared_ptr<Answer> close_answer;
  std::chrono::steady_clock::time_point connect_deadline;
  sync::Refusals refused;          ///< for the message when someone is missing
  layout::Declaration declaration; ///< this rank's

  // connections
  std::unique_ptr<transport::Listener> tcp_listener, inproc_listener, shm_listener;
  std::vector<std::shared_ptr<Port>> open; ///< every port that has not closed
  GatherPorts ranks;                       ///< root: by rank; others: [0] leads to the root
  std::vector<std::shared_ptr<Port>> worker_control, worker_data;
  std::unique_ptr<sync::AgreementRoot> agreement; ///< root
  std::optional<std::vector<layout::SlotSpec>> catalogue;
  std::uint32_t welcomes = 0;
  bool call_again = false; ///< rank: whoever answered has hung up

  // workers that come, or come back, while the session runs (root)
  struct Agreed {
    std::uint64_t declaration = 0; ///< checksum of what the worker declared
    std::shared_ptr<const Bytes> agreement;
  };
  std::vector<Agreed> agreed; ///< by worker
  struct Joining {
    std::uint64_t incarnation = 0;
    std::shared_ptr<Port> control, data;
  };
  std::map<std::uint32_t, Joining> joining; ///< by worker

  // running
  std::shared_ptr<const Colleagues> colleagues;
  std::size_t children = 0;
  std::map<std::uint64_t, std::shared_ptr<TicketPromise>> tickets; ///< by version, until reported
  std::map<std::uint64_t, std::shared_ptr<TicketPromise>>
    capturing;                                         ///< by version, until captured: may outlast a report
  std::map<std::uint64_t, wire::DeliveryReport> early; ///< by version: over before this rank's publish() was called
  std::deque<std::shared_ptr<TicketPromise>> queued;   ///< not handed to the Snapshotter yet
  std::shared_ptr<TicketPromise> audit;                ///< that this rank has called for, until reported
  std::uint64_t captures_started = 0;
  std::uint64_t deliveries_over = 0;
  std::uint64_t delivering = 0;    ///< root: version, 0 = none
  std::optional<Failure> departed; ///< root: a rank said goodbye; fatal for the next update
  std::optional<Failure> fatal;    ///< root: the session ends when the delivery under way is over
  wire::NextUpdate next;           ///< what is planned for the update after deliveries_over
  std::uint64_t abandoned = 0;     ///< root: a rank folds this version into the next; rank: it has asked for that
  std::map<std::uint64_t, Failure> aborted; ///< root: by version, which rank has left it half done
  std::optional<LifeSigns> life;            ///< while the session runs
};

TrainerSupervisorActor::behavior_type
trainer_supervisor(TrainerSupervisorActor::stateful_pointer<TrainerSupervisorState> self,
                   std::shared_ptr<TrainerSetup> setup);

} // namespace deltawire::actors
