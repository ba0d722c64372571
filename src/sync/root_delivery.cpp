#include "sync/root_delivery.hpp"

#include <algorithm>

namespace deltawire::sync {
namespace {

/// A reason as messages tell it: it names the worker, whoever wrote it.
Failure naming(std::uint32_t worker, const Failure& reason) {
  const std::string name = fmt::format("worker {}", worker);
  if (reason.message.find(name) != std::string::npos)
    return reason;
  return {reason.code, fmt::format("{}: {}", name, reason.message)};
}

} // namespace

RootDelivery::RootDelivery(std::uint32_t workers, std::uint32_t workers_per_replica, Nanoseconds stall,
                           Nanoseconds timeout)
  : workers_per_replica_(workers_per_replica), stall_(stall), timeout_(timeout), workers_(workers), records_(workers) {}

void RootDelivery::restart_clocks(Nanoseconds now) {
  for (Worker& worker : workers_)
    worker.progress = now;
}

RootDelivery::Actions RootDelivery::begin(std::uint64_t delivery, bool seed, std::uint64_t target, Nanoseconds now) {
  phase_ = Phase::beginning;
  delivery_ = delivery;
  target_ = target;
  begun_ = now;
  flushes_sent_ = flushes_done_ = bytes_sent_ = 0;
  failure_.reset();
  Actions actions;
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    workers_[w] = Worker{};
    Record fresh;
    fresh.version = records_[w].version;
    fresh.lost = records_[w].lost;
    if (fresh.lost)
      fresh.error = records_[w].error;
    records_[w] = fresh;
    actions.send.push_back({w, wire::Begin{delivery, seed ? wire::DeliveryKind::seed : wire::DeliveryKind::delta,
                                           seed ? 0 : fresh.version, target}});
  }
  restart_clocks(now);
  for (std::uint32_t w = 0; w < workers_.size(); ++w)
    if (records_[w].lost) {
      Actions aborted = fail_delivery(Failure{Code::peer_failed, records_[w].error}, now);
      return aborted;
    }
  // A failed update may leave replicas at different versions; one delta has one base.
  for (std::uint32_t w = 1; !seed && w < workers_.size(); ++w)
    if (records_[w].version != records_[0].version)
      return fail_delivery(
        Failure{Code::unsupported, fmt::format("worker {} is at version {} and worker 0 at version {}: an update of "
                                               "workers of different versions is not supported yet",
                                               w, records_[w].version, records_[0].version)},
        now);
  return actions;
}

void RootDelivery::flush_sent(std::uint64_t sequence, std::uint64_t bytes) {
  flushes_sent_ = sequence + 1;
  bytes_sent_ += bytes;
}

bool RootDelivery::all_at(Step step) const noexcept {
  return std::all_of(workers_.begin(), workers_.end(), [step](const Worker& worker) { return worker.step == step; });
}

bool RootDelivery::waits_for(std::uint32_t w) const noexcept {
  const Worker& worker = workers_[w];
  switch (phase_) {
  case Phase::idle:
    return false;
  case Phase::beginning:
    return worker.step < Step::ready;
  case Phase::sending:
    return worker.flushes_staged < flushes_sent_;
  case Phase::sealing:
    return worker.step < Step::staged;
  case Phase::committing:
    // One that has applied waits for its replica, not the other way round.
    return worker.step == Step::staged || (worker.step == Step::applied && worker.release_given);
  case Phase::aborting:
    return !records_[w].lost && worker.step != Step::undone && worker.step != Step::released;
  }
  return false;
}

RootDelivery::Actions RootDelivery::seal(std::vector<std::pair<std::uint32_t, std::uint64_t>> digests,
                                         Nanoseconds now) {
  Actions actions;
  if (phase_ != Phase::sending)
    return actions;
  phase_ = Phase::sealing;
  restart_clocks(now);
  for (std::uint32_t w = 0; w < workers_.size(); ++w)
    actions.send.push_back({w, wire::Seal{delivery_, flushes_sent_, bytes_sent_, digests}});
  return actions;
}

bool RootDelivery::out_of_place(std::uint32_t worker, std::uint64_t delivery) const noexcept {
  // Late answers about an earlier delivery, or from a worker that was given up, change nothing.
  return phase_ == Phase::idle || delivery != delivery_ || worker >= workers_.size() || records_[worker].lost;
}

RootDelivery::Actions RootDelivery::wrong(std::uint32_t worker, std::string_view message, Nanoseconds now) {
  records_[worker].error = fmt::format("worker {} sent {} out of order in delivery {}", worker, message, delivery_);
  return fail_delivery(Failure{Code::peer_failed, records_[worker].error}, now);
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Ready& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery) || phase_ == Phase::aborting)
    return {};
  touch(w, now);
  if (phase_ != Phase::beginning || workers_[w].step != Step::none)
    return wrong(w, "Ready", now);
  workers_[w].step = Step::ready;
  Actions actions;
  if (all_at(Step::ready)) {
    phase_ = Phase::sending;
    actions.may_send_flushes = true;
  }
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::FlushStaged& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery) || phase_ == Phase::aborting)
    return {};
  Worker& worker = workers_[w];
  if (message.sequence < worker.flushes_staged)
    return {}; // a duplicate flush is acknowledged again: neither wrong nor progress
  touch(w, now);
  if (message.sequence != worker.flushes_staged || message.sequence >= flushes_sent_)
    return wrong(w, "FlushStaged", now);
  ++worker.flushes_staged;
  Actions actions;
  const auto least = std::min_element(workers_.begin(), workers_.end(), [](const Worker& a, const Worker& b) {
    return a.flushes_staged < b.flushes_staged;
  });
  if (least->flushes_staged > flushes_done_) {
    flushes_done_ = least->flushes_staged;
    actions.flush_credit = true;
  }
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Staged& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery) || phase_ == Phase::aborting)
    return {};
  touch(w, now);
  if (phase_ != Phase::sealing || workers_[w].step != Step::ready || workers_[w].flushes_staged != flushes_sent_)
    return wrong(w, "Staged", now);
  // A worker that answers without having received must not pass: its count is compared with what was sent.
  if (message.bytes != bytes_sent_) {
    records_[w].error =
      fmt::format("worker {} staged {} bytes of delivery {}, {} were sent", w, message.bytes, delivery_, bytes_sent_);
    return fail_delivery(Failure{Code::verification_failed, records_[w].error}, now);
  }
  workers_[w].step = Step::staged;
  Actions actions;
  if (all_at(Step::staged)) {
    phase_ = Phase::committing;
    restart_clocks(now);
    for (std::uint32_t each = 0; each < workers_.size(); ++each)
      actions.send.push_back({each, wire::Commit{delivery_}});
  }
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Applied& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery) || phase_ == Phase::aborting)
    return {};
  touch(w, now);
  if (phase_ != Phase::committing || workers_[w].step != Step::staged || message.version != target_)
    return wrong(w, "Applied", now);
  workers_[w].step = Step::applied;
  Record& record = records_[w];
  record.digest_ok = true;
  record.elements = message.elements;
  record.stage = message.stage;
  record.commit = message.commit;
  record.applier_peak = message.applier_peak;
  Actions actions;
  const std::uint32_t first = w / workers_per_replica_ * workers_per_replica_;
  for (std::uint32_t member = first; member < first + workers_per_replica_; ++member)
    if (workers_[member].step != Step::applied)
      return actions;
  for (std::uint32_t member = first; member < first + workers_per_replica_; ++member) {
    touch(member, now);
    workers_[member].release_given = true;
    actions.send.push_back({member, wire::Release{delivery_}});
  }
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Released& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery))
    return {};
  const bool due = workers_[w].release_given && workers_[w].step == Step::applied && message.version == target_;
  if (!due && phase_ == Phase::aborting)
    return {};
  touch(w, now);
  if (!due)
    return wrong(w, "Released", now);
  workers_[w].step = Step::released;
  records_[w].version = target_;
  records_[w].pause_ns = message.pause_ns;
  if (phase_ == Phase::aborting)
    return finish_abort_if_done();
  Actions actions;
  if (all_at(Step::released)) {
    phase_ = Phase::idle;
    actions.over = true;
  }
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Undone& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery) || phase_ != Phase::aborting || workers_[w].release_given)
    return {};
  touch(w, now);
  workers_[w].step = Step::undone;
  records_[w].version = message.version;
  records_[w].digest_ok = false;
  return finish_abort_if_done();
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Failed& message, Nanoseconds now) {
  // About an earlier delivery, it is as late as any other answer.
  if (w >= workers_.size() || records_[w].lost || (message.delivery != 0 && message.delivery != delivery_))
    return {};
  const Failure reason = naming(w, {message.code, message.message});
  if (records_[w].error.empty())
    records_[w].error = reason.message;
  // No progress: a worker that repeats it must not hold up an abort.
  if (phase_ == Phase::idle || phase_ == Phase::aborting)
    return {};
  return fail_delivery(reason, now);
}

RootDelivery::Actions RootDelivery::fail_delivery(Failure reason, Nanoseconds now) {
  failure_ = std::move(reason);
  phase_ = Phase::aborting;
  restart_clocks(now);
  Actions actions;
  for (std::uint32_t w = 0; w < workers_.size(); ++w)
    if (!records_[w].lost && !workers_[w].release_given)
      actions.send.push_back({w, wire::Undo{delivery_, failure_->message}});
  Actions done = finish_abort_if_done();
  actions.over = done.over;
  return actions;
}

RootDelivery::Actions RootDelivery::finish_abort_if_done() {
  Actions actions;
  if (phase_ != Phase::aborting)
    return actions;
  for (std::uint32_t w = 0; w < workers_.size(); ++w)
    if (waits_for(w))
      return actions;
  phase_ = Phase::idle;
  actions.over = true;
  return actions;
}

RootDelivery::Actions RootDelivery::lost(std::uint32_t w, const Failure& why, Nanoseconds now) {
  if (w >= workers_.size() || records_[w].lost)
    return {};
  const Failure reason = naming(w, why);
  records_[w].lost = true;
  if (records_[w].error.empty())
    records_[w].error = reason.message;
  if (phase_ == Phase::idle)
    return {};
  if (phase_ == Phase::aborting)
    return finish_abort_if_done();
  return fail_delivery(reason, now);
}

RootDelivery::Actions RootDelivery::abort(const Failure& reason, Nanoseconds now) {
  if (phase_ == Phase::idle || phase_ == Phase::aborting)
    return {};
  return fail_delivery(reason, now);
}

RootDelivery::Actions RootDelivery::tick(Nanoseconds now) {
  if (phase_ == Phase::idle)
    return {};
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    if (!waits_for(w))
      touch(w, now); // so that a pause of the trainer's side is not held against it
    if (now - workers_[w].progress < stall_)
      continue;
    const Failure reason{Code::timed_out,
                         fmt::format("worker {} made no progress for {:.1f} s (update.stall) in the update to "
                                     "version {}",
                                     w, static_cast<double>(stall_) * 1e-9, target_)};
    return lost(w, reason, now);
  }
  if (phase_ != Phase::aborting && now - begun_ >= timeout_)
    return fail_delivery(Failure{Code::timed_out, fmt::format("the update to version {} took longer than {:.1f} s "
                                                              "(update.timeout)",
                                                              target_, static_cast<double>(timeout_) * 1e-9)},
                         now);
  return {};
}

} // namespace deltawire::sync
