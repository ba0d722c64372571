// Where the Applier and an engine that commits in its own loop meet. The engine's thread waits in commit() while the
// Applier does the work on memory: one thread writes it, and undo, the root's loss and tear-down come to that thread as
// messages whatever the engine does.
#pragma once

#include "deltawire/deltawire.hpp"
#include "sync/engine_turn.hpp"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

namespace deltawire::actors {

/// Thread-safe.
class EngineLoop {
public:
  /// The Applier: a version waits for the engine.
  void offer(Version version);
  /// The Applier: it is served. Commit returns `changes`.
  void served(std::vector<Change> changes);
  /// It will not be served: an offer is withdrawn, a commit fails. Nothing where none waits.
  void failed(const Failure& why);

  /// The engine has let go of memory, and waits.
  [[nodiscard]] bool committing();

  /// The engine, never waiting.
  [[nodiscard]] std::optional<Version> poll();
  /// The engine: from here on to the end of wait() the Applier may write memory.
  [[nodiscard]] Result<void> commit(Version version);
  /// Until the commit has come to its end.
  [[nodiscard]] Result<std::vector<Change>> wait();

private:
  std::mutex mutex_;
  std::condition_variable ended_;
  sync::EngineTurn turn_;
  Result<std::vector<Change>> end_; ///< of the last commit
};

} // namespace deltawire::actors
