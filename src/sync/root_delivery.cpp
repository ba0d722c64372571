#include "sync/root_delivery.hpp"

#include <algorithm>
#include <limits>

namespace deltawire::sync {
namespace {

using Kind = wire::DeliveryKind;

/// A reason as messages tell it: it names the worker, whoever wrote it.
Failure naming(std::uint32_t worker, const Failure& reason) {
  const std::string name = fmt::format("worker {}", worker);
  if (reason.message.find(name) != std::string::npos)
    return reason;
  return {reason.code, fmt::format("{}: {}", name, reason.message)};
}

} // namespace

RootDelivery::RootDelivery(const DeliverySettings& settings)
  : settings_(settings), workers_(settings.workers), records_(settings.workers), last_release_(settings.workers),
    doubts_(settings.workers) {}

// Who takes part
// ---------------------------------------------------------------------------------------------------------------

bool RootDelivery::available(std::uint32_t w) const noexcept {
  const Worker& worker = workers_[w];
  return !records_[w].lost && !worker.silent && !worker.unresponsive && !(worker.owes != 0 && worker.failed);
}

bool RootDelivery::replica_available(std::uint32_t replica) const noexcept {
  for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w)
    if (!available(w))
      return false;
  return true;
}

bool RootDelivery::fits(std::uint32_t replica, const DeliveryPlan& plan) const noexcept {
  if (!replica_available(replica))
    return false;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max(), greatest = 0;
  for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w) {
    least = std::min(least, records_[w].version);
    greatest = std::max(greatest, records_[w].version);
  }
  switch (plan.kind) {
  case Kind::seed:
    return least == 0 && greatest < plan.target;
  case Kind::delta:
    return least == plan.base && greatest == plan.base && plan.base != 0;
  case Kind::fold:
    return least >= plan.base && least != 0 && greatest < plan.target;
  }
  return false;
}

std::uint32_t RootDelivery::replicas_available() const noexcept {
  std::uint32_t available = 0;
  for (std::uint32_t replica = 0; replica < replicas(); ++replica)
    available += replica_available(replica) ? 1 : 0;
  return available;
}

bool RootDelivery::exists(std::uint64_t version) const noexcept {
  return std::any_of(records_.begin(), records_.end(),
                     [version](const Record& record) { return record.version == version; });
}

bool RootDelivery::anyone_for(const DeliveryPlan& plan) const {
  if (replicas_available() < settings_.quorum && !exists(plan.target))
    return false;
  for (std::uint32_t replica = 0; replica < replicas(); ++replica)
    if (fits(replica, plan))
      return true;
  return false;
}

std::optional<DeliveryPlan> RootDelivery::catch_up(std::uint64_t version) {
  constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  bool seed = false;
  std::uint64_t base = none;
  for (std::uint32_t replica = 0; replica < replicas(); ++replica) {
    if (!replica_available(replica))
      continue;
    std::uint64_t least = none;
    bool behind = false;
    for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w) {
      least = std::min(least, records_[w].version);
      behind = behind || records_[w].version != version;
    }
    if (least == 0)
      seed = true;
    else if (behind)
      base = std::min(base, least);
  }
  if (!seed && base == none)
    return std::nullopt;
  seeds_next_ = seed && (base == none || seeds_next_);
  const DeliveryPlan plan =
    seeds_next_ ? DeliveryPlan{Kind::seed, 0, version + 1} : DeliveryPlan{Kind::fold, base, version + 1};
  seeds_next_ = !seeds_next_;
  return plan;
}

std::uint64_t RootDelivery::oldest_version(std::uint64_t version) const {
  for (const Record& record : records_)
    if (!record.lost && record.version != 0)
      version = std::min(version, record.version);
  return version;
}

Failure RootDelivery::nobody() const {
  const std::uint32_t left = replicas_available();
  const std::string served =
    left == 0
      ? "no replica can be served"
      : fmt::format("{} of {} replicas that must have it (update.quorum) can be served", left, settings_.quorum);
  for (std::uint32_t w = 0; w < workers_.size() && (left == 0 || left < settings_.quorum); ++w)
    if (!available(w))
      return {records_[w].lost ? Code::peer_failed : Code::timed_out,
              fmt::format("{}: {}", served,
                          records_[w].error.empty() ? fmt::format("worker {} does not answer", w) : records_[w].error)};
  return {Code::peer_failed, "no replica can be served with this update: all wait for the next one"};
}

// The course of a delivery
// ---------------------------------------------------------------------------------------------------------------

void RootDelivery::restart_clocks(Nanoseconds now) {
  for (Worker& worker : workers_)
    worker.progress = now;
}

void RootDelivery::begin_update() {
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    Record fresh;
    fresh.version = records_[w].version;
    fresh.lost = records_[w].lost;
    fresh.dirty = records_[w].dirty;
    if (!replica_available(replica_of(w)))
      fresh.error = records_[w].error;
    records_[w] = fresh;
  }
}

RootDelivery::Actions RootDelivery::begin(std::uint64_t delivery, const DeliveryPlan& plan, Nanoseconds now) {
  phase_ = Phase::beginning;
  delivery_ = delivery;
  plan_ = plan;
  begun_ = now;
  on_wire_ = false;
  released_ = false;
  failure_.reset();
  Actions actions;
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    Worker& worker = workers_[w];
    worker.takes_part = worker.began = fits(replica_of(w), plan);
    worker.awaited = false;
    worker.failed = worker.failed && !worker.takes_part; // of a delivery that it has ended all the same
    worker.step = Step::none;
    worker.release_given = false;
    worker.frames_sent = worker.frames_staged = worker.bytes_sent = 0;
    if (worker.takes_part)
      actions.send.push_back({w, wire::Begin{delivery, plan.kind, plan.base, plan.target}});
  }
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    if (!workers_[w].takes_part)
      continue;
    records_[w].error.clear(); // of the update's first delivery
    if (plan.kind != Kind::seed)
      continue;
    // It is written in place: until it is released nothing whole is there.
    records_[w].version = 0;
    records_[w].dirty = true;
  }
  restart_clocks(now);
  return actions;
}

std::uint64_t RootDelivery::frame_sent(std::uint32_t w, std::uint64_t bytes) {
  workers_[w].bytes_sent += bytes;
  return workers_[w].frames_sent++;
}

RootDelivery::Actions RootDelivery::flush_sent(Nanoseconds now) {
  Actions actions;
  on_wire_ = true;
  advance(now, actions); // nobody may be left who gets any of it
  return actions;
}

bool RootDelivery::all_at(Step step) const noexcept {
  return std::all_of(workers_.begin(), workers_.end(),
                     [step](const Worker& worker) { return !worker.takes_part || worker.step == step; });
}

std::uint32_t RootDelivery::replicas_left() const noexcept {
  std::uint32_t left = 0;
  for (std::uint32_t replica = 0; replica < replicas(); ++replica)
    left += workers_[first_of(replica)].takes_part ? 1 : 0;
  return left;
}

std::uint32_t RootDelivery::replicas_counted() const noexcept {
  std::uint32_t counted = 0;
  for (std::uint32_t replica = 0; replica < replicas(); ++replica) {
    const Worker& worker = workers_[first_of(replica)];
    counted += (worker.began ? worker.takes_part : replica_available(replica)) ? 1 : 0;
  }
  return counted;
}

bool RootDelivery::too_few() const noexcept {
  return replicas_counted() < settings_.quorum && !exists(plan_.target);
}

bool RootDelivery::waits_for(std::uint32_t w) const noexcept {
  const Worker& worker = workers_[w];
  if (phase_ == Phase::idle)
    return false;
  if (worker.awaited)
    return true;
  if (!worker.takes_part)
    return false;
  switch (phase_) {
  case Phase::beginning:
    return worker.step < Step::ready;
  case Phase::sending:
    return worker.frames_staged < worker.frames_sent;
  case Phase::sealing:
    return worker.step < Step::staged;
  case Phase::committing:
    // One that has applied waits for its replica, not the other way round.
    return worker.step == Step::staged || (worker.step == Step::applied && worker.release_given);
  case Phase::ending:
  case Phase::idle:
    break;
  }
  return false;
}

/// What is waited for includes on_pause or on_commit, which are the engine's. That the process lives is what heartbeats
/// tell.
bool RootDelivery::in_engine(std::uint32_t w) const noexcept {
  return workers_[w].takes_part &&
         (phase_ == Phase::committing || (phase_ == Phase::beginning && plan_.kind == Kind::seed));
}

void RootDelivery::advance(Nanoseconds now, Actions& actions) {
  if (phase_ == Phase::idle)
    return;
  const bool any = replicas_left() > 0;
  if (phase_ == Phase::beginning && any && all_at(Step::ready)) {
    phase_ = Phase::sending;
    actions.may_send_flushes = true;
  }
  if ((phase_ == Phase::sending || phase_ == Phase::sealing) && any) {
    const bool staged = std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
      return !worker.takes_part || worker.frames_staged == worker.frames_sent;
    });
    if (on_wire_ && staged) {
      on_wire_ = false;
      actions.flush_credit = true;
    }
  }
  if (phase_ == Phase::sealing && any && all_at(Step::staged)) {
    if (too_few()) {
      // One that waits for another delivery of the update was counted on, and is gone.
      failure_ = nobody();
      drop_all(*failure_, now, actions);
    } else {
      phase_ = Phase::committing;
      restart_clocks(now);
      for (std::uint32_t w = 0; w < workers_.size(); ++w)
        if (workers_[w].takes_part)
          actions.send.push_back({w, wire::Commit{delivery_}});
    }
  }
  if (phase_ == Phase::committing && all_at(Step::released))
    phase_ = Phase::ending;
  if (phase_ != Phase::ending)
    return;
  for (const Worker& worker : workers_)
    if (worker.awaited)
      return;
  for (Worker& worker : workers_)
    worker.takes_part = false;
  phase_ = Phase::idle;
  actions.over = true;
}

RootDelivery::Actions RootDelivery::seal(const std::function<Digests(std::uint32_t worker)>& digests_of,
                                         Nanoseconds now) {
  Actions actions;
  if (phase_ != Phase::sending)
    return actions;
  phase_ = Phase::sealing;
  restart_clocks(now);
  for (std::uint32_t w = 0; w < workers_.size(); ++w)
    if (workers_[w].takes_part)
      actions.send.push_back(
        {w, wire::Seal{delivery_, workers_[w].frames_sent, workers_[w].bytes_sent, digests_of(w)}});
  return actions;
}

// Failures
// -----------------------------------------------------------------------------------------------------------

void RootDelivery::undo(std::uint32_t replica, std::optional<std::uint32_t> because_of, const Failure& reason,
                        Nanoseconds now, Actions& actions) {
  for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w) {
    Worker& worker = workers_[w];
    worker.takes_part = false;
    worker.awaited = false;
    touch(w, now);
    if (worker.step == Step::released)
      continue;
    Record& record = records_[w];
    if (!because_of || *because_of == w || record.error.empty())
      record.error = !because_of || *because_of == w
                       ? reason.message
                       : fmt::format("worker {} of its replica was given up: {}", *because_of, reason.message);
    record.digest_ok = false;
    if (record.lost)
      continue;
    worker.owes = delivery_;
    worker.owes_release = worker.release_given;
    worker.awaited = true;
    if (worker.release_given) { // it will serve the target as soon as it hears of it
      record.version = plan_.target;
      record.dirty = false;
      continue;
    }
    actions.send.push_back({w, wire::Undo{delivery_, reason.message}});
  }
}

void RootDelivery::drop_all(const Failure& reason, Nanoseconds now, Actions& actions) {
  for (std::uint32_t replica = 0; replica < replicas(); ++replica)
    if (workers_[first_of(replica)].takes_part)
      undo(replica, std::nullopt, reason, now, actions);
  phase_ = Phase::ending;
}

void RootDelivery::drop(std::uint32_t replica, std::optional<std::uint32_t> because_of, const Failure& reason,
                        Nanoseconds now, Actions& actions) {
  if (phase_ == Phase::idle || !workers_[first_of(replica)].takes_part)
    return;
  undo(replica, because_of, reason, now, actions);
  const std::uint32_t left = replicas_left();
  if (phase_ < Phase::committing && (left == 0 || too_few())) {
    failure_ = reason;
    if (too_few())
      failure_->message = fmt::format("{} of {} replicas that must have it (update.quorum) are left: {}",
                                      replicas_counted(), settings_.quorum, reason.message);
    drop_all(*failure_, now, actions);
  }
  if (left == 0 && !released_) {
    if (!failure_)
      failure_ = reason;
    phase_ = Phase::ending;
  }
  advance(now, actions);
}

void RootDelivery::stopped(std::uint32_t w, const Failure& why, Nanoseconds now, Actions& actions) {
  const Failure reason = naming(w, why);
  Worker& worker = workers_[w];
  if (records_[w].error.empty() || worker.takes_part)
    records_[w].error = reason.message;
  if (phase_ == Phase::idle)
    return;
  if (worker.takes_part)
    drop(replica_of(w), w, reason, now, actions);
  worker.awaited = false;
  advance(now, actions);
}

RootDelivery::Actions RootDelivery::lost(std::uint32_t w, const Failure& why, Nanoseconds now) {
  if (w >= workers_.size() || records_[w].lost)
    return {};
  records_[w].lost = true;
  Actions actions;
  stopped(w, why, now, actions);
  return actions;
}

// Workers that come from a lost root, or come back
// -----------------------------------------------------------------------------------------------------------

void RootDelivery::settle(std::uint32_t w, const wire::Agreed& standing, bool release, Actions& actions) {
  doubts_[w] = {standing, release};
  actions.send.push_back(
    {w, wire::Settle{standing.session, standing.delivery, static_cast<std::uint8_t>(release ? 1 : 0)}});
}

RootDelivery::Actions RootDelivery::met(const std::vector<wire::Agreed>& standing) {
  Actions actions;
  if (standing.size() != workers_.size())
    return actions;
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    const wire::Agreed& doubt = standing[w];
    if (doubt.delivery == 0)
      continue;
    bool all_applied = true, one_serves = false;
    for (std::uint32_t member = first_of(replica_of(w)); member < end_of(replica_of(w)); ++member) {
      const wire::Agreed& other = standing[member];
      const bool same = other.session == doubt.session;
      all_applied = all_applied && same && other.delivery == doubt.delivery;
      one_serves = one_serves || (same && other.delivery == 0 && other.version == doubt.target);
    }
    settle(w, doubt, all_applied || one_serves, actions);
  }
  return actions;
}

RootDelivery::Actions RootDelivery::joined(std::uint32_t w, const wire::Agreed& standing) {
  Actions actions;
  if (w >= workers_.size() || !records_[w].lost)
    return actions;
  workers_[w] = Worker{};
  records_[w] = Record{};
  if (standing.delivery == 0)
    return actions;
  const bool ours = standing.session == settings_.session;
  settle(w, standing, ours ? standing.delivery == last_release_[w] : doubts_[w].about == standing && doubts_[w].release,
         actions);
  return actions;
}

RootDelivery::Actions RootDelivery::silent(std::uint32_t w, const Failure& why, Nanoseconds now) {
  if (w >= workers_.size() || records_[w].lost || workers_[w].silent)
    return {};
  workers_[w].silent = true;
  Actions actions;
  stopped(w, why, now, actions);
  if (workers_[w].owes != 0)
    workers_[w].unresponsive = true;
  return actions;
}

RootDelivery::Actions RootDelivery::abort(const Failure& reason, Nanoseconds now) {
  Actions actions;
  if (phase_ == Phase::idle || phase_ == Phase::ending)
    return actions;
  if (!released_)
    failure_ = reason;
  drop_all(reason, now, actions);
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::abandon(const Failure& reason, Nanoseconds now) {
  Actions actions;
  if (phase_ == Phase::idle || phase_ >= Phase::committing)
    return actions;
  failure_ = reason;
  drop_all(reason, now, actions);
  for (Worker& worker : workers_)
    worker.awaited = false;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::tick(Nanoseconds now) {
  Actions actions;
  if (phase_ == Phase::idle)
    return actions;
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    if (!waits_for(w)) {
      touch(w, now); // so that a pause of the trainer's side is not held against it
      continue;
    }
    const bool engine = in_engine(w) && settings_.engine > settings_.stall;
    const Nanoseconds limit = engine ? settings_.engine : settings_.stall;
    if (now - workers_[w].progress < limit)
      continue;
    const Failure reason{Code::timed_out,
                         fmt::format("worker {} made no progress for {:.1f} s ({}) in the update to "
                                     "version {}",
                                     w, static_cast<double>(limit) * 1e-9,
                                     engine ? "update.engine: its engine has not paused, or not called "
                                              "poll() and commit()"
                                            : "update.stall",
                                     plan_.target)};
    stopped(w, reason, now, actions);
    workers_[w].unresponsive = workers_[w].owes != 0;
    if (phase_ == Phase::idle)
      return actions;
  }
  if (phase_ != Phase::ending && now - begun_ >= settings_.timeout) {
    const Failure reason{Code::timed_out, fmt::format("the update to version {} took longer than {:.1f} s "
                                                      "(update.timeout)",
                                                      plan_.target, static_cast<double>(settings_.timeout) * 1e-9)};
    if (!released_)
      failure_ = reason;
    drop_all(reason, now, actions);
    advance(now, actions);
  }
  return actions;
}

// What workers say
// -----------------------------------------------------------------------------------------------------------

bool RootDelivery::out_of_place(std::uint32_t worker, std::uint64_t delivery) const noexcept {
  // Late answers about an earlier delivery, or from a worker that was dropped, change nothing.
  return phase_ == Phase::idle || worker >= workers_.size() || delivery != delivery_ || !workers_[worker].takes_part ||
         records_[worker].lost;
}

RootDelivery::Actions RootDelivery::wrong(std::uint32_t w, std::string_view message, Nanoseconds now) {
  Actions actions;
  workers_[w].failed = true;
  drop(replica_of(w), w,
       Failure{Code::peer_failed, fmt::format("worker {} sent {} out of order in delivery {}", w, message, delivery_)},
       now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Ready& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery))
    return {};
  touch(w, now);
  if (phase_ != Phase::beginning || workers_[w].step != Step::none)
    return wrong(w, "Ready", now);
  workers_[w].step = Step::ready;
  Actions actions;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::FlushStaged& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery))
    return {};
  Worker& worker = workers_[w];
  if (message.sequence < worker.frames_staged)
    return {}; // a duplicate flush is acknowledged again: neither wrong nor progress
  touch(w, now);
  if (message.sequence != worker.frames_staged || message.sequence >= worker.frames_sent)
    return wrong(w, "FlushStaged", now);
  ++worker.frames_staged;
  Actions actions;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Staged& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery))
    return {};
  touch(w, now);
  if (phase_ != Phase::sealing || workers_[w].step != Step::ready ||
      workers_[w].frames_staged != workers_[w].frames_sent)
    return wrong(w, "Staged", now);
  Actions actions;
  // A worker that answers without having received must not pass: its count is compared with what was sent.
  if (message.bytes != workers_[w].bytes_sent) {
    workers_[w].failed = true;
    drop(replica_of(w), w,
         Failure{Code::verification_failed, fmt::format("worker {} staged {} bytes of delivery {}, {} were sent", w,
                                                        message.bytes, delivery_, workers_[w].bytes_sent)},
         now, actions);
    return actions;
  }
  workers_[w].step = Step::staged;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Applied& message, Nanoseconds now) {
  if (out_of_place(w, message.delivery))
    return {};
  touch(w, now);
  if (phase_ != Phase::committing || workers_[w].step != Step::staged || message.version != plan_.target)
    return wrong(w, "Applied", now);
  workers_[w].step = Step::applied;
  Record& record = records_[w];
  record.digest_ok = true;
  record.elements = message.elements;
  record.stage = message.stage;
  record.commit = message.commit;
  record.applier_peak = message.applier_peak;
  Actions actions;
  const std::uint32_t replica = replica_of(w);
  for (std::uint32_t member = first_of(replica); member < end_of(replica); ++member)
    if (workers_[member].step != Step::applied)
      return actions;
  released_ = true;
  for (std::uint32_t member = first_of(replica); member < end_of(replica); ++member) {
    touch(member, now);
    workers_[member].release_given = true;
    last_release_[member] = delivery_;
    actions.send.push_back({member, wire::Release{delivery_}});
  }
  return actions;
}

void RootDelivery::answered(std::uint32_t w) {
  Worker& worker = workers_[w];
  worker.owes = 0;
  worker.awaited = worker.unresponsive = worker.failed = false;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Released& message, Nanoseconds now) {
  Actions actions;
  if (w < workers_.size() && workers_[w].owes != 0 && workers_[w].owes == message.delivery) {
    // It was told to before its replica was dropped, and its record says so already.
    if (workers_[w].owes_release && message.version == records_[w].version) {
      answered(w);
      advance(now, actions);
    }
    return actions;
  }
  if (out_of_place(w, message.delivery))
    return actions;
  touch(w, now);
  if (!workers_[w].release_given || workers_[w].step != Step::applied || message.version != plan_.target)
    return wrong(w, "Released", now);
  workers_[w].step = Step::released;
  Record& record = records_[w];
  record.version = plan_.target;
  record.dirty = false;
  record.error.clear();
  record.pause_ns = message.pause_ns;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Undone& message, Nanoseconds now) {
  Actions actions;
  if (w >= workers_.size() || workers_[w].owes == 0 || workers_[w].owes != message.delivery || workers_[w].owes_release)
    return actions;
  answered(w);
  records_[w].version = message.version;
  if (message.version != 0)
    records_[w].dirty = false;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Failed& message, Nanoseconds now) {
  Actions actions;
  // About an earlier delivery, it is as late as any other answer.
  if (w >= workers_.size() || records_[w].lost || (message.delivery != 0 && message.delivery != delivery_))
    return actions;
  const Failure reason = naming(w, {message.code, message.message});
  if (records_[w].error.empty())
    records_[w].error = reason.message;
  if (phase_ == Phase::idle || !workers_[w].takes_part)
    return actions; // no progress: a worker that repeats it must not hold up the end
  workers_[w].failed = true;
  drop(replica_of(w), w, reason, now, actions);
  return actions;
}

} // namespace deltawire::sync
