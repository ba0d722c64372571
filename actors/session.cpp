#include "actors/session.hpp"

#include <random>
#include <utility>

namespace deltawire::actors {

LifeSigns::LifeSigns(const config::Update& update)
  : interval_(heartbeat_interval(update).count()),
    watch_(update.stall.count() + 2 * interval_, 2 * std::chrono::nanoseconds(look_around).count()),
    silent_for_(fmt::format("nothing was heard of it for {:.1f} s (update.stall)",
                            std::chrono::duration<double>(update.stall).count())) {}

bool LifeSigns::tick(std::int64_t now) {
  watch_.tick(now);
  if (now - last_beat_ < interval_)
    return false;
  last_beat_ = now;
  return true;
}

void TicketPromise::set_captured() {
  const std::lock_guard lock(mutex_);
  captured_ = true;
  changed_.notify_all();
}

void TicketPromise::set_report(wire::DeliveryReport report) {
  {
    const std::lock_guard lock(mutex_);
    if (report_)
      return; // fulfilled by the supervisor alone: nobody else is about to
  }
  // Outside the lock: warnings go to the program's own log.
  std::vector<std::string> warnings = observe ? observe(report) : std::vector<std::string>{};
  const std::lock_guard lock(mutex_);
  report_ = std::move(report);
  warnings_ = std::move(warnings);
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

std::vector<std::string> TicketPromise::warnings() {
  const std::lock_guard lock(mutex_);
  return warnings_;
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

void SessionStatus::part(const Failure& why) {
  const std::lock_guard lock(mutex_);
  parted_ = why;
}

void SessionStatus::meet() {
  const std::lock_guard lock(mutex_);
  parted_.reset();
}

std::optional<Failure> SessionStatus::parted() const {
  const std::lock_guard lock(mutex_);
  return parted_;
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

void answer(std::shared_ptr<Answer>& pending, Result<void> result) {
  if (const auto taken = std::exchange(pending, nullptr))
    (*taken)(std::move(result));
}

void connect_port(transport::Network& network, const std::string& master,
                  std::chrono::steady_clock::time_point deadline, const std::shared_ptr<Routes>& routes,
                  wire::Channel channel) {
  network.connect(master, deadline, [channel, routes](Result<std::shared_ptr<transport::Connection>> connected) {
    const caf::actor supervisor = routes->supervisor();
    if (!supervisor)
      return; // closed meanwhile
    if (!connected)
      return caf::anon_send(supervisor, PortOpened{nullptr, connected.error()});
    auto port = std::make_shared<Port>(std::move(*connected), routes);
    port->identify(wire::Role::rank, 0, channel);
    caf::anon_send(supervisor, PortOpened{std::move(port), {}});
  });
}

std::uint64_t random_identity() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32 | device()) | 1; // never 0: 0 means "not known yet"
}

} // namespace deltawire::actors
