// Applier (worker): verifies and stages flushes, commits them into the bound memory by exchange, undoes if told so. On
// its own thread, because the engine's hooks run on it. Thin around sync::WorkerProtocol and delta::Stage.
//
// A flush is decoded when it arrives, and its payload let go: what stays until the commit is the stage.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/port.hpp"
#include "delta/stage.hpp"
#include "deltawire/deltawire.hpp"
#include "sync/worker.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/trace.hpp"

#include <atomic>
#include <functional>
#include <optional>

namespace deltawire::actors {

/// What a worker holds and how pieces find it. Built once after the agreement.
struct WorkerWork {
  std::uint32_t worker = 0;
  std::vector<layout::Block> blocks;  ///< by id, ties repeat an id
  std::uint32_t block_ids = 0;        ///< ids are 0..block_ids
  std::vector<std::byte*> parameters; ///< bound memory, by parameter
  std::vector<std::string> names;     ///< by parameter
  std::vector<layout::SlotSpec> slots;
  std::vector<layout::Cell> cells;
  std::uint64_t stage_cap = 0;
  std::function<void()> on_pause;
  std::function<void(Version, std::span<const Change>)> on_commit;
  std::atomic<Version> version{0}; ///< served; read by the facade
  std::shared_ptr<telemetry::Recorder> recorder;
  std::shared_ptr<telemetry::Registry> metrics; ///< none: nothing is measured
};

struct ApplierState {
  /// A worker parameter's copy of a cell: its digest is checked on its own, so that tied copies cannot vouch for each
  /// other.
  struct CellCopy {
    std::uint32_t cell = 0;
    std::uint32_t parameter = 0;
    delta::Digest digest = 0; ///< of the version that is served
    delta::Digest change = 0; ///< what the stage would change, or has changed
  };
  std::shared_ptr<WorkerWork> work;
  std::shared_ptr<Port> control;
  caf::actor supervisor;
  std::string lane;
  sync::WorkerProtocol protocol;
  std::vector<std::uint32_t> first_bound; ///< by block id: first index into blocks; size ids + 1
  std::vector<std::uint32_t> copy_of;     ///< by bound block: index into copies of cells
  std::vector<CellCopy> cell_copies;

  std::optional<delta::Stage> stage; ///< set from the start on; by bound block
  std::vector<delta::Digest> taken;  ///< by bound block: of what the exchange took out of memory
  std::vector<delta::Digest> found;  ///< by bound block: of what was read back
  std::vector<Change> changes;       ///< for on_commit; names have room for every parameter's

  // the running delivery
  std::optional<wire::Seal> manifest;
  std::vector<std::uint64_t> written; ///< elements, by parameter
  wire::Span staging, committing;
  std::int64_t paused_ns = 0;
  telemetry::HighWater high_water;
};

ApplierActor::behavior_type applier(ApplierActor::stateful_pointer<ApplierState> self, std::shared_ptr<WorkerWork> work,
                                    std::shared_ptr<Port> control, caf::actor supervisor);

} // namespace deltawire::actors
