#include "sync/root_delivery.hpp"

#include "sync/naming.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace deltawire::sync {
namespace {

using Kind = wire::DeliveryKind;

/// As push_back({w, message}), which GCC 12 warns of where the variant is moved as something else than it is.
template <class Message>
void say(RootDelivery::Actions& actions, std::uint32_t w, Message message) {
  RootDelivery::ToWorker& sent = actions.send.emplace_back();
  sent.worker = w;
  sent.message.emplace<Message>(std::move(message));
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

/// All of it is there, and may be available by the next update: what it owes comes at any time.
bool RootDelivery::replica_connected(std::uint32_t replica) const noexcept {
  for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w)
    if (records_[w].lost || workers_[w].silent)
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
    if (!replica_connected(replica))
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
  // Planned again after an audit: the last plan is not carried out.
  if (std::exchange(planned_for_, version) == version)
    seeds_next_ = seeds_were_next_;
  seeds_were_next_ = seeds_next_;
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
  found_.reset();
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
      say(actions, w, wire::Begin{delivery, plan.kind, plan.base, plan.target});
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
    workers_[w].may_match = false;
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
  if (worker.awaited || worker.asked)
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
  case Phase::auditing:
  case Phase::idle:
    break;
  }
  return false;
}

/// What is waited for includes on_pause or on_commit, which are the engine's. That the process lives is what heartbeats
/// tell.
bool RootDelivery::in_engine(std::uint32_t w) const noexcept {
  if (phase_ == Phase::auditing)
    return workers_[w].asked && workers_[w].matches;
  return workers_[w].takes_part &&
         (phase_ == Phase::committing || (phase_ == Phase::beginning && plan_.kind == Kind::seed));
}

void RootDelivery::advance(Nanoseconds now, Actions& actions) {
  if (phase_ == Phase::idle)
    return;
  if (phase_ == Phase::auditing) {
    const auto is_asked = [](const Worker& worker) { return worker.asked; };
    if (std::any_of(workers_.begin(), workers_.end(), is_asked))
      return;
    adopt_matches(actions); // once: who was told to has no match left when it has answered
    if (std::any_of(workers_.begin(), workers_.end(), is_asked))
      return;
    phase_ = Phase::idle;
    actions.over = true;
    return;
  }
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
          say(actions, w, wire::Commit{delivery_});
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
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    Worker& worker = workers_[w];
    if (!worker.takes_part)
      continue;
    worker.expected = digests_of(w);
    say(actions, w, wire::Seal{delivery_, worker.frames_sent, worker.bytes_sent, worker.expected});
  }
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
    if (worker.release_given) { // it will serve the target as soon as it hears of it, or does already
      record.version = plan_.target;
      record.brought = plan_.kind;
      record.dirty = false;
    }
    if (record.lost)
      continue;
    worker.owes = delivery_;
    worker.owes_release = worker.release_given;
    worker.awaited = true;
    if (worker.release_given)
      continue;
    say(actions, w, wire::Undo{delivery_, reason.message});
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
  const Failure reason = naming(wire::Role::worker, w, why);
  Worker& worker = workers_[w];
  if (records_[w].error.empty() || worker.takes_part)
    records_[w].error = reason.message;
  if (phase_ == Phase::idle)
    return;
  if (worker.takes_part)
    drop(replica_of(w), w, reason, now, actions);
  worker.awaited = worker.asked = worker.matches = false;
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
  say(actions, w, wire::Settle{standing.session, standing.delivery, static_cast<std::uint8_t>(release ? 1 : 0)});
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
  if (phase_ == Phase::auditing) {
    for (Worker& worker : workers_)
      worker.asked = worker.matches = false;
    found_ = reason;
    advance(now, actions);
    return actions;
  }
  if (!released_)
    failure_ = reason;
  drop_all(reason, now, actions);
  advance(now, actions);
  return actions;
}

// Audits
// -----------------------------------------------------------------------------------------------------------

std::optional<Failure> RootDelivery::compare(std::uint32_t w, const Digests& reported, std::string_view when) const {
  const auto wrong = first_wrong(workers_[w].expected, reported);
  if (!wrong)
    return std::nullopt;
  const std::string cell = settings_.cell_name ? settings_.cell_name(wrong->cell) : fmt::format("cell {}", wrong->cell);
  return Failure{Code::verification_failed, fmt::format("worker {}: {}: {}, {}", w, cell, wrong->text(), when)};
}

bool RootDelivery::is_asked(std::uint32_t w, const AuditPlan& plan) const noexcept {
  if (plan.version == 0 || !available(w))
    return false;
  return plan.adopt ? records_[w].version == 0 && workers_[w].may_match : records_[w].version == plan.version;
}

bool RootDelivery::anyone_for(const AuditPlan& plan) const {
  for (std::uint32_t w = 0; w < workers_.size(); ++w)
    if (is_asked(w, plan))
      return true;
  return false;
}

RootDelivery::Actions RootDelivery::audit(const AuditPlan& plan,
                                          const std::function<Digests(std::uint32_t worker)>& digests_of,
                                          Nanoseconds now) {
  Actions actions;
  phase_ = Phase::auditing;
  audit_ = plan;
  found_.reset();
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    Worker& worker = workers_[w];
    worker.matches = false;
    worker.asked = is_asked(w, plan);
    if (!worker.asked)
      continue;
    worker.may_match = false;
    worker.expected = digests_of(w);
    say(actions, w, wire::Audit{plan.audit, plan.version, worker.expected});
  }
  restart_clocks(now);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Audited& message, Nanoseconds now) {
  Actions actions;
  if (phase_ != Phase::auditing || w >= workers_.size() || !workers_[w].asked || message.audit != audit_.audit)
    return actions;
  touch(w, now);
  Worker& worker = workers_[w];
  worker.asked = false;
  if (std::exchange(worker.matches, false)) { // it was told to adopt, and does
    advance(now, actions);
    return actions;
  }
  auto different = compare(w, message.digests, fmt::format("audit of version {}", audit_.version));
  if (!message.error.empty())
    different =
      naming(wire::Role::worker, w,
             {Code::verification_failed, fmt::format("{}, audit of version {}", message.error, audit_.version)});
  Record& record = records_[w];
  if (audit_.adopt) {
    worker.matches = !different;
  } else if (different) {
    // Nothing whole is there any more: like after a seed that did not come to its end.
    record.version = 0;
    record.dirty = true;
    record.digest_ok = false;
    record.error = different->message;
    found_ = found_.value_or(*different);
  } else {
    record.audited = true;
    record.digest_ok = true;
  }
  advance(now, actions);
  return actions;
}

/// Replicas are served as a whole: one whose members have, or hold, the version.
void RootDelivery::adopt_matches(Actions& actions) {
  for (std::uint32_t replica = 0; replica < replicas(); ++replica) {
    bool all = true;
    for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w)
      all = all && available(w) && (workers_[w].matches || records_[w].version == audit_.version);
    for (std::uint32_t w = first_of(replica); w < end_of(replica); ++w) {
      workers_[w].matches = workers_[w].matches && all;
      if (!workers_[w].matches)
        continue;
      workers_[w].asked = true; // until it says that it serves
      Record& record = records_[w];
      record.version = audit_.version;
      record.matched = record.digest_ok = true;
      record.dirty = false;
      record.error.clear();
      say(actions, w, wire::Adopt{audit_.audit, audit_.version});
    }
  }
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
    const bool auditing = phase_ == Phase::auditing;
    const Failure reason{
      Code::timed_out,
      fmt::format(
        "worker {} made no progress for {:.1f} s ({}) in the {} version {}", w, static_cast<double>(limit) * 1e-9,
        engine ? "update.engine: its engine has not paused, or not called poll() and commit()" : "update.stall",
        auditing ? "audit of" : "update to", auditing ? audit_.version : plan_.target)};
    if (auditing && !found_)
      found_ = reason;
    stopped(w, reason, now, actions);
    workers_[w].unresponsive = workers_[w].owes != 0;
    if (phase_ == Phase::idle)
      return actions;
  }
  // In an audit, who stands still is not waited for longer than `stall`.
  if (phase_ != Phase::ending && phase_ != Phase::auditing && now - begun_ >= settings_.timeout) {
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
  if (const auto different = compare(w, message.digests, "read back after the commit")) {
    Actions dropped;
    workers_[w].failed = true;
    drop(replica_of(w), w, *different, now, dropped);
    return dropped;
  }
  workers_[w].step = Step::applied;
  Record& record = records_[w];
  record.digest_ok = settings_.verify;
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
    say(actions, member, wire::Release{delivery_});
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
  record.brought = plan_.kind;
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
  // With nothing whole where there was something: its memory was found to be changed.
  records_[w].dirty = message.version == 0 && (records_[w].dirty || records_[w].version != 0);
  records_[w].version = message.version;
  advance(now, actions);
  return actions;
}

RootDelivery::Actions RootDelivery::on(std::uint32_t w, const wire::Failed& message, Nanoseconds now) {
  Actions actions;
  // About an earlier delivery, it is as late as any other answer.
  if (w >= workers_.size() || records_[w].lost || (message.delivery != 0 && message.delivery != delivery_))
    return actions;
  const Failure reason = naming(wire::Role::worker, w, {message.code, message.message});
  if (records_[w].error.empty())
    records_[w].error = reason.message;
  if (phase_ == Phase::auditing && workers_[w].asked) {
    workers_[w].asked = workers_[w].matches = false;
    found_ = found_.value_or(reason);
    advance(now, actions);
    return actions;
  }
  if (phase_ == Phase::idle || !workers_[w].takes_part)
    return actions; // no progress: a worker that repeats it must not hold up the end
  workers_[w].failed = true;
  drop(replica_of(w), w, reason, now, actions);
  return actions;
}

} // namespace deltawire::sync
