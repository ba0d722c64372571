#include "actors/session.hpp"

#include <random>

namespace deltawire::actors {

void TicketPromise::set_captured() {
  const std::lock_guard lock(mutex_);
  captured_ = true;
  changed_.notify_all();
}

void TicketPromise::set_report(wire::DeliveryReport report) {
  const std::lock_guard lock(mutex_);
  if (!report_)
    report_ = std::move(report);
  changed_.notify_all();
}

void TicketPromise::wait_captured() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return captured_; });
}

wire::DeliveryReport TicketPromise::wait_report() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return report_.has_value(); });
  return *report_;
}

void SessionStatus::fail(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_ && !ended_)
    failure_ = failure;
  changed_.notify_all();
}

void SessionStatus::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

std::optional<Failure> SessionStatus::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void SessionStatus::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || ended_; });
}

bool SessionStatus::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::uint64_t random_identity() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32 | device()) | 1; // never 0: 0 means "not known yet"
}

} // namespace deltawire::actors
