// What is known of a run: the events of all peers, and the verdict that follows from them. Thread-safe.
#pragma once

#include "events.hpp"

#include <mutex>
#include <vector>

namespace deltawire::replay {

class Record {
public:
  /// `versions` checkpoints are replayed to `workers` workers, who check `digests` unless update.verify is "off".
  Record(std::size_t versions, std::uint32_t workers, bool digests = true);

  void note(const Event& event);

  /// A peer's process ended and did not say why; `how` e.g. "was killed by signal 9 (Killed)".
  void note_death(const Peer& peer, const std::string& how);

  /// A worker's process stands still, or goes on: while it does, nobody waits for what it holds.
  void note_silence(std::uint32_t worker, bool silent);

  /// The run goes on to no more updates: one was not committed, a trainer has failed, or a worker could not start.
  /// Without a worker that fails later, the others are served.
  [[nodiscard]] bool failed() const;

  /// Updates that have ended and whose version every worker that it reached holds, with or without proof.
  [[nodiscard]] std::size_t versions_held() const;
  [[nodiscard]] std::size_t versions() const noexcept { return versions_; }

  /// The trainer's session that workers took versions from; 0: none did.
  [[nodiscard]] std::uint64_t session() const;

  /// Updates that ended, in order. Complete once all peers have ended.
  [[nodiscard]] std::vector<Outcome> updates() const;

  /// The verdict once all peers have ended; nothing when every version was proven on every worker, digests included.
  /// Otherwise the first cause: bits that differ, then a peer that died, then a failure that is not about a peer, then
  /// whatever came first, then a version that did not reach a worker. Failures that follow from another's death must
  /// not hide it.
  [[nodiscard]] std::optional<Failure> cause() const;

private:
  void note_end(const Peer& peer, bool ends_run);
  [[nodiscard]] std::optional<Failure> missed() const;
  [[nodiscard]] std::optional<Failure> unproven() const;

  const std::size_t versions_;
  const bool digests_;
  mutable std::mutex mutex_;
  std::vector<Outcome> updates_;
  std::uint64_t session_ = 0;
  struct Worker {
    Version held = 0;       ///< the last version it holds
    std::size_t proven = 0; ///< versions that were proven
    bool silent = false;    ///< it stands still
    bool gone = false;      ///< its process or thread has ended
  };
  std::vector<Worker> workers_;
  std::optional<Failure> difference_;
  std::optional<Failure> death_;
  std::vector<Failure> failures_; ///< as they came
  bool failed_ = false;
};

} // namespace deltawire::replay
