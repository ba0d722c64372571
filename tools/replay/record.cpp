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

Record::Record(std::size_t versions, std::uint32_t workers)
  : versions_(versions), held_(workers, 0), proven_(workers, 0) {}

void Record::note(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (const auto* ended = std::get_if<UpdateEnded>(&event)) {
    updates_.push_back(ended->outcome);
    if (!ended->outcome.committed)
      failures_.push_back(not_committed(ended->outcome));
  } else if (const auto* held = std::get_if<VersionHeld>(&event)) {
    if (held->worker >= held_.size())
      return;
    held_[held->worker] = held->version;
    if (held->proof == VersionHeld::Proof::equal && held->version == proven_[held->worker] + 1)
      proven_[held->worker] = held->version;
    if (held->proof == VersionHeld::Proof::different && !difference_)
      difference_ = Failure{Code::verification_failed,
                            fmt::format("verification failed: version {}: {}", held->version, held->difference)};
  } else if (const auto& end = std::get<PeerEnded>(event); end.failure) {
    failures_.push_back({end.failure->code, fmt::format("{}: {}", to_string(end.peer), end.failure->message)});
  }
}

void Record::note_death(const Peer& peer, const std::string& how) {
  const std::lock_guard lock(mutex_);
  if (death_)
    return;
  std::string message = fmt::format("{}: its process was {}", to_string(peer), how);
  if (peer.side == Peer::Side::worker && peer.index < held_.size())
    message += fmt::format("; it held version {} of {}", held_[peer.index], versions_);
  death_ = Failure{Code::peer_failed, std::move(message)};
}

bool Record::failed() const {
  const std::lock_guard lock(mutex_);
  return death_ || !failures_.empty();
}

std::size_t Record::versions_held() const {
  const std::lock_guard lock(mutex_);
  return held_.empty() ? 0 : *std::min_element(held_.begin(), held_.end());
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
  return unproven();
}

std::optional<Failure> Record::unproven() const {
  for (std::size_t worker = 0; worker < proven_.size(); ++worker)
    if (proven_[worker] != versions_)
      return Failure{Code::verification_failed,
                     fmt::format("verification failed: worker {} proved {} of {} versions (it holds version {})",
                                 worker, proven_[worker], versions_, held_[worker])};
  if (updates_.size() != versions_)
    return Failure{Code::verification_failed,
                   fmt::format("verification failed: the root reported {} of {} updates", updates_.size(), versions_)};
  for (const Outcome& update : updates_)
    for (const WorkerOutcome& worker : update.workers)
      if (!worker.digest_ok)
        return Failure{Code::verification_failed,
                       fmt::format("verification failed: worker {}, version {}: the digests of its memory are not the "
                                   "trainer's",
                                   worker.index, update.version)};
  return std::nullopt;
}

} // namespace deltawire::replay
