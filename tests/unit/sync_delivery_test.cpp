// Contract of sync/root_delivery.hpp together with sync/worker.hpp: deliveries over a simulated network with delays,
// with every kind of fault at any point. What is promised: a version is committed only when every worker has staged it,
// a replica never serves two versions, a delivery ends exactly once and always, a failure names the worker, and nobody
// but the faulty one is given up.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/root_delivery.hpp"
#include "sync/worker.hpp"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <map>
#include <set>

namespace {

using namespace deltawire;
using sync::Nanoseconds;
using sync::RootDelivery;
using sync::WorkerProtocol;
using sync::WorkerState;
using Actions = RootDelivery::Actions;

constexpr Nanoseconds stall = 8'000'000'000;
constexpr Nanoseconds timeout = 30 * stall;

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

enum class Fault : std::uint8_t {
  none,
  lost,            ///< a worker's connection breaks
  silent,          ///< a worker stops, its connection stays
  fails,           ///< a worker says Failed
  trainer_aborts,  ///< the trainer's side cannot go on
  trainer_pauses,  ///< longer than stall, between two flushes
  trainer_forgets, ///< never seals
  duplicate_flush, ///< a flush arrives twice
  late_failure,    ///< a Failed about an earlier delivery
  ready_again,     ///< from here on: messages that no honest worker sends
  staged_early,
  staged_other_bytes,
  staged_other_flush,
  applied_early,
  applied_other_version,
  released_early,
  undone_unasked,
  repeated_failures, ///< Failed again and again, and nothing else
  count,
};
constexpr std::array<const char*, static_cast<std::size_t>(Fault::count)> fault_names{"none",
                                                                                      "lost",
                                                                                      "silent",
                                                                                      "fails",
                                                                                      "trainer aborts",
                                                                                      "trainer pauses",
                                                                                      "trainer forgets",
                                                                                      "duplicate flush",
                                                                                      "late failure",
                                                                                      "Ready again",
                                                                                      "Staged early",
                                                                                      "Staged with other bytes",
                                                                                      "FlushStaged of another flush",
                                                                                      "Applied early",
                                                                                      "Applied with another version",
                                                                                      "Released early",
                                                                                      "Undone unasked",
                                                                                      "Failed again and again"};

constexpr bool is_lie(Fault fault) {
  return fault >= Fault::ready_again;
}
constexpr bool must_succeed(Fault fault) {
  return fault == Fault::none || fault == Fault::trainer_pauses || fault == Fault::duplicate_flush ||
         fault == Fault::late_failure;
}

struct Counts {
  std::uint64_t deliveries = 0, committed = 0, failed = 0, partly = 0, messages = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(Fault::count)> fired{}, led_to_failure{};
};

struct Peer {
  WorkerProtocol protocol;
  bool dead = false;   ///< its connection is broken
  bool silent = false; ///< neither receives nor sends
  bool staged = false; ///< it has verified the running delivery
  bool applied = false;
  std::uint64_t memory = 0;                            ///< the version that memory holds; 0 = nothing whole
  Nanoseconds control_down = 0, data_down = 0, up = 0; ///< when the last message of a channel arrives
};

class World {
public:
  World(std::uint64_t schedule, Counts& counts)
    : random_(test::generator(7400000 + schedule)), counts_(counts),
      per_replica_(static_cast<std::uint32_t>(uniform(random_, 1, 3))), peers_(per_replica_ * uniform(random_, 1, 3)),
      root_(static_cast<std::uint32_t>(peers_.size()), per_replica_, stall, timeout) {
    now_ = static_cast<Nanoseconds>(uniform(random_, 1, 1'000'000));
    slowest_ = uniform(random_, 0, 1) ? stall / 10 : stall / 1000;
    schedule_tick();
  }

  void run() {
    std::uint64_t version = 0;
    for (std::uint64_t deliveries = uniform(random_, 1, 5); deliveries > 0; --deliveries) {
      deliver(++version);
      ++counts_.deliveries;
      const bool someone_lost =
        std::any_of(root_.records().begin(), root_.records().end(), [](const auto& record) { return record.lost; });
      std::set<std::uint64_t> versions;
      for (const auto& record : root_.records())
        versions.insert(record.version);
      counts_.partly += versions.size() > 1 ? 1 : 0;
      // One that fell silent after its last word would be a fault of the next delivery.
      if (!someone_lost && peers_[guilty_].silent)
        return;
      if (someone_lost || versions.size() > 1 || lied_) {
        refused_delivery(++version);
        return;
      }
    }
  }

private:
  // The network: events in order of time; each channel keeps its order.
  void at(Nanoseconds time, std::function<void()> event) { events_.emplace(time, std::move(event)); }
  Nanoseconds soon(Nanoseconds& channel) {
    channel = std::max(channel, now_ + static_cast<Nanoseconds>(uniform(random_, 0, slowest_)));
    return channel;
  }
  void schedule_tick() {
    at(now_ + stall / 10, [this] {
      act(root_.tick(now_));
      schedule_tick();
    });
  }

  template <class Message>
  void say(std::uint32_t w, Message message) {
    Peer& peer = peers_[w];
    if (peer.dead || peer.silent)
      return;
    at(soon(peer.up), [this, w, message] {
      if (peers_[w].dead)
        return;
      ++counts_.messages;
      maybe_fault();
      act(root_.on(w, message, now_));
    });
  }

  void act(const Actions& actions) {
    for (const auto& [w, message] : actions.send) {
      if (std::holds_alternative<wire::Commit>(message))
        for (std::uint32_t each = 0; each < peers_.size(); ++each)
          if (!peers_[each].staged && !(lied_ && each == guilty_))
            FAIL("version " << target_ << " is committed before worker " << each << " has staged it");
      if (std::holds_alternative<wire::Release>(message)) {
        const std::uint32_t first = w / per_replica_ * per_replica_;
        for (std::uint32_t member = first; member < first + per_replica_; ++member)
          if (!peers_[member].applied && !(lied_ && member == guilty_))
            FAIL("worker " << w << " is released before worker " << member << " has applied");
      }
      const std::uint32_t to = w;
      at(soon(peers_[to].control_down), [this, to, message = message] {
        if (peers_[to].dead || peers_[to].silent)
          return;
        ++counts_.messages;
        maybe_fault();
        if (!peers_[to].dead && !peers_[to].silent)
          std::visit([this, to](const auto& each) { receive(to, each); }, message);
        check_replicas();
      });
    }
    if (actions.may_send_flushes) {
      REQUIRE_FALSE(sending_);
      sending_ = true;
      trainer_goes_on();
    }
    if (actions.flush_credit) {
      REQUIRE(on_wire_);
      on_wire_ = false;
      trainer_goes_on();
    }
    overs_ += actions.over ? 1 : 0;
    if (actions.over) {
      REQUIRE_FALSE(root_.running());
    }
  }

  // The trainer's side: flushes one at a time, then the manifest.
  void trainer_goes_on() {
    Nanoseconds wait = static_cast<Nanoseconds>(uniform(random_, 0, slowest_));
    if (fault_ == Fault::trainer_pauses && uniform(random_, 0, 1)) {
      wait = 3 * stall;
      fired();
    }
    const std::uint64_t delivery = delivery_;
    at(now_ + wait, [this, delivery] {
      if (delivery != delivery_ || !root_.running() || sealed_ || on_wire_)
        return;
      if (sequence_ < flushes_) {
        const std::uint64_t bytes = uniform(random_, 1, 1000);
        const std::uint64_t sequence = sequence_++;
        root_.flush_sent(sequence, bytes);
        bytes_sent_ += bytes;
        on_wire_ = true;
        for (std::uint32_t w = 0; w < peers_.size(); ++w) {
          const int copies = fault_ == Fault::duplicate_flush && uniform(random_, 0, 2) == 0 ? 2 : 1;
          if (copies == 2)
            fired();
          for (int copy = 0; copy < copies; ++copy)
            at(soon(peers_[w].data_down),
               [this, w, delivery, sequence, bytes] { flush(w, delivery, sequence, bytes); });
        }
        // The manifest may go while the last flush is on the wire.
        if (sequence_ == flushes_ && uniform(random_, 0, 1))
          seal();
      } else {
        seal();
      }
    });
  }
  void seal() {
    if (fault_ == Fault::trainer_forgets) {
      fired();
      return;
    }
    sealed_ = true;
    act(root_.seal({{0, 1}}, now_));
  }

  // The worker's side: what an Applier does.
  void failed(std::uint32_t w, const Failure& failure) {
    say(w, wire::Failed{failure.code, failure.message, peers_[w].protocol.delivery()});
  }
  void flush(std::uint32_t w, std::uint64_t delivery, std::uint64_t sequence, std::uint64_t bytes) {
    Peer& peer = peers_[w];
    if (peer.dead || peer.silent)
      return;
    maybe_fault();
    if (peer.dead || peer.silent)
      return;
    const auto fresh = peer.protocol.flush(delivery, sequence, bytes);
    if (!fresh) {
      // Data that an undo has overtaken.
      if (fresh.error().code != Code::call_order)
        failed(w, fresh.error());
      return;
    }
    std::uint64_t acknowledged = sequence;
    if (lies_now(w, Fault::staged_other_flush))
      acknowledged += 1 + uniform(random_, 0, 3);
    say(w, wire::FlushStaged{delivery, acknowledged, bytes});
    staged_if_complete(w);
  }
  void staged_if_complete(std::uint32_t w) {
    Peer& peer = peers_[w];
    if (!peer.protocol.complete())
      return;
    wire::Staged staged = peer.protocol.verified();
    peer.staged = true;
    if (lies_now(w, Fault::staged_other_bytes))
      ++staged.bytes;
    say(w, staged);
  }
  void receive(std::uint32_t w, const wire::Begin& message) {
    const auto ready = peers_[w].protocol.begin(message);
    if (!ready)
      return failed(w, ready.error());
    peers_[w].staged = peers_[w].applied = false;
    if (peers_[w].protocol.in_place())
      peers_[w].memory = 0;
    say(w, *ready);
  }
  void receive(std::uint32_t w, const wire::Seal& message) {
    const auto sealed = peers_[w].protocol.seal(message);
    if (!sealed)
      return failed(w, sealed.error());
    staged_if_complete(w);
  }
  void receive(std::uint32_t w, const wire::Commit& message) {
    const auto committed = peers_[w].protocol.commit(message);
    if (!committed)
      return failed(w, committed.error());
    // Pausing and exchanging take their time.
    at(now_ + static_cast<Nanoseconds>(uniform(random_, 0, slowest_)), [this, w, message] {
      Peer& peer = peers_[w];
      if (peer.dead || peer.silent || peer.protocol.delivery() != message.delivery ||
          peer.protocol.state() != WorkerState::in_doubt)
        return;
      peer.memory = peer.protocol.target();
      peer.applied = true;
      peer.protocol.applied();
      wire::Applied applied;
      applied.delivery = message.delivery;
      applied.version = peer.protocol.target() + (lies_now(w, Fault::applied_other_version) ? 1 : 0);
      say(w, applied);
    });
  }
  void receive(std::uint32_t w, const wire::Release& message) {
    const auto released = peers_[w].protocol.release(message);
    if (!released)
      return failed(w, released.error());
    say(w, *released);
  }
  void receive(std::uint32_t w, const wire::Undo& message) {
    Peer& peer = peers_[w];
    const auto undoing = peer.protocol.undo(message);
    if (!undoing) {
      if (!(lied_ && w == guilty_))
        FAIL("worker " << w << " is told to undo what it cannot: " << undoing.error().message);
      return failed(w, undoing.error());
    }
    if (undoing->exchange_back)
      peer.memory = peer.protocol.version();
    if (peer.protocol.state() == WorkerState::dirty)
      peer.memory = 0;
    say(w, undoing->answer);
  }

  /// Members of a replica that serve serve the same version, and it is what their memory holds.
  void check_replicas() {
    for (std::uint32_t first = 0; first < peers_.size(); first += per_replica_) {
      std::optional<std::uint64_t> served;
      for (std::uint32_t w = first; w < first + per_replica_; ++w) {
        const Peer& peer = peers_[w];
        const WorkerState state = peer.protocol.state();
        if (peer.dead || (lied_ && w == guilty_) || (state != WorkerState::serving && state != WorkerState::staging))
          continue;
        if (peer.memory != peer.protocol.version())
          FAIL("worker " << w << " serves version " << peer.protocol.version() << " with memory of " << peer.memory);
        if (served.value_or(peer.memory) != peer.memory)
          FAIL("one replica serves versions " << *served << " and " << peer.memory);
        served = peer.memory;
      }
    }
  }

  // Faults.
  void fired() {
    if (!std::exchange(fired_, true))
      ++counts_.fired[static_cast<std::size_t>(fault_)];
  }
  bool lies_now(std::uint32_t w, Fault fault) {
    if (fault_ != fault || fired_ || w != guilty_)
      return false;
    lied_ = true;
    fired();
    return true;
  }
  /// After a random number of messages.
  void maybe_fault() {
    if (fired_ || fault_after_-- != 0)
      return;
    const std::uint32_t w = guilty_;
    Peer& peer = peers_[w];
    switch (fault_) {
    case Fault::lost:
      peer.dead = true;
      at(now_ + static_cast<Nanoseconds>(uniform(random_, 0, slowest_)), [this, w] {
        act(root_.lost(w, Failure{Code::peer_failed, fmt::format("worker {} hung up", w)}, now_));
      });
      break;
    case Fault::silent:
      peer.silent = true;
      break;
    case Fault::fails:
      say(w, wire::Failed{Code::internal, "out of memory", delivery_});
      break;
    case Fault::trainer_aborts:
      act(root_.abort(Failure{Code::peer_failed, "rank 2 hung up"}, now_));
      break;
    case Fault::late_failure:
      if (delivery_ == 1)
        return;
      say(w, wire::Failed{Code::internal, "late", delivery_ - 1});
      break;
    case Fault::ready_again:
      lied_ = true;
      say(w, wire::Ready{delivery_, 0});
      break;
    case Fault::staged_early:
      lied_ = true;
      say(w, wire::Staged{delivery_, bytes_sent_});
      break;
    case Fault::applied_early:
      lied_ = true;
      {
        wire::Applied applied;
        applied.delivery = delivery_;
        applied.version = target_;
        say(w, applied);
      }
      break;
    case Fault::released_early:
      lied_ = true;
      say(w, wire::Released{delivery_, target_, 0});
      break;
    case Fault::undone_unasked:
      lied_ = true;
      say(w, wire::Undone{delivery_, 0});
      break;
    case Fault::repeated_failures:
      lied_ = true;
      repeat_failure(w, delivery_);
      break;
    default:
      return;
    }
    fired();
  }
  void repeat_failure(std::uint32_t w, std::uint64_t delivery) {
    peers_[w].silent = false;
    say(w, wire::Failed{Code::internal, "again", delivery});
    peers_[w].silent = true;
    at(now_ + stall / 3, [this, w, delivery] {
      if (delivery == delivery_ && root_.running())
        repeat_failure(w, delivery);
    });
  }
  void until_over() {
    const Nanoseconds deadline = now_ + timeout + 4 * stall;
    while (overs_ == 0) {
      if (now_ > deadline)
        FAIL("delivery " << delivery_ << " does not end");
      const auto next = events_.begin();
      now_ = next->first;
      const std::function<void()> event = std::move(next->second);
      events_.erase(next);
      event();
    }
  }
  /// What is on its way arrives: nothing of it may revive the delivery.
  void drain() {
    const Nanoseconds end = now_ + stall;
    while (!events_.empty() && events_.begin()->first <= end) {
      const auto next = events_.begin();
      now_ = next->first;
      const std::function<void()> event = std::move(next->second);
      events_.erase(next);
      event();
    }
    REQUIRE(overs_ == 1);
    REQUIRE_FALSE(root_.running());
  }

  void start(std::uint64_t target) {
    ++delivery_;
    target_ = target;
    sequence_ = bytes_sent_ = 0;
    sending_ = on_wire_ = sealed_ = fired_ = false;
    overs_ = 0;
    flushes_ = uniform(random_, 0, 4);
    begun_ = now_;
  }

  void deliver(std::uint64_t target) {
    start(target);
    fault_ = uniform(random_, 0, 2) == 0
               ? Fault::none
               : static_cast<Fault>(uniform(random_, 0, static_cast<std::uint64_t>(Fault::count) - 1));
    guilty_ = static_cast<std::uint32_t>(uniform(random_, 0, peers_.size() - 1));
    fault_after_ = uniform(random_, 0, peers_.size() * (9 + 2 * flushes_));
    const bool seed = root_.records()[0].version == 0;
    std::vector<std::uint64_t> before;
    for (const auto& record : root_.records())
      before.push_back(record.version);
    INFO("delivery " << delivery_ << ", fault: " << fault_names[static_cast<std::size_t>(fault_)] << ", worker "
                     << guilty_);
    act(root_.begin(delivery_, seed, target, now_));
    until_over();
    const Nanoseconds took = now_ - begun_;
    drain();

    const auto& records = root_.records();
    const bool failed = root_.failure().has_value();
    if (!failed) {
      ++counts_.committed;
      for (std::uint32_t w = 0; w < peers_.size(); ++w) {
        REQUIRE(records[w].version == target);
        REQUIRE(records[w].digest_ok);
        if ((lied_ && w == guilty_) || peers_[w].dead || peers_[w].silent)
          continue;
        REQUIRE(peers_[w].protocol.state() == WorkerState::serving);
        REQUIRE(peers_[w].memory == target);
      }
    } else {
      ++counts_.failed;
      ++counts_.led_to_failure[static_cast<std::size_t>(fault_)];
      CAPTURE(root_.failure()->message);
      REQUIRE(fired_);
      REQUIRE_FALSE(must_succeed(fault_));
      if (fault_ == Fault::trainer_aborts)
        REQUIRE(root_.failure()->message == "rank 2 hung up");
      else if (fault_ == Fault::trainer_forgets)
        REQUIRE_THAT(root_.failure()->message, test::contains("update.timeout"));
      else
        REQUIRE_THAT(root_.failure()->message, test::contains(fmt::format("worker {}", guilty_)));
      for (std::uint32_t w = 0; w < peers_.size(); ++w) {
        const Peer& peer = peers_[w];
        if (w == guilty_ && (lied_ || peer.dead || peer.silent))
          continue;
        // All that are left serve what the root believes: the base, or the target after a release.
        REQUIRE(records[w].version == peer.protocol.version());
        REQUIRE((records[w].version == before[w] || records[w].version == target));
        REQUIRE(peer.memory == peer.protocol.version());
        const WorkerState state = peer.protocol.state();
        if (peer.memory != 0)
          REQUIRE(state == WorkerState::serving);
        else
          REQUIRE((state == WorkerState::dirty || state == WorkerState::empty));
      }
      // An abort is over within a stall, ticks included, after what caused it.
      if (fault_ != Fault::trainer_forgets && fault_ != Fault::silent)
        REQUIRE(took < 8 * stall);
    }
    for (std::uint32_t w = 0; w < peers_.size(); ++w)
      if (records[w].lost)
        REQUIRE((w == guilty_ && !must_succeed(fault_)));
  }

  /// After a loss, or with replicas at different versions, nothing is delivered and it is over all the same.
  void refused_delivery(std::uint64_t target) {
    start(target);
    fault_ = Fault::none;
    std::set<std::uint64_t> versions;
    bool someone_lost = false;
    for (const auto& record : root_.records()) {
      versions.insert(record.version);
      someone_lost = someone_lost || record.lost;
    }
    if (!someone_lost && versions.size() == 1)
      return;
    const bool seed = *versions.begin() == 0 && versions.size() == 1;
    act(root_.begin(delivery_, seed, target, now_));
    if (overs_ == 0)
      until_over();
    drain();
    REQUIRE(root_.failure());
    REQUIRE_THAT(root_.failure()->message, test::contains("worker "));
    for (const auto& record : root_.records())
      REQUIRE(record.version != target);
  }

  std::mt19937_64 random_;
  Counts& counts_;
  std::uint32_t per_replica_;
  std::vector<Peer> peers_;
  RootDelivery root_;
  std::multimap<Nanoseconds, std::function<void()>> events_;
  Nanoseconds now_ = 0, begun_ = 0;
  Nanoseconds slowest_ = 0;
  std::uint64_t delivery_ = 0, target_ = 0, sequence_ = 0, flushes_ = 0, bytes_sent_ = 0;
  bool sending_ = false, on_wire_ = false, sealed_ = false;
  std::uint64_t overs_ = 0;
  Fault fault_ = Fault::none;
  std::uint32_t guilty_ = 0;
  std::uint64_t fault_after_ = 0;
  bool fired_ = false, lied_ = false;
};

/// The messages of an Actions of one kind, by worker.
template <class Message>
std::vector<std::uint32_t> to_whom(const Actions& actions) {
  std::vector<std::uint32_t> workers;
  for (const auto& [w, message] : actions.send)
    if (std::holds_alternative<Message>(message))
      workers.push_back(w);
  return workers;
}
using Workers = std::vector<std::uint32_t>;

wire::Applied applied_of(std::uint64_t delivery, std::uint64_t version) {
  wire::Applied applied;
  applied.delivery = delivery;
  applied.version = version;
  return applied;
}

/// Two replicas of one worker (or one of two), delivery 1 to version 1, up to the commits; time stands at 0.
RootDelivery committing(std::uint32_t workers, std::uint32_t per_replica) {
  RootDelivery root(workers, per_replica, stall, timeout);
  (void)root.begin(1, true, 1, 0);
  for (std::uint32_t w = 0; w < workers; ++w)
    (void)root.on(w, wire::Ready{1, 0}, 0);
  (void)root.seal({}, 0);
  Actions actions;
  for (std::uint32_t w = 0; w < workers; ++w)
    actions = root.on(w, wire::Staged{1, 0}, 0);
  REQUIRE(to_whom<wire::Commit>(actions).size() == workers);
  return root;
}

} // namespace

TEST_CASE("deliveries over a slow network end once, whole or not at all a replica, whatever fails") {
  constexpr std::uint64_t schedules = 6000;
  CAPTURE(test::seed());
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    CAPTURE(schedule);
    World(schedule, counts).run();
  }
  fmt::print(
    "delivery: seed {}, {} schedules, {} deliveries, {} messages; {} committed, {} failed, {} left replicas at "
    "different versions\n",
    test::seed(), schedules, counts.deliveries, counts.messages, counts.committed, counts.failed, counts.partly);
  for (std::size_t fault = 1; fault < counts.fired.size(); ++fault) {
    CAPTURE(fault_names[fault]);
    fmt::print("  {:<30} {:>5} times, failed the delivery {:>5} times\n", fault_names[fault], counts.fired[fault],
               counts.led_to_failure[fault]);
    REQUIRE(counts.fired[fault] > 50);
    if (must_succeed(static_cast<Fault>(fault)))
      REQUIRE(counts.led_to_failure[fault] == 0);
    else if (static_cast<Fault>(fault) != Fault::undone_unasked)
      REQUIRE(counts.led_to_failure[fault] > 0);
  }
}

TEST_CASE("a release is never taken back: an abort undoes the others and waits for its answer") {
  RootDelivery root = committing(2, 1);
  REQUIRE(to_whom<wire::Release>(root.on(0, applied_of(1, 1), 1)) == Workers{0});
  const Actions aborted = root.on(1, wire::Failed{Code::internal, "out of memory", 1}, 2);
  REQUIRE(to_whom<wire::Undo>(aborted) == Workers{1});
  REQUIRE_FALSE(root.on(1, wire::Undone{1, 0}, 3).over);
  REQUIRE_FALSE(root.on(0, wire::Undone{1, 0}, 4).over); // it cannot undo any more
  REQUIRE(root.on(0, wire::Released{1, 1, 7}, 5).over);
  REQUIRE(root.records()[0].version == 1);
  REQUIRE(root.records()[0].pause_ns == 7);
  REQUIRE(root.records()[1].version == 0);
  REQUIRE(root.failure()->message == "worker 1: out of memory");
}

TEST_CASE("a worker that was released already is neither undone nor waited for") {
  RootDelivery root = committing(2, 1);
  (void)root.on(0, applied_of(1, 1), 1);
  REQUIRE_FALSE(root.on(0, wire::Released{1, 1, 0}, 2).over);
  REQUIRE(to_whom<wire::Undo>(root.lost(1, Failure{Code::peer_failed, "hung up"}, 3)).empty());
  REQUIRE_FALSE(root.running());
  REQUIRE_FALSE(root.records()[0].lost);
  REQUIRE(root.failure()->message == "worker 1: hung up");
}

TEST_CASE("a worker that says Released before its replica was released fails the delivery by name") {
  RootDelivery root = committing(2, 2);
  (void)root.on(0, applied_of(1, 1), 1);
  REQUIRE(to_whom<wire::Undo>(root.on(0, wire::Released{1, 1, 0}, 2)) == (Workers{0, 1}));
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0 sent Released out of order"));
}

TEST_CASE("the clock of a worker runs only while it is waited for") {
  SECTION("a pause of the trainer before a flush is not held against the workers") {
    RootDelivery root(1, 1, stall, timeout);
    (void)root.begin(1, true, 1, 0);
    REQUIRE(root.on(0, wire::Ready{1, 0}, 0).may_send_flushes);
    Nanoseconds now = 0;
    for (; now < 5 * stall; now += stall / 10)
      REQUIRE(root.tick(now).send.empty());
    root.flush_sent(0, 10);
    for (const Nanoseconds end = now + stall - stall / 5; now < end; now += stall / 10)
      REQUIRE(root.tick(now).send.empty());
    REQUIRE(root.on(0, wire::FlushStaged{1, 0, 10}, now).flush_credit);
    REQUIRE(root.running());
  }
  SECTION("the one that has not applied is named, not the one that waits for it") {
    RootDelivery root = committing(2, 2);
    (void)root.on(0, applied_of(1, 1), 0);
    (void)root.tick(stall);
    REQUIRE_THAT(root.failure()->message, test::contains("worker 1 made no progress"));
    REQUIRE_FALSE(root.records()[0].lost);
  }
  SECTION("a replica has the whole time for its release") {
    RootDelivery root = committing(2, 2);
    (void)root.on(0, applied_of(1, 1), 1);
    REQUIRE(to_whom<wire::Release>(root.on(1, applied_of(1, 1), stall - 1)) == (Workers{0, 1}));
    (void)root.tick(stall + 1);
    REQUIRE_FALSE(root.failure());
    (void)root.tick(2 * stall);
    REQUIRE(root.failure());
  }
}

TEST_CASE("a worker that repeats itself does not hold up an abort") {
  RootDelivery root = committing(1, 1);
  (void)root.on(0, wire::Failed{Code::internal, "again", 1}, 0);
  bool over = false;
  for (Nanoseconds now = 0; now <= 2 * stall && !over; now += stall / 10) {
    (void)root.on(0, wire::Failed{Code::internal, "again", 1}, now);
    over = root.tick(now).over;
  }
  REQUIRE(over);
  REQUIRE(root.records()[0].error == "worker 0: again");
}

TEST_CASE("a failure about an earlier delivery changes nothing") {
  RootDelivery root(1, 1, stall, timeout);
  (void)root.begin(5, true, 1, 0);
  REQUIRE(root.on(0, wire::Failed{Code::internal, "late", 4}, 1).send.empty());
  REQUIRE_FALSE(root.failure());
  REQUIRE(root.records()[0].error.empty());
  REQUIRE(root.on(0, wire::Failed{Code::internal, "about no delivery", 0}, 1).send.size() == 1);
}

TEST_CASE("a flush that is acknowledged twice counts once") {
  RootDelivery root(2, 1, stall, timeout);
  (void)root.begin(1, true, 1, 0);
  (void)root.on(0, wire::Ready{1, 0}, 0);
  (void)root.on(1, wire::Ready{1, 0}, 0);
  root.flush_sent(0, 10);
  REQUIRE_FALSE(root.on(0, wire::FlushStaged{1, 0, 10}, 1).flush_credit);
  const Actions again = root.on(0, wire::FlushStaged{1, 0, 10}, 2);
  REQUIRE_FALSE(again.flush_credit);
  REQUIRE(again.send.empty());
  REQUIRE(root.on(1, wire::FlushStaged{1, 0, 10}, 3).flush_credit);
  REQUIRE_FALSE(root.failure());
}

TEST_CASE("a worker that calls everything staged before its flushes are is refused") {
  RootDelivery root(1, 1, stall, timeout);
  (void)root.begin(1, true, 1, 0);
  (void)root.on(0, wire::Ready{1, 0}, 0);
  root.flush_sent(0, 10);
  (void)root.seal({}, 0);
  REQUIRE(to_whom<wire::Commit>(root.on(0, wire::Staged{1, 10}, 1)).empty());
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0 sent Staged out of order"));
}

TEST_CASE("a worker that staged other bytes than were sent fails the delivery with both numbers") {
  RootDelivery root(1, 1, stall, timeout);
  (void)root.begin(1, true, 1, 0);
  (void)root.on(0, wire::Ready{1, 0}, 0);
  root.flush_sent(0, 10);
  (void)root.on(0, wire::FlushStaged{1, 0, 10}, 0);
  (void)root.seal({}, 0);
  (void)root.on(0, wire::Staged{1, 9}, 1);
  REQUIRE(root.failure()->code == Code::verification_failed);
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0 staged 9 bytes of delivery 1, 10 were sent"));
}

TEST_CASE("an update of workers at different versions is refused by name, and is over") {
  RootDelivery root = committing(2, 1);
  (void)root.on(0, applied_of(1, 1), 1);
  (void)root.on(0, wire::Released{1, 1, 0}, 2);
  (void)root.on(1, wire::Failed{Code::internal, "out of memory", 1}, 3);
  REQUIRE(root.on(1, wire::Undone{1, 0}, 4).over);
  const Actions actions = root.begin(2, false, 2, 5);
  REQUIRE(to_whom<wire::Begin>(actions).empty());
  REQUIRE(to_whom<wire::Undo>(actions) == (Workers{0, 1}));
  REQUIRE(root.failure()->code == Code::unsupported);
  REQUIRE_THAT(root.failure()->message, test::contains("worker 1 is at version 0 and worker 0 at version 1"));
  REQUIRE_FALSE(root.on(0, wire::Undone{2, 1}, 6).over);
  REQUIRE(root.on(1, wire::Undone{2, 0}, 6).over);
}

TEST_CASE("with no worker left a delivery is over at once") {
  RootDelivery root(1, 1, stall, timeout);
  REQUIRE_FALSE(root.lost(0, Failure{Code::peer_failed, "hung up"}, 0).over);
  const Actions actions = root.begin(1, true, 1, 1);
  REQUIRE(actions.over);
  REQUIRE(actions.send.empty());
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0"));
}

TEST_CASE("answers about an earlier delivery and from nowhere change nothing") {
  RootDelivery root = committing(1, 1);
  for (const std::uint32_t w : {0u, 9u}) {
    const std::uint64_t delivery = w == 0 ? 77 : 1;
    REQUIRE(root.on(w, wire::Ready{delivery, 0}, 1).send.empty());
    REQUIRE(root.on(w, wire::FlushStaged{delivery, 0, 0}, 1).send.empty());
    REQUIRE(root.on(w, wire::Staged{delivery, 0}, 1).send.empty());
    REQUIRE(root.on(w, applied_of(delivery, 1), 1).send.empty());
    REQUIRE(root.on(w, wire::Released{delivery, 1, 0}, 1).send.empty());
    REQUIRE(root.on(w, wire::Undone{delivery, 0}, 1).send.empty());
    REQUIRE(root.on(w, wire::Failed{Code::internal, "x", delivery + (w == 0 ? 0 : 1)}, 1).send.empty());
    REQUIRE(root.lost(9, Failure{}, 1).send.empty());
  }
  REQUIRE(to_whom<wire::Release>(root.on(0, applied_of(1, 1), 2)) == Workers{0});
  REQUIRE(root.on(0, wire::Released{1, 1, 0}, 3).over);
  REQUIRE_FALSE(root.failure());
}
