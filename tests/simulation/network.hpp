// The simulated network and its clock. Every stage and every direction of a connection is a queue that keeps its order;
// which queue goes on next is drawn. Time stands still while anything can happen, but for what the world adds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace deltawire::simulation {

using Nanoseconds = std::int64_t;

class Network;

/// In order, and each event alone. Not movable: the network knows it by its address.
class Queue {
public:
  explicit Queue(Network& network) : network_(network) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() { clear(); }

  void post(std::function<void()> event);
  void clear() { keep(0); }
  /// Forgets all but the first `count` events.
  void keep(std::size_t count);
  void freeze(Nanoseconds until) { frozen_until_ = std::max(frozen_until_, until); }
  void thaw() { frozen_until_ = 0; }
  [[nodiscard]] std::size_t size() const noexcept { return events_.size(); }

private:
  friend class Network;
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  Network& network_;
  std::deque<std::function<void()>> events_;
  Nanoseconds frozen_until_ = 0;
  std::size_t place_ = nowhere; ///< in Network::waiting_
};

class Network {
public:
  explicit Network(std::mt19937_64 random) : random_(random) {}

  /// Below `end`, which is not 0.
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  std::mt19937_64& random() noexcept { return random_; }
  [[nodiscard]] Nanoseconds now() const noexcept { return now_; }

  /// `event` happens at `time` or soon after.
  void at(Nanoseconds time, std::function<void()> event) { timers_.emplace(time, std::move(event)); }

  /// One event of a queue that is not frozen; false where there is none.
  bool step() {
    if (waiting_.empty())
      return false;
    std::size_t place = below(waiting_.size());
    for (std::size_t tries = 0; !calm_ && waiting_[place]->frozen_until_ > now_; ++tries) {
      if (tries == waiting_.size())
        return false;
      place = (place + 1) % waiting_.size();
    }
    Queue& queue = *waiting_[place];
    const std::function<void()> event = std::move(queue.events_.front());
    queue.events_.pop_front();
    if (queue.events_.empty())
      remove(queue);
    event(); // may end the queue
    return true;
  }

  void pass(Nanoseconds time) {
    now_ += time;
    while (!timers_.empty() && timers_.begin()->first <= now_) {
      const std::function<void()> event = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      event();
    }
  }

  /// From now on nothing stands still.
  void calm_down() noexcept { calm_ = true; }

  /// Something will happen by itself as time passes.
  [[nodiscard]] bool waits() const noexcept { return !timers_.empty() || !waiting_.empty(); }

private:
  friend class Queue;
  void add(Queue& queue) {
    queue.place_ = waiting_.size();
    waiting_.push_back(&queue);
  }
  void remove(Queue& queue) {
    waiting_[queue.place_] = waiting_.back();
    waiting_[queue.place_]->place_ = queue.place_;
    waiting_.pop_back();
    queue.place_ = Queue::nowhere;
  }

  std::mt19937_64 random_;
  Nanoseconds now_ = 1;
  bool calm_ = false;
  std::vector<Queue*> waiting_; ///< those with events
  std::multimap<Nanoseconds, std::function<void()>> timers_;
};

inline void Queue::post(std::function<void()> event) {
  if (events_.empty())
    network_.add(*this);
  events_.push_back(std::move(event));
}

inline void Queue::keep(std::size_t count) {
  if (events_.size() <= count)
    return;
  events_.resize(count);
  if (events_.empty())
    network_.remove(*this);
}

} // namespace deltawire::simulation
