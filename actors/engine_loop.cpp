#include "actors/engine_loop.hpp"

#include <utility>

namespace deltawire::actors {

void EngineLoop::offer(Version version) {
  const std::lock_guard lock(mutex_);
  turn_.offer(version);
}

void EngineLoop::served(std::vector<Change> changes) {
  const std::lock_guard lock(mutex_);
  end_ = std::move(changes);
  turn_.served();
  ended_.notify_all();
}

void EngineLoop::failed(const Failure& why) {
  const std::lock_guard lock(mutex_);
  if (turn_.committing())
    end_ = tl::make_unexpected(why);
  turn_.failed(why);
  ended_.notify_all();
}

bool EngineLoop::committing() {
  const std::lock_guard lock(mutex_);
  return turn_.committing();
}

std::optional<Version> EngineLoop::poll() {
  const std::lock_guard lock(mutex_);
  return turn_.poll();
}

Result<void> EngineLoop::commit(Version version) {
  const std::lock_guard lock(mutex_);
  return turn_.commit(version);
}

Result<std::vector<Change>> EngineLoop::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return !turn_.committing(); });
  return std::exchange(end_, {});
}

} // namespace deltawire::actors
