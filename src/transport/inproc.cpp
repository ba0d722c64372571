// Connections within this process. Both ends share a Pipe; each end has queues of what its callbacks are due, drained
// by one thread at a time: the thread of the call that queued it, or the one that is draining already. A callback that
// sends makes the thread note whom to drain next, so that neither a deadlock nor a deep stack can come of it. One
// thread a network ("dw-inproc") ends what a deadline ends: attempts to connect, and close() with a slow peer.
#include "transport/guarded.hpp"
#include "transport/transport.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <pthread.h>

namespace deltawire::transport {
namespace {

using Clock = std::chrono::steady_clock;
using Connected = Network::Connected;
using Accepted = Network::Accepted;

struct Pipe;

/// An attempt to connect that waits for a listener. Whoever takes `connected` calls it, or puts it back.
struct Attempt {
  std::string address;
  std::mutex mutex;
  bool finished = false;
  Connected connected; ///< empty while taken

  [[nodiscard]] Connected take() {
    const std::lock_guard lock(mutex);
    return std::exchange(connected, {});
  }
  void put_back(Connected call) {
    const std::lock_guard lock(mutex);
    connected = std::move(call);
  }
  void finish() {
    const std::lock_guard lock(mutex);
    finished = true;
  }
  [[nodiscard]] bool is_finished() {
    const std::lock_guard lock(mutex);
    return finished;
  }
};

/// What the objects of one network share; outlives the network while they live.
class Core {
public:
  explicit Core(Framing frames) : framing(frames) {}

  const Framing framing;

  /// Between enter() and leave() a callback runs that shutdown() waits for; not entered after shutdown began.
  [[nodiscard]] bool enter() {
    const std::lock_guard lock(mutex_);
    if (down_)
      return false;
    ++busy_;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    --busy_;
    changed_.notify_all();
  }

  /// False after shutdown began.
  [[nodiscard]] bool add(const std::shared_ptr<Pipe>& pipe, int side) {
    const std::lock_guard lock(mutex_);
    return !down_ && pipes_.emplace(pipe, side).second;
  }
  void remove(const std::shared_ptr<Pipe>& pipe, int side) {
    const std::lock_guard lock(mutex_);
    pipes_.erase({pipe, side});
    changed_.notify_all();
  }
  [[nodiscard]] bool add(const std::shared_ptr<Attempt>& attempt) {
    const std::lock_guard lock(mutex_);
    return !down_ && attempts_.insert(attempt).second;
  }
  void remove(const std::shared_ptr<Attempt>& attempt) {
    const std::lock_guard lock(mutex_);
    attempts_.erase(attempt);
  }

  /// Runs `call` on the network's thread at `when`, unless shutdown comes first.
  void at(Clock::time_point when, std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    if (down_)
      return;
    timers_.emplace(when, std::move(call));
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { run(); });
      pthread_setname_np(thread_.native_handle(), "dw-inproc");
    }
    changed_.notify_all();
  }

  void shutdown(const Failure& reason);

private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!down_) {
      if (timers_.empty()) {
        changed_.wait(lock);
      } else if (const auto first = timers_.begin(); first->first > Clock::now()) {
        const auto when = first->first; // the timer may be gone when the wait ends
        changed_.wait_until(lock, when);
      } else {
        const auto call = std::move(first->second);
        timers_.erase(first);
        lock.unlock();
        call();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool down_ = false;
  int busy_ = 0;
  std::set<std::pair<std::shared_ptr<Pipe>, int>> pipes_; ///< ends that may still get callbacks
  std::set<std::shared_ptr<Attempt>> attempts_;
  std::multimap<Clock::time_point, std::function<void()>> timers_;
  std::thread thread_;
};

// A connection
// ---------------------------------------------------------------------------------------------------------------

struct Arriving {
  Incoming frame;
  SendDone done;
};

/// One end's share of a pipe. `frames` are on their way to it.
struct Side {
  std::shared_ptr<Core> core;
  std::string peer;
  Handlers handlers;
  bool started = false;
  bool closing = false;  ///< close() was called: nothing more is sent
  bool told = false;     ///< on_closed was called
  bool draining = false; ///< a thread runs callbacks of this end
  std::deque<Arriving> frames;
  std::deque<std::pair<SendDone, Result<void>>> dones;
  Failure reason; ///< once ended
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> received = 0;
};

struct Pipe : std::enable_shared_from_this<Pipe> {
  std::mutex mutex;
  bool ended = false;
  Side sides[2];

  void send(int from, Outgoing&& frame, SendDone&& done);
  void start(int side, Handlers&& handlers);
  void close(int side, std::chrono::milliseconds linger);
  void end(int side, const Failure& here, const Failure& there);

  /// Lets a thread run what is due on a side: this one, unless one does already.
  void schedule(int side);

private:
  void drain(int side);
  void deliver(int side, Arriving&& item);
  void end_locked(int side, const Failure& here, const Failure& there, std::vector<Arriving>& dropped);
  void tell_closed(int side);
};

Failure closed_here(const std::string& peer) {
  return {Code::peer_failed, fmt::format("{}: closed by this side", peer)};
}

Failure closed_there(const std::string& peer) {
  return {Code::peer_failed, fmt::format("{}: the peer closed the connection", peer)};
}

void Pipe::send(int from, Outgoing&& frame, SendDone&& done) {
  Side& mine = sides[from];
  Side& theirs = sides[1 - from];
  const std::size_t size = frame.body ? frame.body->size() : 0;
  Result<void> sound;
  if (const auto body = mine.core->framing.body_bytes(frame.header); !body)
    sound = tl::make_unexpected(body.error());
  else if (*body != size)
    sound = fail(Code::invalid_argument, "{}: frame not sent: its header says a body of {} bytes, it has {}", mine.peer,
                 *body, size);
  Arriving item;
  if (sound) {
    item.frame.header = std::move(frame.header);
    if (frame.body)
      item.frame.body = *frame.body; // the one copy, as a wire would
  }
  {
    const std::lock_guard lock(mutex);
    if (mine.told)
      return; // after on_closed there are no callbacks
    if (sound && ended)
      sound = tl::make_unexpected(mine.reason);
    else if (sound && mine.closing)
      sound = fail(Code::call_order, "{}: send after close", mine.peer);
    if (sound) {
      item.done = std::move(done);
      theirs.frames.push_back(std::move(item));
    } else if (done) {
      mine.dones.emplace_back(std::move(done), std::move(sound));
    }
  }
  schedule(1 - from);
  schedule(from);
}

void Pipe::start(int side, Handlers&& handlers) {
  {
    const std::lock_guard lock(mutex);
    if (sides[side].started)
      return;
    sides[side].handlers = std::move(handlers);
    sides[side].started = true;
  }
  schedule(side);
}

void Pipe::close(int side, std::chrono::milliseconds linger) {
  {
    const std::lock_guard lock(mutex);
    if (ended || std::exchange(sides[side].closing, true))
      return;
  }
  schedule(1 - side); // whoever drains the other end ends the pipe when all has arrived
  const std::lock_guard lock(mutex);
  if (ended)
    return;
  sides[side].core->at(Clock::now() + linger, [weak = weak_from_this(), side] {
    if (const auto pipe = weak.lock())
      pipe->end(side, closed_here(pipe->sides[side].peer), closed_there(pipe->sides[1 - side].peer));
  });
}

void Pipe::end(int side, const Failure& here, const Failure& there) {
  std::vector<Arriving> dropped; // freed without the lock
  {
    const std::lock_guard lock(mutex);
    if (ended)
      return;
    end_locked(side, here, there, dropped);
  }
  schedule(side);
  schedule(1 - side);
}

void Pipe::end_locked(int side, const Failure& here, const Failure& there, std::vector<Arriving>& dropped) {
  ended = true;
  sides[side].reason = here;
  sides[1 - side].reason = there;
  for (int to : {0, 1}) {
    Side& sender = sides[1 - to];
    for (Arriving& item : sides[to].frames) {
      if (item.done)
        sender.dones.emplace_back(std::move(item.done), tl::make_unexpected(sender.reason));
      dropped.push_back(std::move(item));
    }
    sides[to].frames.clear();
  }
}

/// Ends whose turn comes when the callback that this thread is in returns; null outside of callbacks.
thread_local std::deque<std::pair<std::shared_ptr<Pipe>, int>>* turns = nullptr;

void Pipe::schedule(int side) {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(sides[side].draining, true))
      return;
  }
  if (turns != nullptr) {
    turns->emplace_back(shared_from_this(), side);
    return;
  }
  std::deque<std::pair<std::shared_ptr<Pipe>, int>> mine;
  mine.emplace_back(shared_from_this(), side);
  turns = &mine;
  while (!mine.empty()) {
    const auto [pipe, which] = std::move(mine.front());
    mine.pop_front();
    pipe->drain(which);
  }
  turns = nullptr;
}

void Pipe::drain(int side) {
  Side& mine = sides[side];
  Side& theirs = sides[1 - side];
  for (;;) {
    std::vector<Arriving> dropped;
    std::unique_lock lock(mutex);
    if (!mine.dones.empty()) {
      const auto [done, result] = std::move(mine.dones.front());
      mine.dones.pop_front();
      lock.unlock();
      if (const auto thrown = guarded(mine.peer, [&done = done, &result = result] { done(result); }))
        end(side, *thrown, closed_there(theirs.peer));
    } else if (mine.started && !mine.frames.empty()) {
      Arriving item = std::move(mine.frames.front());
      mine.frames.pop_front();
      lock.unlock();
      deliver(side, std::move(item));
    } else if (!ended && theirs.closing && mine.frames.empty()) {
      end_locked(side, closed_there(mine.peer), closed_here(theirs.peer), dropped);
      lock.unlock();
      schedule(1 - side);
    } else if (ended && mine.started && !mine.told) {
      mine.told = true;
      lock.unlock();
      tell_closed(side);
    } else {
      const bool over = ended;
      mine.draining = false;
      lock.unlock();
      if (over)
        mine.core->remove(shared_from_this(), side);
      return;
    }
  }
}

void Pipe::deliver(int side, Arriving&& item) {
  Side& mine = sides[side];
  Side& theirs = sides[1 - side];
  const std::size_t bytes = item.frame.header.size() + item.frame.body.size();
  std::optional<Failure> broken;
  if (const auto body = mine.core->framing.body_bytes(item.frame.header); !body)
    broken = Failure{body.error().code, fmt::format("{}: {}", mine.peer, body.error().message)};
  else if (*body != item.frame.body.size())
    broken = Failure{Code::invalid_input, fmt::format("{}: a body of {} bytes where its header says {}", mine.peer,
                                                      item.frame.body.size(), *body)};
  if (!broken) {
    mine.received += bytes;
    theirs.sent += bytes;
    broken = guarded(mine.peer, [&] { mine.handlers.on_frame(std::move(item.frame)); });
  }
  if (item.done) {
    const std::lock_guard lock(mutex);
    theirs.dones.emplace_back(std::move(item.done), Result<void>{});
  }
  if (broken)
    end(side, *broken, closed_there(theirs.peer));
  schedule(1 - side);
}

void Pipe::tell_closed(int side) {
  Handlers handlers = std::move(sides[side].handlers); // what it holds on to may be us
  sides[side].handlers = {};
  if (handlers.on_closed)
    guarded(sides[side].peer, [&] { handlers.on_closed(sides[side].reason); });
}

class InprocConnection final : public Connection {
public:
  InprocConnection(std::shared_ptr<Pipe> pipe, int side) : pipe_(std::move(pipe)), side_(side) {}

  void start(Handlers handlers) override {
    // After shutdown no callback runs, not even that the connection is closed.
    if (!mine().core->enter())
      return;
    pipe_->start(side_, std::move(handlers));
    mine().core->leave();
  }
  void send(Outgoing frame, SendDone done) override {
    if (!mine().core->enter())
      return;
    pipe_->send(side_, std::move(frame), std::move(done));
    mine().core->leave();
  }
  void close(std::chrono::milliseconds linger) override { pipe_->close(side_, linger); }
  void abort(const Failure& reason) override { pipe_->end(side_, reason, closed_there(pipe_->sides[1 - side_].peer)); }
  [[nodiscard]] std::string peer() const override { return mine().peer; }
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept override { return mine().sent; }
  [[nodiscard]] std::uint64_t bytes_received() const noexcept override { return mine().received; }

private:
  [[nodiscard]] Side& mine() const noexcept { return pipe_->sides[side_]; }

  std::shared_ptr<Pipe> pipe_;
  int side_;
};

// Addresses
// ---------------------------------------------------------------------------------------------------------------

/// A name that is listened on. Callbacks of `accepted` that run are counted, so that stop() can wait for them.
class Door {
public:
  Door(std::string address, std::shared_ptr<Core> owner, Accepted accepted)
    : name(std::move(address)), core(std::move(owner)), accepted_(std::move(accepted)) {}

  const std::string name;
  const std::shared_ptr<Core> core;

  /// False when it no longer accepts.
  [[nodiscard]] bool accept(const std::shared_ptr<Pipe>& pipe, int side) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_ || !core->enter())
        return false;
      callers_.push_back(std::this_thread::get_id());
    }
    const bool added = core->add(pipe, side);
    if (added)
      if (const auto thrown = guarded(name, [&] { accepted_(std::make_shared<InprocConnection>(pipe, side)); }))
        pipe->end(side, *thrown, closed_there(pipe->sides[1 - side].peer));
    core->leave();
    const std::lock_guard lock(mutex_);
    callers_.erase(std::find(callers_.begin(), callers_.end(), std::this_thread::get_id()));
    changed_.notify_all();
    return added;
  }

  /// Afterwards no callback runs, but one that calls this.
  void stop() {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    changed_.wait(lock, [&] {
      return std::all_of(callers_.begin(), callers_.end(), [](auto id) { return id == std::this_thread::get_id(); });
    });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::vector<std::thread::id> callers_;
  Accepted accepted_;
};

/// Who listens where in this process, and who waits for it.
struct Directory {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Door>> doors;
  std::multimap<std::string, std::pair<std::shared_ptr<Core>, std::shared_ptr<Attempt>>> waiting;
  std::uint64_t ports = 0;       ///< given out for port 0
  std::uint64_t connections = 0; ///< to tell peers apart in messages

  static Directory& instance() {
    static Directory directory;
    return directory;
  }
};

/// Joins an attempt and a listener; false when the listener is gone (the attempt goes on waiting).
bool join(const std::shared_ptr<Core>& core, Attempt& attempt, const std::shared_ptr<Door>& door,
          std::uint64_t number) {
  const auto pipe = std::make_shared<Pipe>();
  pipe->sides[0].core = core;
  pipe->sides[0].peer = "inproc:" + door->name;
  pipe->sides[1].core = door->core;
  pipe->sides[1].peer = fmt::format("inproc:{}#{}", door->name, number);
  if (!core->enter())
    return true;       // shutdown ends the attempt
  bool settled = true; // also when its deadline was faster, or shutdown is
  if (Connected connected = attempt.take()) {
    if (!core->add(pipe, 0)) {
      attempt.put_back(std::move(connected));
    } else if (!door->accept(pipe, 1)) {
      core->remove(pipe, 0);
      attempt.put_back(std::move(connected));
      settled = false;
    } else {
      attempt.finish();
      if (const auto thrown = guarded(attempt.address, [&] { connected(std::make_shared<InprocConnection>(pipe, 0)); }))
        pipe->end(0, *thrown, closed_there(pipe->sides[1].peer));
    }
  }
  core->leave();
  return settled;
}

class InprocListener final : public Listener {
public:
  explicit InprocListener(std::shared_ptr<Door> door) : door_(std::move(door)) {}
  InprocListener(const InprocListener&) = delete;
  InprocListener& operator=(const InprocListener&) = delete;
  ~InprocListener() override {
    {
      auto& directory = Directory::instance();
      const std::lock_guard lock(directory.mutex);
      if (const auto it = directory.doors.find(door_->name); it != directory.doors.end() && it->second == door_)
        directory.doors.erase(it);
    }
    door_->stop();
  }
  [[nodiscard]] std::string address() const override { return door_->name; }

private:
  std::shared_ptr<Door> door_;
};

void Core::shutdown(const Failure& reason) {
  std::set<std::shared_ptr<Attempt>> attempts;
  std::set<std::pair<std::shared_ptr<Pipe>, int>> pipes;
  {
    const std::lock_guard lock(mutex_);
    down_ = true;
    attempts.swap(attempts_);
    pipes = pipes_;
    changed_.notify_all();
  }
  {
    auto& directory = Directory::instance();
    const std::lock_guard lock(directory.mutex);
    std::erase_if(directory.doors, [&](const auto& door) { return door.second->core.get() == this; });
    std::erase_if(directory.waiting, [&](const auto& waiting) { return waiting.second.first.get() == this; });
  }
  for (const auto& [pipe, side] : pipes)
    pipe->end(side, reason, closed_there(pipe->sides[1 - side].peer));
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return busy_ == 0 && pipes_.empty(); });
  }
  for (const auto& attempt : attempts)
    if (const Connected connected = attempt->take())
      guarded(attempt->address, [&] { connected(tl::make_unexpected(reason)); });
  if (thread_.joinable())
    thread_.join();
  timers_.clear();
}

class InprocNetwork final : public Network {
public:
  explicit InprocNetwork(Framing framing) : core_(std::make_shared<Core>(framing)) {}
  InprocNetwork(const InprocNetwork&) = delete;
  InprocNetwork& operator=(const InprocNetwork&) = delete;
  ~InprocNetwork() override { shutdown({Code::peer_failed, "the network was shut down"}); }

  [[nodiscard]] Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted,
                                                         Refused) override {
    auto& directory = Directory::instance();
    std::shared_ptr<Door> door;
    std::vector<std::pair<std::shared_ptr<Core>, std::shared_ptr<Attempt>>> waiting;
    {
      const std::lock_guard lock(directory.mutex);
      std::string name = address;
      if (name.ends_with(":0"))
        do
          name = fmt::format("{}{}", address.substr(0, address.size() - 1), ++directory.ports);
        while (directory.doors.contains(name));
      door = std::make_shared<Door>(name, core_, std::move(accepted));
      if (!directory.doors.emplace(name, door).second)
        return fail(Code::address_in_use, "inproc:{}: somebody in this process listens on it already", name);
      const auto [first, last] = directory.waiting.equal_range(name);
      for (auto it = first; it != last; ++it)
        waiting.push_back(it->second);
      directory.waiting.erase(first, last);
    }
    auto listener = std::make_unique<InprocListener>(door);
    for (const auto& [core, attempt] : waiting)
      try_to_join(core, attempt);
    return listener;
  }

  [[nodiscard]] Result<std::unique_ptr<Listener>> adopt(int, Accepted, Refused) override {
    return fail(Code::unsupported, "inproc: there are no sockets to adopt: use tcp");
  }

  void connect(const std::string& address, Clock::time_point deadline, Connected connected) override {
    const auto attempt = std::make_shared<Attempt>();
    attempt->address = address;
    attempt->connected = std::move(connected);
    if (!core_->add(attempt))
      return;
    try_to_join(core_, attempt);
    if (attempt->is_finished())
      return;
    core_->at(deadline, [core = std::weak_ptr(core_), attempt] {
      if (const auto alive = core.lock())
        give_up(alive, attempt);
    });
  }

  void shutdown(const Failure& reason) override {
    if (!down_.exchange(true))
      core_->shutdown(reason);
  }

private:
  /// Connects, or leaves the attempt with those who wait.
  static void try_to_join(const std::shared_ptr<Core>& core, const std::shared_ptr<Attempt>& attempt) {
    auto& directory = Directory::instance();
    for (;;) {
      std::shared_ptr<Door> door;
      std::uint64_t number = 0;
      {
        const std::lock_guard lock(directory.mutex);
        const auto it = directory.doors.find(attempt->address);
        if (it == directory.doors.end()) {
          directory.waiting.emplace(attempt->address, std::pair(core, attempt));
          return;
        }
        door = it->second;
        number = ++directory.connections;
      }
      if (join(core, *attempt, door, number)) {
        core->remove(attempt);
        return;
      }
      const std::lock_guard lock(directory.mutex); // a door that closed: forget it, and look again
      if (const auto it = directory.doors.find(attempt->address); it != directory.doors.end() && it->second == door)
        directory.doors.erase(it);
    }
  }

  static void give_up(const std::shared_ptr<Core>& core, const std::shared_ptr<Attempt>& attempt) {
    if (attempt->is_finished() || !core->enter())
      return; // shutdown ends it
    if (const Connected connected = attempt->take()) {
      attempt->finish();
      {
        auto& directory = Directory::instance();
        const std::lock_guard lock(directory.mutex);
        std::erase_if(directory.waiting, [&](const auto& waiting) { return waiting.second.second == attempt; });
      }
      core->remove(attempt);
      guarded(attempt->address, [&] {
        connected(fail(Code::timed_out, "inproc:{}: nobody listened on it before the deadline", attempt->address));
      });
    } else { // a listener is taking it at this moment: see what becomes of it
      core->at(Clock::now() + std::chrono::milliseconds(1), [weak = std::weak_ptr(core), attempt] {
        if (const auto alive = weak.lock())
          give_up(alive, attempt);
      });
    }
    core->leave();
  }

  std::shared_ptr<Core> core_;
  std::atomic<bool> down_ = false;
};

} // namespace

std::unique_ptr<Network> make_inproc_network(Framing framing) {
  return std::make_unique<InprocNetwork>(framing);
}

} // namespace deltawire::transport
