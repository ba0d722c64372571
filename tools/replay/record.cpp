#include "record.hpp"

#include <algorithm>

namespace deltawire::replay {

namespace {

/// Peers notice a failure elsewhere as a hang-up or a deadline: such a failure may be only a consequence.
bool may_be_consequence(const Failure& failure) {
  return failure.code == Code::peer_failed || failure.code == Code::timed_out;
}

Failure not_committed(const Outcome& outcome) {
  if (outcome.error_message.empty())
    return {Code::internal, fmt::format("version {} was not committed, and no reason was given", outcome.version)};
  return {outcome.error, fmt::format("version {}: {}", outcome.version, outcome.error_message)};
}

} // namespace

Record::Record(std::size_t versions, std::uint32_t workers, bool digests)
  : versions_(versions), digests_(digests), workers_(workers) {}

void Record::note(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (const auto* ended = std::get_if<UpdateEnded>(&event)) {
    updates_.push_back(ended->outcome);
    if (!ended->outcome.committed) {
      failures_.push_back(not_committed(ended->outcome));
      failed_ = true;
    }
  } else if (const auto* held = std::get_if<VersionHeld>(&event)) {
    if (held->worker >= workers_.size())
      return;
    session_ = held->session;
    Worker& worker = workers_[held->worker];
    worker.proven += held->proof == VersionHeld::Proof::equal && held->version > worker.held ? 1 : 0;
    worker.held = held->version;
    if (held->proof == VersionHeld::Proof::different && !difference_)
      difference_ = Failure{Code::verification_failed,
                            fmt::format("verification failed: version {}: {}", held->version, held->difference)};
  } else {
    const auto& end = std::get<PeerEnded>(event);
    if (end.failure)
      failures_.push_back({end.failure->code, fmt::format("{}: {}", to_string(end.peer), end.failure->message)});
    // A worker that cannot even start keeps the others waiting for it; one that lost its peers is no news.
    note_end(end.peer, end.failure && (end.peer.side == Peer::Side::trainer ||
                                       (updates_.empty() && !may_be_consequence(*end.failure))));
  }
}

void Record::note_death(const Peer& peer, const std::string& how) {
  const std::lock_guard lock(mutex_);
  note_end(peer, peer.side == Peer::Side::trainer); // the root goes on with the workers that are left
  if (death_)
    return;
  std::string message = fmt::format("{}: its process {}", to_string(peer), how);
  if (peer.side == Peer::Side::worker && peer.index < workers_.size())
    message += fmt::format("; version {} of {} was its last that was proven", workers_[peer.index].held, versions_);
  death_ = Failure{Code::peer_failed, std::move(message)};
}

void Record::note_end(const Peer& peer, bool ends_run) {
  if (peer.side == Peer::Side::worker && peer.index < workers_.size())
    workers_[peer.index].gone = true;
  failed_ = failed_ || ends_run;
}

void Record::note_silence(std::uint32_t worker, bool silent) {
  const std::lock_guard lock(mutex_);
  if (worker < workers_.size())
    workers_[worker].silent = silent;
}

bool Record::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

std::size_t Record::versions_held() const {
  const std::lock_guard lock(mutex_);
  std::size_t held = 0;
  for (const Outcome& update : updates_) {
    if (!update.committed)
      return held;
    for (const WorkerOutcome& reached : update.workers) {
      const Worker& worker = workers_.at(reached.index);
      if (reached.version == update.version && worker.held < update.version && !worker.gone && !worker.silent)
        return held;
    }
    ++held;
  }
  return held;
}

std::uint64_t Record::session() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

std::vector<Outcome> Record::updates() const {
  const std::lock_guard lock(mutex_);
  return updates_;
}

std::optional<Failure> Record::cause() const {
  const std::lock_guard lock(mutex_);
  if (difference_)
    return difference_;
  if (death_)
    return death_;
  const auto first = std::find_if_not(failures_.begin(), failures_.end(), may_be_consequence);
  if (first != failures_.end())
    return *first;
  if (!failures_.empty())
    return failures_.front();
  if (auto version = missed())
    return version;
  return unproven();
}

std::optional<Failure> Record::missed() const {
  for (const Outcome& update : updates_)
    for (const WorkerOutcome& worker : update.workers)
      if (worker.version != update.version)
        return Failure{Code::peer_failed, fmt::format("version {} did not reach worker {}, which was left at version "
                                                      "{}: {}",
                                                      update.version, worker.index, worker.version, worker.error)};
  return std::nullopt;
}

std::optional<Failure> Record::unproven() const {
  for (std::size_t worker = 0; worker < workers_.size(); ++worker)
    if (workers_[worker].proven != versions_)
      return Failure{Code::verification_failed,
                     fmt::format("verification failed: worker {} proved {} of {} versions (it holds version {})",
                                 worker, workers_[worker].proven, versions_, workers_[worker].held)};
  if (updates_.size() != versions_)
    return Failure{Code::verification_failed,
                   fmt::format("verification failed: the root reported {} of {} updates", updates_.size(), versions_)};
  for (const Outcome& update : updates_)
    for (const WorkerOutcome& worker : update.workers)
      if (digests_ && !worker.digest_ok)
        return Failure{Code::verification_failed,
                       fmt::format("verification failed: worker {}, version {}: the digests of its memory are not the "
                                   "trainer's",
                                   worker.index, update.version)};
  return std::nullopt;
}

} // namespace deltawire::replay
