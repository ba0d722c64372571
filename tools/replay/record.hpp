// What is known of a run: the events of all peers, and the verdict that follows from them. Thread-safe.
#pragma once

#include "events.hpp"

#include <mutex>
#include <vector>

namespace deltawire::replay {

class Record {
public:
  /// `versions` checkpoints are replayed to `workers` workers.
  Record(std::size_t versions, std::uint32_t workers);

  void note(const Event& event);

  /// A peer's process ended and did not say why; `how` e.g. "killed by signal 9 (Killed)".
  void note_death(const Peer& peer, const std::string& how);

  /// A peer has failed, or an update: the run goes on to no more updates.
  [[nodiscard]] bool failed() const;

  /// Versions that every worker holds, with or without proof.
  [[nodiscard]] std::size_t versions_held() const;
  [[nodiscard]] std::size_t versions() const noexcept { return versions_; }

  /// Updates that ended, in order. Complete once all peers have ended.
  [[nodiscard]] std::vector<Outcome> updates() const;

  /// The verdict once all peers have ended; nothing when every version was proven on every worker, digests included.
  /// Otherwise the first cause: bits that differ, then a peer that died, then a failure that is not about a peer, then
  /// whatever came first. Failures that follow from another's death must not hide it.
  [[nodiscard]] std::optional<Failure> cause() const;

private:
  [[nodiscard]] std::optional<Failure> unproven() const;

  const std::size_t versions_;
  mutable std::mutex mutex_;
  std::vector<Outcome> updates_;
  std::vector<Version> held_;   ///< a worker: the last version it holds
  std::vector<Version> proven_; ///< a worker: versions 1..n were proven
  std::optional<Failure> difference_;
  std::optional<Failure> death_;
  std::vector<Failure> failures_; ///< as they came
};

} // namespace deltawire::replay
