#include "transport/strangers.hpp"

namespace deltawire::transport {

Strangers::Entry Strangers::enter(const std::shared_ptr<StreamConnection>& newcomer) {
  const std::lock_guard lock(mutex_);
  if (open_ >= limits_.connections)
    return {};
  Entry entry{true, nullptr};
  ++open_;
  if (strangers_.size() >= limits_.strangers && !strangers_.empty()) {
    entry.instead = strangers_.front().connection.lock();
    strangers_.pop_front();
  }
  strangers_.push_back({newcomer.get(), newcomer});
  return entry;
}

void Strangers::trust(const StreamConnection& connection) {
  const std::lock_guard lock(mutex_);
  forget(connection);
}

void Strangers::leave(const StreamConnection& connection) {
  const std::lock_guard lock(mutex_);
  forget(connection);
  --open_;
}

void Strangers::forget(const StreamConnection& connection) {
  strangers_.remove_if([&](const Stranger& stranger) { return stranger.who == &connection; });
}

} // namespace deltawire::transport
