// Applier (worker): verifies and stages flushes, commits them into the bound memory by exchange, undoes if told so. On
// its own thread, because the engine's hooks run on it. Thin around sync::WorkerProtocol and delta::Stage. It outlives
// the connections to the root, with what the worker serves and with what is in doubt.
//
// A flush is decoded when it arrives, and its payload let go: what stays until the commit is the stage.
#pragma once

#include "actors/engine_loop.hpp"
#include "actors/interfaces.hpp"
#include "actors/port.hpp"
#include "delta/stage.hpp"
#include "deltawire/deltawire.hpp"
#include "sync/audit.hpp"
#include "sync/worker.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/trace.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <variant>

namespace deltawire::actors {

/// How a worker stands, for the facade. Thread-safe.
class Standing {
public:
  struct Facts {
    Version version = 0;
    std::uint64_t session = 0; ///< that counted it
    sync::WorkerState state = sync::WorkerState::empty;
  };
  void set(const Facts& facts) {
    const std::lock_guard lock(mutex_);
    facts_ = facts;
  }
  [[nodiscard]] Facts get() const {
    const std::lock_guard lock(mutex_);
    return facts_;
  }

private:
  mutable std::mutex mutex_;
  Facts facts_;
};

/// What a worker holds and how pieces find it. Built after the agreement; the next root's agreement replaces all but
/// parameters and names, on the Applier's thread.
struct WorkerWork {
  std::uint32_t worker = 0;
  std::vector<layout::Block> blocks;  ///< by id, ties repeat an id
  std::uint32_t block_ids = 0;        ///< ids are 0..block_ids
  std::vector<std::byte*> parameters; ///< bound memory, by parameter
  std::vector<std::string> names;     ///< by parameter
  std::vector<layout::SlotSpec> slots;
  std::vector<layout::Cell> cells;
  std::uint64_t stage_cap = 0;
  bool verify = true; ///< digests of what is staged and written are checked
  std::function<void()> on_pause;
  std::function<void(Version, std::span<const Change>)> on_commit;
  std::function<void(Version)> on_resume;
  std::shared_ptr<EngineLoop> engine; ///< asked in place of on_pause; null where the engine has hooks
  std::atomic<Version> version{0};    ///< served; read by the facade
  Standing standing;
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
  std::shared_ptr<Port> control; ///< null while there is no root
  caf::actor supervisor;
  std::string lane;
  std::shared_ptr<const wire::Agreement> next_agreement; ///< the next root's, as long as the last one's is in doubt
  sync::WorkerProtocol protocol;
  std::vector<std::uint32_t> first_bound; ///< by block id: first index into blocks; size ids + 1
  std::vector<std::uint32_t> copy_of;     ///< by bound block: index into copies of cells
  std::vector<CellCopy> cell_copies;
  std::vector<std::uint32_t> copies_by_cell; ///< indices into copies of cells, by cell
  std::vector<std::uint32_t> first_copy;     ///< by cell: first index into copies_by_cell; size cells + 1

  /// Which of many a delivery has touched: what it did not costs nothing. Allocates only when it is made.
  class Touched {
  public:
    Touched() = default;
    explicit Touched(std::size_t count) : marked_(count) { list_.reserve(count); }
    void add(std::uint32_t index) {
      if (marked_[index])
        return;
      marked_[index] = true;
      list_.push_back(index);
    }
    void clear() noexcept {
      for (const std::uint32_t index : list_)
        marked_[index] = false;
      list_.clear();
    }
    /// From here on list() ascends.
    void sort() { std::sort(list_.begin(), list_.end()); }
    [[nodiscard]] const std::vector<std::uint32_t>& list() const noexcept { return list_; }

  private:
    std::vector<bool> marked_;
    std::vector<std::uint32_t> list_; ///< in the order of their first add()
  };

  std::optional<delta::Stage> stage; ///< set from the start on; by bound block
  delta::Expander expander;          ///< of the piece that is being staged
  std::vector<delta::Digest> taken;  ///< by bound block: of what the exchange took out of memory; else zeros
  std::vector<delta::Digest> found;  ///< by bound block: of what was read back; else zeros
  std::vector<Change> changes;       ///< for on_commit; names have room for every parameter's

  // the running delivery
  std::optional<wire::Seal> manifest;
  bool suspect = false; ///< its digests came out wrong, and it is not undone yet: who knows what memory held
  std::vector<std::uint64_t> written; ///< elements, by parameter
  Touched staged;                     ///< bound blocks
  Touched changed;                    ///< copies of cells whose `change` may be other than 0
  Touched written_to;                 ///< parameters
  wire::Span staging, committing;
  std::int64_t paused_ns = 0;
  bool paused = false; ///< by on_pause, and neither on_commit nor on_resume came since
  /// Where the engine commits in its own loop: what is done once it does. A seed is then written, a delta exchanged.
  std::optional<std::variant<wire::Ready, wire::Commit>> asked;
  telemetry::HighWater high_water;
};

ApplierActor::behavior_type applier(ApplierActor::stateful_pointer<ApplierState> self, std::shared_ptr<WorkerWork> work,
                                    std::shared_ptr<Port> control, caf::actor supervisor);

/// Whether this thread is just now in an engine's hook: what waits for the hook to return must not be called there.
[[nodiscard]] bool called_by_hook() noexcept;

} // namespace deltawire::actors
