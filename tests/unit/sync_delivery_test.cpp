// Contract of sync/root_delivery.hpp together with sync/worker.hpp: updates over a simulated network with delays, with
// every kind of fault at any point, each followed by the catch-up that the root has planned. What is promised: a
// version is committed only when every worker that takes part has staged it, and a quorum of replicas; changes are
// applied only where they fit; a replica takes part as a whole and never serves two versions; a delivery ends exactly
// once, always, and in time; nobody but the replica with the faulty worker is given up, and that one catches up as soon
// as it answers; a failure names the worker. The simulation knows which faults there are and keeps its own books.
#include "catch.hpp"
#include "delivery_actions.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/root_delivery.hpp"
#include "sync/worker.hpp"

#include <fmt/format.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>

namespace {

using namespace deltawire;
using sync::DeliveryPlan;
using sync::DeliverySettings;
using sync::Nanoseconds;
using sync::RootDelivery;
using sync::WorkerProtocol;
using sync::WorkerState;
using test::to_whom;
using Actions = RootDelivery::Actions;
using Kind = wire::DeliveryKind;

constexpr Nanoseconds stall = 8'000'000'000;
constexpr Nanoseconds timeout = 30 * stall;

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

enum class Fault : std::uint8_t {
  none,
  lost,            ///< a worker's connection breaks
  stops,           ///< a worker stops for good, its connection stays
  stops_for_long,  ///< and goes on, after longer than stall
  stops_briefly,   ///< and goes on in time
  fails,           ///< a worker says Failed
  spoils,          ///< and its memory is lost, where it is written in place
  trainer_aborts,  ///< the trainer's side cannot go on
  abandoned,       ///< the update is folded into the next one
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
  applied_other_digest,
  released_early,
  undone_unasked,
  repeated_failures, ///< Failed again and again, and nothing else
  count,
};
constexpr std::size_t fault_count = static_cast<std::size_t>(Fault::count);
constexpr std::array<const char*, fault_count> fault_names{"none",
                                                           "lost",
                                                           "stops",
                                                           "stops for long and goes on",
                                                           "stops briefly and goes on",
                                                           "fails",
                                                           "fails and spoils its memory",
                                                           "trainer aborts",
                                                           "abandoned",
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
                                                           "Applied with another digest",
                                                           "Released early",
                                                           "Undone unasked",
                                                           "Failed again and again"};

constexpr bool is_lie(Fault fault) {
  return fault >= Fault::ready_again;
}
constexpr bool is_trainers(Fault fault) {
  return fault == Fault::trainer_aborts || fault == Fault::abandoned || fault == Fault::trainer_forgets;
}
constexpr bool is_harmless(Fault fault) {
  return fault == Fault::none || fault == Fault::trainer_pauses || fault == Fault::duplicate_flush ||
         fault == Fault::late_failure || fault == Fault::stops_briefly;
}

struct Counts {
  std::uint64_t updates = 0, deliveries = 0, committed = 0, failed = 0, nobody = 0, partly = 0, seeds = 0, deltas = 0,
                folds = 0, folded_versions = 0, returned = 0, quorum_missed = 0, messages = 0;
  std::array<std::uint64_t, fault_count> fired{}, failed_by{}, dropped_by{};
};

struct Peer {
  WorkerProtocol protocol;
  bool dead = false;    ///< its connection is broken
  bool stopped = false; ///< neither receives nor sends; what is sent to it waits
  bool liar = false;    ///< it has lied once: nothing is promised to it any more
  std::uint64_t stops = 0;
  std::deque<std::function<void()>> waiting;
  bool staged = false; ///< it has verified the running delivery
  bool applied = false;
  bool told_silent = false;
  Nanoseconds well_since = 0;                          ///< it has answered everything by then
  std::uint64_t memory = 0;                            ///< the version that memory holds; 0 = nothing whole
  std::uint64_t undo_log = 0;                          ///< what memory held before it was applied
  wire::Begin begun;                                   ///< of the delivery that runs there
  Nanoseconds control_down = 0, data_down = 0, up = 0; ///< when the last message of a channel arrives
  // as the root treats it in the running delivery
  bool takes_part = false;
  bool release_sent = false;
};

class World {
public:
  World(std::uint64_t schedule, Counts& counts)
    : random_(test::generator(7400000 + schedule)), counts_(counts),
      per_replica_(static_cast<std::uint32_t>(uniform(random_, 1, 3))),
      replicas_(static_cast<std::uint32_t>(uniform(random_, 1, 4))),
      quorum_(uniform(random_, 0, 2) == 0 ? static_cast<std::uint32_t>(uniform(random_, 1, replicas_)) : 0),
      peers_(std::size_t{per_replica_} * replicas_), behind_(replicas_),
      root_(DeliverySettings{static_cast<std::uint32_t>(peers_.size()), per_replica_, quorum_, stall, timeout}) {
    now_ = static_cast<Nanoseconds>(uniform(random_, 1, 1'000'000));
    slowest_ = uniform(random_, 0, 1) ? stall / 10 : stall / 1000;
    schedule_tick();
  }

  void run() {
    for (std::uint64_t updates = uniform(random_, 1, 8); updates > 0 && !aborted_; --updates)
      update();
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
  /// Something happens at a worker: later, where it has stopped.
  void at_worker(std::uint32_t w, std::function<void()> event) {
    Peer& peer = peers_[w];
    if (peer.dead)
      return;
    if (peer.stopped || !peer.waiting.empty()) {
      peer.waiting.push_back(std::move(event));
      return;
    }
    event();
  }
  void one_event() {
    const auto next = events_.begin();
    now_ = next->first;
    const std::function<void()> event = std::move(next->second);
    events_.erase(next);
    event();
  }
  void run_until(Nanoseconds end) {
    while (events_.begin()->first <= end)
      one_event();
    now_ = end;
  }

  template <class Message>
  void say(std::uint32_t w, Message message) {
    if (peers_[w].dead)
      return;
    if (peers_[w].stopped) {
      peers_[w].waiting.push_back([this, w, message] { say(w, message); });
      return;
    }
    at(soon(peers_[w].up), [this, w, message] {
      if (peers_[w].dead)
        return;
      ++counts_.messages;
      maybe_fault();
      act(root_.on(w, message, now_));
    });
  }

  std::uint32_t replica_of(std::uint32_t w) const { return w / per_replica_; }
  template <class Do>
  void each_member(std::uint32_t replica, Do&& what) {
    for (std::uint32_t w = replica * per_replica_; w < (replica + 1) * per_replica_; ++w)
      what(peers_[w]);
  }

  void act(const Actions& actions) {
    // Whole replicas only.
    std::map<std::uint32_t, std::uint32_t> begins, commits, releases;
    for (const auto& [w, message] : actions.send) {
      Peer& peer = peers_[w];
      if (peer.dead && records_lost_.contains(w))
        FAIL("a message to worker " << w << ", which is gone");
      if (std::holds_alternative<wire::Begin>(message)) {
        ++begins[replica_of(w)];
        peer.takes_part = true;
      }
      if (std::holds_alternative<wire::Undo>(message)) {
        if (peer.release_sent)
          FAIL("worker " << w << " was released, and is to undo");
        each_member(replica_of(w), [](Peer& member) { member.takes_part = false; });
      }
      if (std::holds_alternative<wire::Commit>(message)) {
        ++commits[replica_of(w)];
        if (!peer.takes_part)
          FAIL("worker " << w << " is to commit what it does not take part in");
        for (std::uint32_t each = 0; each < peers_.size(); ++each)
          if (peers_[each].takes_part && !peers_[each].staged && !peers_[each].liar)
            FAIL("version " << plan_.target << " is committed before worker " << each << " has staged it");
      }
      if (std::holds_alternative<wire::Release>(message)) {
        ++releases[replica_of(w)];
        peer.release_sent = true;
        released_ = true;
        there_ = plan_.target;
        each_member(replica_of(w), [&, w = w](Peer& member) {
          if (!member.applied && !member.liar)
            FAIL("worker " << w << " is released before all of its replica have applied");
        });
      }
    }
    for (const auto* each : {&begins, &commits, &releases})
      for (const auto& [replica, count] : *each)
        if (count != per_replica_)
          FAIL("replica " << replica << " is told in part");
    if (!commits.empty())
      check_quorum(static_cast<std::uint32_t>(commits.size()));
    for (const auto& [w, message] : actions.send) {
      const std::uint32_t to = w;
      at(soon(peers_[to].control_down), [this, to, message = message] {
        at_worker(to, [this, to, message] {
          ++counts_.messages;
          maybe_fault();
          // A fault that stops it: it has read this message before.
          if (!peers_[to].dead)
            std::visit([this, to](const auto& each) { receive(to, each); }, message);
        });
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
    if (actions.over)
      REQUIRE_FALSE(root_.running());
  }

  /// Replicas that stage now, or wait for another delivery.
  void check_quorum(std::uint32_t committing) {
    if (there_ == plan_.target)
      return; // from the update's first delivery
    std::uint32_t counted = committing;
    for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
      bool could = !began_.contains(replica);
      each_member(replica, [&](const Peer& member) {
        could = could && !member.told_silent && !(member.dead && records_lost_.contains(index_of(member)));
      });
      counted += could ? 1 : 0;
    }
    if (counted < quorum_)
      FAIL(counted << " replicas commit, " << quorum_ << " must");
  }
  std::uint32_t index_of(const Peer& peer) const { return static_cast<std::uint32_t>(&peer - peers_.data()); }

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
        ++sequence_;
        on_wire_ = true;
        for (std::uint32_t w = 0; w < peers_.size(); ++w) {
          REQUIRE((!root_.takes_part(w) || peers_[w].takes_part));
          if (!root_.takes_part(w))
            continue;
          // A flush has parts for some workers, for some several, for some none.
          for (std::uint64_t frames = uniform(random_, 0, 2); frames > 0; --frames) {
            const std::uint64_t bytes = uniform(random_, 1, 1000);
            const std::uint64_t sequence = root_.frame_sent(w, bytes);
            bytes_sent_ += bytes;
            const int copies = fault_ == Fault::duplicate_flush && uniform(random_, 0, 2) == 0 ? 2 : 1;
            if (copies == 2)
              fired();
            for (int copy = 0; copy < copies; ++copy)
              at(soon(peers_[w].data_down), [this, w, delivery, sequence, bytes] {
                at_worker(w, [this, w, delivery, sequence, bytes] { flush(w, delivery, sequence, bytes); });
              });
          }
        }
        act(root_.flush_sent(now_));
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
    act(root_.seal([](std::uint32_t) { return RootDelivery::Digests{{0, 1}}; }, now_));
  }

  // The worker's side: what an Applier does.
  void failed(std::uint32_t w, const Failure& failure) {
    say(w, wire::Failed{failure.code, failure.message, peers_[w].protocol.delivery()});
  }
  /// An honest worker is never asked for what it must refuse.
  void refused(std::uint32_t w, const Failure& failure) {
    if (!peers_[w].liar)
      FAIL("worker " << w << " must refuse: " << failure.message);
    failed(w, failure);
  }
  void flush(std::uint32_t w, std::uint64_t delivery, std::uint64_t sequence, std::uint64_t bytes) {
    Peer& peer = peers_[w];
    maybe_fault();
    if (peer.dead || peer.protocol.over(delivery))
      return; // data that an undo has overtaken
    const auto fresh = peer.protocol.flush(delivery, sequence, bytes);
    if (!fresh)
      return refused(w, fresh.error());
    std::uint64_t acknowledged = sequence;
    if (lies_now(w, Fault::staged_other_flush))
      acknowledged += 1 + uniform(random_, 0, 3);
    say(w, wire::FlushStaged{delivery, acknowledged, bytes});
    staged_if_complete(w);
  }
  void staged_if_complete(std::uint32_t w) {
    Peer& peer = peers_[w];
    if (!peer.protocol.complete() || peer.protocol.state() == WorkerState::dirty)
      return;
    wire::Staged staged = peer.protocol.verified();
    peer.staged = true;
    if (lies_now(w, Fault::staged_other_bytes))
      ++staged.bytes;
    say(w, staged);
  }
  void receive(std::uint32_t w, const wire::Begin& message) {
    Peer& peer = peers_[w];
    const auto ready = peer.protocol.begin(message);
    if (!ready)
      return refused(w, ready.error());
    peer.begun = message;
    peer.staged = peer.applied = false;
    if (peer.protocol.in_place())
      peer.memory = 0;
    say(w, *ready);
  }
  void receive(std::uint32_t w, const wire::Seal& message) {
    const auto sealed = peers_[w].protocol.seal(message);
    if (!sealed)
      return refused(w, sealed.error());
    staged_if_complete(w);
  }
  /// What the delivery's pieces make of memory: changes are right only where they begin at what is there.
  void write(std::uint32_t w) {
    Peer& peer = peers_[w];
    const wire::Begin& begun = peer.begun;
    peer.undo_log = peer.memory;
    const bool right =
      begun.kind == Kind::seed || (begun.kind == Kind::delta && peer.memory == begun.base) ||
      (begun.kind == Kind::fold && peer.memory != 0 && peer.memory >= begun.base && peer.memory < begun.target);
    if (!right)
      FAIL("worker " << w << " applies changes from version " << begun.base << " on to version " << peer.memory);
    // And whoever makes them reads what was planned.
    if (begun.delivery == delivery_ && (begun.base != plan_.base || begun.target != plan_.target))
      FAIL("worker " << w << " was told other versions than were planned");
    peer.memory = begun.target;
  }
  void receive(std::uint32_t w, const wire::Commit& message) {
    const auto committed = peers_[w].protocol.commit(message);
    if (!committed)
      return refused(w, committed.error());
    // Pausing and exchanging take their time.
    at(now_ + static_cast<Nanoseconds>(uniform(random_, 0, slowest_)), [this, w, message] {
      at_worker(w, [this, w, message] {
        Peer& peer = peers_[w];
        if (peer.protocol.delivery() != message.delivery || peer.protocol.state() != WorkerState::in_doubt)
          return;
        write(w);
        peer.applied = true;
        peer.protocol.applied();
        wire::Applied applied;
        applied.delivery = message.delivery;
        applied.version = peer.protocol.target() + (lies_now(w, Fault::applied_other_version) ? 1 : 0);
        applied.digests = {{0, lies_now(w, Fault::applied_other_digest) ? 2 : 1}};
        say(w, applied);
      });
    });
  }
  void receive(std::uint32_t w, const wire::Release& message) {
    const auto released = peers_[w].protocol.release(message);
    if (!released)
      return refused(w, released.error());
    say(w, *released);
  }
  void receive(std::uint32_t w, const wire::Settle&) {
    FAIL("worker " << w << " is told what becomes of a doubt that it never had");
  }
  void receive(std::uint32_t w, const wire::Audit&) { FAIL("worker " << w << " is audited, and nobody asked for it"); }
  void receive(std::uint32_t w, const wire::Adopt&) { FAIL("worker " << w << " is to adopt, and was not audited"); }
  void receive(std::uint32_t w, const wire::Undo& message) {
    Peer& peer = peers_[w];
    const auto undoing = peer.protocol.undo(message);
    if (!undoing)
      return refused(w, undoing.error());
    if (undoing->exchange_back)
      peer.memory = peer.undo_log;
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
        if (peer.dead || peer.liar || (state != WorkerState::serving && state != WorkerState::staging))
          continue;
        if (peer.memory != peer.protocol.version())
          FAIL("worker " << w << " serves version " << peer.protocol.version() << " with memory of " << peer.memory);
        // One that was told to serve the next version, and has not heard of it yet, stands still: nobody asks it.
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
    peers_[w].liar = true;
    fired();
    return true;
  }
  void stop(std::uint32_t w, std::optional<Nanoseconds> duration) {
    Peer& peer = peers_[w];
    peer.stopped = true;
    const std::uint64_t number = ++peer.stops;
    // Heartbeats: its silence is noticed a little after stall.
    at(now_ + stall + static_cast<Nanoseconds>(uniform(random_, 0, stall / 2)), [this, w, number] {
      if (!peers_[w].stopped || peers_[w].stops != number || peers_[w].dead)
        return;
      peers_[w].told_silent = true;
      act(root_.silent(w, Failure{Code::timed_out, "nothing was heard of it"}, now_));
    });
    if (!duration)
      return;
    at(now_ + *duration, [this, w] {
      Peer& back = peers_[w];
      if (back.dead)
        return;
      back.stopped = false;
      back.well_since = now_ + stall;
      ++counts_.returned;
      if (back.told_silent)
        at(soon(back.up), [this, w] {
          peers_[w].told_silent = false;
          root_.heard(w);
        });
      while (!back.waiting.empty() && !back.stopped && !back.dead) {
        const std::function<void()> event = std::move(back.waiting.front());
        back.waiting.pop_front();
        event();
      }
    });
  }
  /// After a random number of messages.
  void maybe_fault() {
    if (fired_ || !root_.running() || fault_after_-- != 0)
      return;
    const std::uint32_t w = guilty_;
    Peer& peer = peers_[w];
    if (!is_trainers(fault_) && (peer.dead || peer.stopped || peer.liar))
      return;
    switch (fault_) {
    case Fault::lost:
      peer.dead = true;
      at(now_ + static_cast<Nanoseconds>(uniform(random_, 0, slowest_)), [this, w] {
        records_lost_.insert(w);
        if (!peers_[w].release_sent)
          each_member(replica_of(w), [](Peer& member) { member.takes_part = false; });
        act(root_.lost(w, Failure{Code::peer_failed, fmt::format("worker {} hung up", w)}, now_));
      });
      break;
    case Fault::stops:
      stop(w, std::nullopt);
      break;
    case Fault::stops_for_long:
      stop(w, static_cast<Nanoseconds>(uniform(random_, 12, 80)) * stall / 10);
      break;
    case Fault::stops_briefly:
      stop(w, static_cast<Nanoseconds>(uniform(random_, 1, 5)) * stall / 10);
      break;
    case Fault::spoils:
      if (peer.protocol.in_place() && !peer.staged) { // what it has called staged it has read back
        peer.protocol.spoiled();
        peer.memory = 0;
      }
      [[fallthrough]];
    case Fault::fails:
      say(w, wire::Failed{Code::internal, "out of memory", delivery_});
      break;
    case Fault::trainer_aborts:
      aborted_ = true;
      act(root_.abort(Failure{Code::peer_failed, "rank 2 hung up"}, now_));
      break;
    case Fault::abandoned:
      if (uniform(random_, 0, 1)) // at the first moment, or later
        act(root_.abandon(Failure{Code::superseded, "folded into the next one"}, now_));
      else
        at(now_ + static_cast<Nanoseconds>(uniform(random_, 0, slowest_)), [this, delivery = delivery_] {
          if (delivery == delivery_)
            act(root_.abandon(Failure{Code::superseded, "folded into the next one"}, now_));
        });
      break;
    case Fault::late_failure:
      if (delivery_ == 1)
        return;
      say(w, wire::Failed{Code::internal, "late", delivery_ - 1});
      break;
    case Fault::ready_again:
      peer.liar = true;
      say(w, wire::Ready{delivery_, 0});
      break;
    case Fault::staged_early:
      peer.liar = true;
      say(w, wire::Staged{delivery_, bytes_sent_});
      break;
    case Fault::applied_early:
      peer.liar = true;
      {
        wire::Applied applied;
        applied.delivery = delivery_;
        applied.version = plan_.target;
        say(w, applied);
      }
      break;
    case Fault::released_early:
      peer.liar = true;
      say(w, wire::Released{delivery_, plan_.target, 0});
      break;
    case Fault::undone_unasked:
      peer.liar = true;
      say(w, wire::Undone{delivery_, 0});
      break;
    case Fault::repeated_failures:
      peer.liar = true;
      repeat_failure(w, delivery_);
      break;
    default:
      return;
    }
    fired();
  }
  void repeat_failure(std::uint32_t w, std::uint64_t delivery) {
    peers_[w].stopped = false;
    say(w, wire::Failed{Code::internal, "again", delivery});
    peers_[w].stopped = true;
    at(now_ + stall / 3, [this, w, delivery] {
      if (delivery == delivery_ && root_.running())
        repeat_failure(w, delivery);
    });
  }

  // Updates.
  bool healthy(std::uint32_t replica) {
    bool all = true;
    each_member(replica, [&](const Peer& member) {
      all = all && !member.dead && !member.stopped && !member.liar && member.well_since <= now_;
    });
    return all;
  }
  bool all_at(std::uint32_t replica, std::uint64_t version) {
    bool all = true;
    each_member(replica, [&](const Peer& member) { all = all && member.protocol.version() == version; });
    return all;
  }

  void update() {
    const std::uint64_t target = ++version_;
    ++counts_.updates;
    CAPTURE(target);
    root_.begin_update();
    // Who must come to the target, unless something happens to it in this update.
    std::set<std::uint32_t> expected;
    const DeliveryPlan own{target == 1 ? Kind::seed : Kind::delta, target - 1, target};
    for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
      if (!planned_healthy_.contains(replica) && target != 1)
        continue;
      bool fits_catch_up = catch_up_.has_value();
      bool empty = false;
      each_member(replica, [&](const Peer& member) { empty = empty || member.protocol.version() == 0; });
      fits_catch_up = fits_catch_up && (catch_up_->kind == Kind::seed) == empty;
      if (all_at(replica, target - 1) || fits_catch_up)
        expected.insert(replica);
    }
    troubled_.clear();
    bool given_up = false; // by the trainer's side, or for want of a quorum
    std::vector<DeliveryPlan> plans{own};
    if (catch_up_)
      plans.push_back(*catch_up_);
    bool tried = false, settled = true;
    for (const DeliveryPlan& plan : plans) {
      if (aborted_ || !root_.anyone_for(plan))
        continue;
      tried = true;
      settled = deliver(plan, !catch_up_);
      given_up = given_up || (fired_ && is_trainers(fault_)) ||
                 (root_.failure() && root_.failure()->message.find("update.quorum") != std::string::npos);
    }
    if (!tried) {
      ++counts_.nobody;
      // There is a reason, and it names a worker.
      const Failure reason = root_.nobody();
      CAPTURE(reason.message);
      if (reason.message.find("wait for the next one") == std::string::npos) {
        REQUIRE_THAT(reason.message, test::contains("worker "));
        bool all_healthy = true;
        for (std::uint32_t replica = 0; replica < replicas_; ++replica)
          all_healthy = all_healthy && planned_healthy_.contains(replica);
        REQUIRE_FALSE(all_healthy);
      }
      given_up = given_up || reason.message.find("update.quorum") != std::string::npos;
    }
    std::set<std::uint64_t> versions;
    for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
      CAPTURE(replica);
      versions.insert(root_.records()[replica * per_replica_].version);
      if (troubled_.contains(replica) || given_up || !planned_healthy_.contains(replica)) {
        if (target != 1 || troubled_.contains(replica) || given_up) {
          behind_[replica] = 0;
          continue;
        }
      }
      // Healthy, in a healthy replica: at the target now, or after the next update at the latest.
      if (expected.contains(replica)) {
        behind_[replica] = 0;
        if (!all_at(replica, target) || !settled)
          FAIL("replica " << replica << " is healthy and was left behind at version "
                          << peers_[replica * per_replica_].protocol.version());
        each_member(replica, [&](const Peer& member) {
          const auto& record = root_.records()[index_of(member)];
          REQUIRE(member.memory == target);
          REQUIRE(member.protocol.state() == WorkerState::serving);
          REQUIRE(record.version == target);
          REQUIRE(record.digest_ok);
          REQUIRE(record.error.empty());
        });
      } else if (++behind_[replica] > 1)
        FAIL("replica " << replica << " is healthy and was left behind twice");
    }
    counts_.partly += versions.size() > 1 ? 1 : 0;
    // Time goes by; some who had stopped go on.
    if (settled)
      run_until(now_ + static_cast<Nanoseconds>(uniform(random_, 0, 3)) * stall);
    plan_next();
  }

  void plan_next() {
    catch_up_ = root_.catch_up(version_);
    planned_healthy_.clear();
    std::uint64_t oldest = UINT64_MAX;
    bool seed = false;
    for (std::uint32_t replica = 0; replica < replicas_; ++replica) {
      if (!healthy(replica))
        continue;
      planned_healthy_.insert(replica);
      bool empty = false;
      std::uint64_t least = UINT64_MAX;
      each_member(replica, [&](const Peer& member) {
        empty = empty || member.protocol.version() == 0;
        least = std::min(least, member.protocol.version());
      });
      seed = seed || empty;
      if (!empty && !all_at(replica, version_))
        oldest = std::min(oldest, least);
      if (!empty)
        REQUIRE(root_.oldest_version(version_) <= least); // its logs must not go
    }
    if (seed || oldest != UINT64_MAX) {
      REQUIRE(catch_up_);
      REQUIRE(catch_up_->target == version_ + 1);
      if (catch_up_->kind == Kind::fold && oldest != UINT64_MAX)
        REQUIRE(catch_up_->base <= oldest);
      if (oldest == UINT64_MAX && planned_healthy_.size() == replicas_)
        REQUIRE(catch_up_->kind == Kind::seed);
      if (!seed && planned_healthy_.size() == replicas_)
        REQUIRE(catch_up_->kind == Kind::fold);
    } else if (planned_healthy_.size() == replicas_)
      REQUIRE_FALSE(catch_up_);
  }

  /// One delivery, to its end. False when what is on its way was not waited for.
  bool deliver(const DeliveryPlan& plan, bool may_be_abandoned) {
    ++delivery_;
    ++counts_.deliveries;
    plan_ = plan;
    sequence_ = bytes_sent_ = 0;
    sending_ = on_wire_ = sealed_ = fired_ = released_ = false;
    overs_ = 0;
    flushes_ = uniform(random_, 0, 4);
    const Nanoseconds begun = now_;
    for (Peer& peer : peers_)
      peer.takes_part = peer.release_sent = false;
    fault_ = uniform(random_, 0, 2) == 0 ? Fault::none : static_cast<Fault>(uniform(random_, 0, fault_count - 1));
    if (fault_ == Fault::abandoned && (!may_be_abandoned || plan.kind == Kind::seed))
      fault_ = Fault::none;
    if (fault_ == Fault::trainer_aborts && uniform(random_, 0, 1)) // it ends the session: not too often
      fault_ = Fault::none;
    guilty_ = static_cast<std::uint32_t>(uniform(random_, 0, peers_.size() - 1));
    fault_after_ = uniform(random_, 0, peers_.size() * (9 + 2 * flushes_));
    std::vector<std::uint64_t> before;
    for (const auto& record : root_.records())
      before.push_back(record.version);
    std::uint64_t troubles = 0;
    for (const Peer& peer : peers_)
      troubles += peer.stopped ? 1 : 0;
    INFO("delivery " << delivery_ << ", fault: " << fault_names[static_cast<std::size_t>(fault_)] << ", worker "
                     << guilty_);
    const Actions begin = root_.begin(delivery_, plan, now_);
    began_.clear();
    for (const auto& [w, message] : begin.send)
      began_.insert(replica_of(w));
    REQUIRE_FALSE(began_.empty());
    counts_.seeds += plan.kind == Kind::seed ? 1 : 0;
    counts_.deltas += plan.kind == Kind::delta ? 1 : 0;
    counts_.folds += plan.kind == Kind::fold ? 1 : 0;
    if (plan.kind == Kind::fold)
      counts_.folded_versions += plan.target - plan.base;
    act(begin);
    while (overs_ == 0) {
      if (now_ > begun + timeout + 3 * stall)
        FAIL("delivery " << delivery_ << " does not end");
      one_event();
    }
    const Nanoseconds took = now_ - begun;
    const bool failed = root_.failure().has_value();
    REQUIRE(failed != released_);
    (failed ? counts_.failed : counts_.committed) += 1;
    if (fired_ && !is_harmless(fault_) && !is_trainers(fault_))
      troubled_.insert(replica_of(guilty_));
    for (std::uint32_t w = 0; w < peers_.size(); ++w) {
      const Peer& peer = peers_[w];
      const bool briefly = fired_ && fault_ == Fault::stops_briefly && w == guilty_;
      if (peer.dead || peer.liar || (!briefly && (peer.told_silent || peer.stopped || peer.well_since > begun)))
        troubled_.insert(replica_of(w));
    }
    check_outcome(before, failed, took, troubles);
    // What is on its way arrives: nothing of it may revive the delivery. An update that is folded waits for nobody.
    if (fault_ == Fault::abandoned && failed && uniform(random_, 0, 1))
      return false;
    run_until(now_ + stall);
    REQUIRE(overs_ == 1);
    REQUIRE_FALSE(root_.running());
    for (std::uint32_t w = 0; w < peers_.size(); ++w) {
      const Peer& peer = peers_[w];
      if (peer.dead || peer.stopped || peer.liar || peer.well_since > now_)
        continue;
      // All that can answer serve what the root believes: what they had, or the target after a release.
      const auto& record = root_.records()[w];
      REQUIRE(record.version == peer.protocol.version());
      REQUIRE((record.version == before[w] || record.version == plan.target || record.version == 0));
      REQUIRE(peer.memory == peer.protocol.version());
      const WorkerState state = peer.protocol.state();
      if (peer.memory != 0)
        REQUIRE(state == WorkerState::serving);
      else
        REQUIRE((state == WorkerState::dirty || state == WorkerState::empty));
      REQUIRE(record.dirty == (state == WorkerState::dirty));
    }
    return true;
  }

  void check_outcome(const std::vector<std::uint64_t>& before, bool failed, Nanoseconds took, std::uint64_t troubles) {
    const auto fault = static_cast<std::size_t>(fault_);
    const auto& records = root_.records();
    bool someone_dropped = false;
    for (const std::uint32_t replica : began_) {
      bool dropped = false;
      each_member(replica, [&](const Peer& member) {
        dropped = dropped || (records[index_of(member)].version != plan_.target && !member.release_sent);
      });
      someone_dropped = someone_dropped || dropped;
      // Nobody but the guilty replica is given up, unless all are.
      if (dropped && !failed && !troubled_.contains(replica) && !(fired_ && is_trainers(fault_)))
        FAIL("replica " << replica << " was given up, the fault was in replica " << replica_of(guilty_) << ": "
                        << records[replica * per_replica_].error);
      // A failure names the worker, to every member of its replica.
      if (dropped && troubled_.contains(replica) && !(fired_ && is_trainers(fault_)))
        each_member(replica, [&](const Peer& member) {
          const auto& record = records[index_of(member)];
          CAPTURE(record.error);
          REQUIRE_THAT(record.error, test::contains("worker "));
        });
    }
    counts_.dropped_by[fault] += someone_dropped ? 1 : 0;
    for (std::uint32_t w = 0; w < peers_.size(); ++w) {
      if (!began_.contains(replica_of(w)))
        REQUIRE((records[w].version == before[w] || peers_[w].stops > 0));
      if (records[w].lost)
        REQUIRE(peers_[w].dead);
    }
    // It is over within a stall, ticks included, after what caused it, for each that stood still; and another for
    // undos.
    if (!(fired_ && (fault_ == Fault::trainer_forgets || fault_ == Fault::trainer_pauses)))
      REQUIRE(took < static_cast<Nanoseconds>(5 + 3 * (troubles + 1)) * stall);
    if (!failed)
      return;
    ++counts_.failed_by[fault];
    const std::string& message = root_.failure()->message;
    CAPTURE(message);
    if (message.find("update.quorum") != std::string::npos) {
      ++counts_.quorum_missed;
      REQUIRE(quorum_ > 0);
    }
    if (message.find("rank 2 hung up") != std::string::npos)
      REQUIRE((fired_ && fault_ == Fault::trainer_aborts));
    else if (message.find("folded into") != std::string::npos)
      REQUIRE((fired_ && fault_ == Fault::abandoned));
    else if (message.find("update.timeout") != std::string::npos)
      REQUIRE((fired_ && fault_ == Fault::trainer_forgets));
    else {
      bool named = false;
      for (std::uint32_t w = 0; w < peers_.size(); ++w)
        named = named ||
                (troubled_.contains(replica_of(w)) && message.find(fmt::format("worker {}", w)) != std::string::npos);
      REQUIRE(named);
    }
  }

  std::mt19937_64 random_;
  Counts& counts_;
  std::uint32_t per_replica_, replicas_, quorum_;
  std::vector<Peer> peers_;
  std::vector<std::uint64_t> behind_; ///< by replica: updates in a row that left it behind though it was healthy
  RootDelivery root_;
  std::multimap<Nanoseconds, std::function<void()>> events_;
  Nanoseconds now_ = 0;
  Nanoseconds slowest_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t there_ = 0;                 ///< the latest version that some replica was told to serve
  std::optional<DeliveryPlan> catch_up_;    ///< of the next update
  std::set<std::uint32_t> planned_healthy_; ///< replicas that were well when it was planned
  std::set<std::uint32_t> troubled_;        ///< replicas with a worker that something happened to in this update
  std::set<std::uint32_t> records_lost_;    ///< workers that the root was told are gone
  bool aborted_ = false;                    ///< the session is over
  // The running delivery.
  std::uint64_t delivery_ = 0, sequence_ = 0, flushes_ = 0, bytes_sent_ = 0;
  DeliveryPlan plan_;
  std::set<std::uint32_t> began_; ///< replicas
  bool sending_ = false, on_wire_ = false, sealed_ = false, released_ = false;
  std::uint64_t overs_ = 0;
  Fault fault_ = Fault::none;
  std::uint32_t guilty_ = 0;
  std::uint64_t fault_after_ = 0;
  bool fired_ = false;
};

/// The messages of an Actions of one kind, by worker.
using Workers = std::vector<std::uint32_t>;

wire::Applied applied_of(std::uint64_t delivery, std::uint64_t version) {
  wire::Applied applied;
  applied.delivery = delivery;
  applied.version = version;
  return applied;
}

const DeliveryPlan first_seed{Kind::seed, 0, 1};
const Failure hung_up{Code::peer_failed, "hung up"};

RootDelivery::Digests no_digests(std::uint32_t) {
  return {};
}

/// One frame of a flush for each worker that takes part.
void flush_to_all(RootDelivery& root, std::uint64_t bytes) {
  for (std::uint32_t w = 0; w < root.records().size(); ++w)
    if (root.takes_part(w))
      (void)root.frame_sent(w, bytes);
  (void)root.flush_sent(0);
}

RootDelivery root_of(std::uint32_t workers, std::uint32_t per_replica, std::uint32_t quorum = 0) {
  return RootDelivery(DeliverySettings{workers, per_replica, quorum, stall, timeout});
}

/// Goes on with a delivery without flushes, of those who take part and are ready, up to the commits.
void stage(RootDelivery& root, std::uint64_t delivery, const Workers& workers, Nanoseconds now = 0) {
  (void)root.seal(no_digests, now);
  Actions actions;
  for (const std::uint32_t w : workers)
    actions = root.on(w, wire::Staged{delivery, 0}, now);
  REQUIRE(to_whom<wire::Commit>(actions) == workers);
}
void to_commit(RootDelivery& root, std::uint64_t delivery, const Workers& workers, Nanoseconds now = 0) {
  for (const std::uint32_t w : workers)
    (void)root.on(w, wire::Ready{delivery, 0}, now);
  stage(root, delivery, workers, now);
}

/// And to its end.
void to_end(RootDelivery& root, std::uint64_t delivery, std::uint64_t target, const Workers& workers,
            Nanoseconds now = 0) {
  to_commit(root, delivery, workers, now);
  for (const std::uint32_t w : workers)
    (void)root.on(w, applied_of(delivery, target), now);
  Actions actions;
  for (const std::uint32_t w : workers)
    actions = root.on(w, wire::Released{delivery, target, 0}, now);
  REQUIRE(actions.over);
  REQUIRE_FALSE(root.failure());
}

/// Delivery 1 to version 1, up to the commits; time stands at 0.
RootDelivery committing(std::uint32_t workers, std::uint32_t per_replica) {
  RootDelivery root = root_of(workers, per_replica);
  (void)root.begin(1, first_seed, 0);
  Workers all(workers);
  for (std::uint32_t w = 0; w < workers; ++w)
    all[w] = w;
  to_commit(root, 1, all);
  return root;
}

/// All at version 1.
RootDelivery serving(std::uint32_t workers, std::uint32_t per_replica, std::uint32_t quorum = 0) {
  RootDelivery root = root_of(workers, per_replica, quorum);
  (void)root.begin(1, first_seed, 0);
  Workers all(workers);
  for (std::uint32_t w = 0; w < workers; ++w)
    all[w] = w;
  to_end(root, 1, 1, all);
  return root;
}

} // namespace

TEST_CASE("updates over a slow network end once, whole or not at all a replica, and who can is caught up") {
  constexpr std::uint64_t schedules = 6000;
  CAPTURE(test::seed());
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    CAPTURE(schedule);
    World(schedule, counts).run();
  }
  fmt::print(
    "delivery: seed {}, {} schedules, {} updates ({} that nobody could take), {} left replicas at different versions; "
    "{} "
    "deliveries ({} seeds, {} deltas, {} folds of {} versions), {} messages; {} committed, {} failed ({} for want of a "
    "quorum); {} times a worker went on\n",
    test::seed(), schedules, counts.updates, counts.nobody, counts.partly, counts.deliveries, counts.seeds,
    counts.deltas, counts.folds, counts.folded_versions, counts.messages, counts.committed, counts.failed,
    counts.quorum_missed, counts.returned);
  for (std::size_t fault = 1; fault < fault_count; ++fault) {
    CAPTURE(fault_names[fault]);
    fmt::print("  {:<30} {:>5} times, failed {:>5} deliveries, and {:>5} went on without a replica\n",
               fault_names[fault], counts.fired[fault], counts.failed_by[fault],
               counts.dropped_by[fault] - std::min(counts.dropped_by[fault], counts.failed_by[fault]));
    REQUIRE(counts.fired[fault] > 50);
  }
  REQUIRE(counts.folds > 1000);
  REQUIRE(counts.folded_versions > counts.folds);
  REQUIRE(counts.quorum_missed > 50);
  REQUIRE(counts.partly > 500);
}

TEST_CASE("a release is never taken back: the others are undone, and both answers are waited for") {
  RootDelivery root = committing(2, 1);
  REQUIRE(to_whom<wire::Release>(root.on(0, applied_of(1, 1), 1)) == Workers{0});
  const Actions dropped = root.on(1, wire::Failed{Code::internal, "out of memory", 1}, 2);
  REQUIRE(to_whom<wire::Undo>(dropped) == Workers{1});
  REQUIRE_FALSE(root.on(1, wire::Undone{1, 0}, 3).over);
  REQUIRE_FALSE(root.on(0, wire::Undone{1, 0}, 4).over); // it cannot undo any more
  REQUIRE(root.on(0, wire::Released{1, 1, 7}, 5).over);
  REQUIRE(root.records()[0].version == 1);
  REQUIRE(root.records()[0].pause_ns == 7);
  REQUIRE(root.records()[0].error.empty());
  REQUIRE(root.records()[1].version == 0);
  REQUIRE(root.records()[1].error == "worker 1: out of memory");
  REQUIRE_FALSE(root.failure()); // the version is there, on one replica
}

TEST_CASE("a worker that was released already is neither undone nor waited for") {
  RootDelivery root = committing(2, 1);
  (void)root.on(0, applied_of(1, 1), 1);
  REQUIRE_FALSE(root.on(0, wire::Released{1, 1, 0}, 2).over);
  REQUIRE(to_whom<wire::Undo>(root.lost(1, hung_up, 3)).empty());
  REQUIRE_FALSE(root.running());
  REQUIRE_FALSE(root.records()[0].lost);
  REQUIRE_FALSE(root.failure());
  REQUIRE(root.records()[1].error == "worker 1: hung up");
}

TEST_CASE("a worker that is told to serve and falls silent is at the target, and is left alone until it says so") {
  RootDelivery root = committing(2, 1);
  (void)root.on(0, applied_of(1, 1), 1);
  (void)root.on(1, applied_of(1, 1), 1);
  (void)root.on(0, wire::Released{1, 1, 0}, 2);
  const Actions stalled = root.tick(2 * stall);
  REQUIRE(to_whom<wire::Undo>(stalled).empty());
  REQUIRE(stalled.over);
  REQUIRE_FALSE(root.failure());
  REQUIRE(root.records()[1].version == 1);
  REQUIRE_THAT(root.records()[1].error, test::contains("worker 1 made no progress"));
  REQUIRE_FALSE(root.catch_up(1));
  (void)root.begin(2, {Kind::delta, 1, 2}, 3 * stall);
  REQUIRE(root.takes_part(0));
  REQUIRE_FALSE(root.takes_part(1));
  to_end(root, 2, 2, {0}, 3 * stall);
  const auto planned = root.catch_up(2); // its answer may come at any time
  REQUIRE(planned == DeliveryPlan{Kind::fold, 1, 3});
  (void)root.on(1, wire::Released{1, 1, 0}, 4 * stall);
  REQUIRE(root.anyone_for(*planned));
}

TEST_CASE("a worker that says Released before its replica was released is dropped by name") {
  RootDelivery root = committing(2, 2);
  (void)root.on(0, applied_of(1, 1), 1);
  REQUIRE(to_whom<wire::Undo>(root.on(0, wire::Released{1, 1, 0}, 2)) == (Workers{0, 1}));
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0 sent Released out of order"));
  REQUIRE_THAT(root.records()[1].error, test::contains("worker 0 of its replica was given up"));
}

TEST_CASE("the clock of a worker runs only while it is waited for") {
  SECTION("a pause of the trainer before a flush is not held against the workers") {
    RootDelivery root = root_of(1, 1);
    (void)root.begin(1, first_seed, 0);
    REQUIRE(root.on(0, wire::Ready{1, 0}, 0).may_send_flushes);
    Nanoseconds now = 0;
    for (; now < 5 * stall; now += stall / 10)
      REQUIRE(root.tick(now).send.empty());
    flush_to_all(root, 10);
    for (const Nanoseconds end = now + stall - stall / 5; now < end; now += stall / 10)
      REQUIRE(root.tick(now).send.empty());
    REQUIRE(root.on(0, wire::FlushStaged{1, 0, 10}, now).flush_credit);
    REQUIRE(root.running());
  }
  SECTION("each frame that it has staged is progress") {
    RootDelivery root = root_of(1, 1);
    (void)root.begin(1, first_seed, 0);
    (void)root.on(0, wire::Ready{1, 0}, 0);
    for (int frame = 0; frame < 3; ++frame)
      (void)root.frame_sent(0, 10);
    (void)root.flush_sent(0);
    for (std::uint64_t frame = 0; frame < 3; ++frame) {
      const Nanoseconds now = static_cast<Nanoseconds>(frame + 1) * (stall - 1);
      REQUIRE(root.tick(now).send.empty());
      (void)root.on(0, wire::FlushStaged{1, frame, 10}, now);
    }
    REQUIRE_FALSE(root.failure());
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
    REQUIRE(root.running());
    REQUIRE(root.tick(2 * stall).over == false); // dropped, and waited for once more
    REQUIRE(root.tick(3 * stall).over);
    REQUIRE_FALSE(root.failure());
  }
}

TEST_CASE("a replica that fails is dropped, and the others wait for it no more") {
  RootDelivery root = root_of(4, 2);
  (void)root.begin(1, first_seed, 0);
  for (const std::uint32_t w : {0u, 1u, 2u})
    REQUIRE_FALSE(root.on(w, wire::Ready{1, 0}, 0).may_send_flushes);
  const Actions dropped = root.lost(3, hung_up, 1);
  REQUIRE(dropped.may_send_flushes);
  REQUIRE(to_whom<wire::Undo>(dropped) == Workers{2});
  REQUIRE(root.takes_part(0));
  REQUIRE_FALSE(root.takes_part(2));
  flush_to_all(root, 10);
  REQUIRE_FALSE(root.on(0, wire::FlushStaged{1, 0, 10}, 1).flush_credit);
  REQUIRE(root.on(1, wire::FlushStaged{1, 0, 10}, 1).flush_credit);
  (void)root.on(2, wire::Undone{1, 0}, 1);
  (void)root.seal(no_digests, 2);
  (void)root.on(0, wire::Staged{1, 10}, 2);
  REQUIRE(to_whom<wire::Commit>(root.on(1, wire::Staged{1, 10}, 2)) == (Workers{0, 1}));
  (void)root.on(0, applied_of(1, 1), 3);
  REQUIRE(to_whom<wire::Release>(root.on(1, applied_of(1, 1), 3)) == (Workers{0, 1}));
  (void)root.on(0, wire::Released{1, 1, 0}, 3);
  REQUIRE(root.on(1, wire::Released{1, 1, 0}, 3).over);
  REQUIRE_FALSE(root.failure());
  REQUIRE_THAT(root.records()[2].error, test::contains("worker 3 of its replica was given up"));
  REQUIRE_FALSE(root.catch_up(1)); // its other half is gone
  REQUIRE(root.oldest_version(1) == 1);
}

TEST_CASE("below the quorum nothing is committed, all undo, and the reason names worker and numbers") {
  RootDelivery root = serving(3, 1, 2);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  for (const std::uint32_t w : {0u, 1u, 2u})
    (void)root.on(w, wire::Ready{2, 1}, 0);
  REQUIRE(to_whom<wire::Undo>(root.lost(2, hung_up, 1)).empty());
  REQUIRE_FALSE(root.failure());
  REQUIRE(to_whom<wire::Undo>(root.on(1, wire::Failed{Code::internal, "out of memory", 2}, 1)) == (Workers{1, 0}));
  REQUIRE_THAT(root.failure()->message, test::contains("1 of 2 replicas that must have it (update.quorum) are left"));
  REQUIRE_THAT(root.failure()->message, test::contains("worker 1: out of memory"));
  (void)root.on(0, wire::Undone{2, 1}, 2);
  REQUIRE(root.on(1, wire::Undone{2, 1}, 2).over);
  // Two are there again: both are brought up, in one fold.
  root.begin_update();
  REQUIRE(root.catch_up(2) == DeliveryPlan{Kind::fold, 1, 3});
  REQUIRE_FALSE(root.anyone_for({Kind::delta, 2, 3}));
  REQUIRE(root.anyone_for({Kind::fold, 1, 3}));
  (void)root.lost(1, hung_up, 3);
  REQUIRE_FALSE(root.anyone_for({Kind::fold, 1, 3})); // one alone would commit what two must have
  REQUIRE_THAT(root.nobody().message,
               test::contains("1 of 2 replicas that must have it (update.quorum) can be served"));
  REQUIRE_THAT(root.nobody().message, test::contains("hung up"));
}

TEST_CASE("a replica that has the version already counts for the quorum of the catch-up") {
  RootDelivery root = serving(3, 1, 2);
  // Replicas 1 and 2 miss version 2.
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  for (const std::uint32_t w : {0u, 1u, 2u})
    (void)root.on(w, wire::Ready{2, 1}, 0);
  (void)root.seal(no_digests, 0);
  Actions actions;
  for (const std::uint32_t w : {0u, 1u, 2u})
    actions = root.on(w, wire::Staged{2, 0}, 0);
  REQUIRE(to_whom<wire::Commit>(actions).size() == 3);
  for (const std::uint32_t w : {1u, 2u}) {
    (void)root.on(w, wire::Failed{Code::internal, "out of memory", 2}, 0);
    (void)root.on(w, wire::Undone{2, 1}, 0);
  }
  (void)root.on(0, applied_of(2, 2), 0);
  REQUIRE(root.on(0, wire::Released{2, 2, 0}, 0).over);
  root.begin_update();
  (void)root.begin(3, {Kind::delta, 2, 3}, 0);
  to_end(root, 3, 3, {0});
  const auto plan = root.catch_up(2);
  REQUIRE(plan == DeliveryPlan{Kind::fold, 1, 3});
  (void)root.begin(4, *plan, 0);
  (void)root.on(1, wire::Ready{4, 1}, 0);
  (void)root.on(2, wire::Ready{4, 1}, 0);
  REQUIRE(to_whom<wire::Undo>(root.on(1, wire::Failed{Code::internal, "again", 4}, 0)) == Workers{1});
  REQUIRE_FALSE(root.failure()); // replicas 0 and 2
  REQUIRE(root.takes_part(2));
}

TEST_CASE("a version that is there already needs no quorum: who is left is brought up to it") {
  RootDelivery root = serving(3, 1, 3);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  (void)root.abandon(Failure{Code::superseded, "folded"}, 0);
  (void)root.on(0, wire::Undone{2, 0}, 0); // replica 0 has nothing any more, the others are behind
  (void)root.on(1, wire::Undone{2, 1}, 0);
  (void)root.on(2, wire::Undone{2, 1}, 0);
  const DeliveryPlan seed{Kind::seed, 0, 3}, fold{Kind::fold, 1, 3};
  (void)root.begin(3, seed, 0);
  to_end(root, 3, 3, {0});
  SECTION("when it is asked who takes part") {
    (void)root.lost(2, hung_up, 0);
    REQUIRE_FALSE(root.anyone_for({Kind::delta, 3, 4})); // version 4 is not there: two are left of three
    REQUIRE(root.anyone_for(fold));
    (void)root.begin(4, fold, 0);
    to_end(root, 4, 3, {1});
  }
  SECTION("when a replica drops out") {
    (void)root.begin(4, fold, 0);
    (void)root.on(1, wire::Ready{4, 1}, 0);
    REQUIRE(to_whom<wire::Undo>(root.lost(2, hung_up, 0)).empty());
    stage(root, 4, {1});
    (void)root.on(1, applied_of(4, 3), 0);
    REQUIRE(root.on(1, wire::Released{4, 3, 0}, 0).over);
    REQUIRE_FALSE(root.failure());
  }
  REQUIRE(root.records()[1].version == 3);
}

TEST_CASE("a worker that repeats itself does not hold up the end") {
  RootDelivery root = committing(1, 1);
  (void)root.on(0, wire::Failed{Code::internal, "again", 1}, 0);
  bool over = false;
  for (Nanoseconds now = 0; now <= 2 * stall && !over; now += stall / 10) {
    (void)root.on(0, wire::Failed{Code::internal, "again", 1}, now);
    over = root.tick(now).over;
  }
  REQUIRE(over);
  REQUIRE_THAT(root.records()[0].error, test::contains("worker 0: again"));
}

TEST_CASE("a failure about an earlier delivery changes nothing") {
  RootDelivery root = root_of(1, 1);
  (void)root.begin(5, first_seed, 0);
  REQUIRE(root.on(0, wire::Failed{Code::internal, "late", 4}, 1).send.empty());
  REQUIRE_FALSE(root.failure());
  REQUIRE(root.records()[0].error.empty());
  REQUIRE(root.on(0, wire::Failed{Code::internal, "about no delivery", 0}, 1).send.size() == 1);
}

TEST_CASE("a flush that is acknowledged twice counts once") {
  RootDelivery root = root_of(2, 1);
  (void)root.begin(1, first_seed, 0);
  (void)root.on(0, wire::Ready{1, 0}, 0);
  (void)root.on(1, wire::Ready{1, 0}, 0);
  flush_to_all(root, 10);
  REQUIRE_FALSE(root.on(0, wire::FlushStaged{1, 0, 10}, 1).flush_credit);
  const Actions again = root.on(0, wire::FlushStaged{1, 0, 10}, 2);
  REQUIRE_FALSE(again.flush_credit);
  REQUIRE(again.send.empty());
  REQUIRE(root.on(1, wire::FlushStaged{1, 0, 10}, 3).flush_credit);
  REQUIRE_FALSE(root.failure());
}

TEST_CASE("a worker that calls everything staged before its flushes are is refused") {
  RootDelivery root = root_of(1, 1);
  (void)root.begin(1, first_seed, 0);
  (void)root.on(0, wire::Ready{1, 0}, 0);
  flush_to_all(root, 10);
  (void)root.seal(no_digests, 0);
  REQUIRE(to_whom<wire::Commit>(root.on(0, wire::Staged{1, 10}, 1)).empty());
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0 sent Staged out of order"));
}

TEST_CASE("a worker that staged other bytes than were sent is dropped with both numbers") {
  RootDelivery root = root_of(1, 1);
  (void)root.begin(1, first_seed, 0);
  (void)root.on(0, wire::Ready{1, 0}, 0);
  flush_to_all(root, 10);
  (void)root.on(0, wire::FlushStaged{1, 0, 10}, 0);
  (void)root.seal(no_digests, 0);
  (void)root.on(0, wire::Staged{1, 9}, 1);
  REQUIRE(root.failure()->code == Code::verification_failed);
  REQUIRE_THAT(root.failure()->message, test::contains("worker 0 staged 9 bytes of delivery 1, 10 were sent"));
}

TEST_CASE("workers at different versions are brought together: each kind of delivery goes to whom it fits") {
  RootDelivery root = committing(2, 1);
  (void)root.on(0, applied_of(1, 1), 1);
  (void)root.on(0, wire::Released{1, 1, 0}, 2);
  (void)root.on(1, wire::Failed{Code::internal, "out of memory", 1}, 3);
  REQUIRE(root.on(1, wire::Undone{1, 0}, 4).over);
  REQUIRE(root.records()[1].dirty); // its seed was begun and came to nothing
  const auto plan = root.catch_up(1);
  REQUIRE(plan == DeliveryPlan{Kind::seed, 0, 2});
  root.begin_update();
  REQUIRE(to_whom<wire::Begin>(root.begin(2, {Kind::delta, 1, 2}, 5)) == Workers{0});
  to_end(root, 2, 2, {0}, 5);
  REQUIRE(root.anyone_for(*plan));
  REQUIRE(to_whom<wire::Begin>(root.begin(3, *plan, 5)) == Workers{1});
  to_end(root, 3, 2, {1}, 5);
  REQUIRE(root.records()[0].version == 2);
  REQUIRE(root.records()[1].version == 2);
  REQUIRE_FALSE(root.records()[1].dirty);
  REQUIRE_FALSE(root.catch_up(2));
  REQUIRE_FALSE(root.anyone_for(*plan));
}

TEST_CASE("a delta goes to replicas at its base, a fold to those from its base on, a seed to those with nothing") {
  RootDelivery root = serving(6, 2);
  // Replica 0 goes on to version 2 alone, replica 1 stays at 1, and one of replica 2 loses what it had.
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  for (std::uint32_t w = 0; w < 6; ++w)
    (void)root.on(w, wire::Ready{2, 1}, 0);
  (void)root.on(2, wire::Failed{Code::internal, "x", 2}, 0);
  (void)root.on(4, wire::Failed{Code::internal, "x", 2}, 0);
  for (const std::uint32_t w : {2u, 3u, 4u})
    (void)root.on(w, wire::Undone{2, 1}, 0);
  (void)root.on(5, wire::Undone{2, 0}, 0);
  (void)root.seal(no_digests, 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, wire::Staged{2, 0}, 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, applied_of(2, 2), 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, wire::Released{2, 2, 0}, 0);
  REQUIRE_FALSE(root.running());
  const auto takers = [&](const DeliveryPlan& plan) {
    RootDelivery copy = root;
    return copy.anyone_for(plan) ? to_whom<wire::Begin>(copy.begin(9, plan, 0)) : Workers{};
  };
  REQUIRE(takers({Kind::delta, 2, 3}) == (Workers{0, 1}));
  REQUIRE(takers({Kind::delta, 1, 3}) == (Workers{2, 3}));
  REQUIRE(takers({Kind::delta, 0, 3}).empty()); // nothing fits on nothing
  REQUIRE(takers({Kind::fold, 1, 3}) == (Workers{0, 1, 2, 3}));
  REQUIRE(takers({Kind::fold, 2, 3}) == (Workers{0, 1}));
  REQUIRE(takers({Kind::fold, 1, 2}) == (Workers{2, 3})); // never back, and never again
  REQUIRE(takers({Kind::seed, 0, 3}) == (Workers{4, 5})); // whole replicas
  REQUIRE(root.oldest_version(2) == 1);
}

TEST_CASE("a seed that has begun takes the old version out of the record: it is written in place") {
  RootDelivery root = serving(2, 2);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  (void)root.abort(hung_up, 0);
  (void)root.on(0, wire::Undone{2, 1}, 0);
  REQUIRE(root.on(1, wire::Undone{2, 0}, 0).over);
  REQUIRE(root.records()[0].version == 1);
  (void)root.begin(3, {Kind::seed, 0, 3}, 0);
  for (const auto& record : root.records()) {
    REQUIRE(record.version == 0);
    REQUIRE(record.dirty);
  }
}

TEST_CASE("where both are needed seeds and folds take turns, so that a seed that always fails keeps nobody behind") {
  RootDelivery root = serving(2, 1);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, wire::Ready{2, 1}, 0);
  (void)root.abort(hung_up, 0);
  (void)root.on(0, wire::Undone{2, 1}, 0);
  REQUIRE(root.on(1, wire::Undone{2, 0}, 0).over); // replica 0 is behind, replica 1 has nothing
  std::vector<Kind> kinds;
  for (std::uint64_t version = 2; version < 6; ++version)
    kinds.push_back(root.catch_up(version)->kind);
  REQUIRE((kinds == std::vector<Kind>{Kind::seed, Kind::fold, Kind::seed, Kind::fold}));
  REQUIRE(root.catch_up(6) == DeliveryPlan{Kind::seed, 0, 7});
  REQUIRE(root.catch_up(7) == DeliveryPlan{Kind::fold, 1, 8}); // its base is the one that is behind, not the empty one
}

TEST_CASE("an update that is abandoned before its commit is over at once, and everyone is folded") {
  RootDelivery root = serving(2, 1);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  for (const std::uint32_t w : {0u, 1u})
    (void)root.on(w, wire::Ready{2, 1}, 0);
  flush_to_all(root, 10);
  const Actions abandoned = root.abandon(Failure{Code::superseded, "folded"}, 1);
  REQUIRE(to_whom<wire::Undo>(abandoned) == (Workers{0, 1}));
  REQUIRE(abandoned.over);
  REQUIRE(root.failure()->code == Code::superseded);
  REQUIRE(root.failure()->message == "folded");
  // The next one begins before anybody has answered.
  const auto plan = root.catch_up(2);
  REQUIRE(plan == DeliveryPlan{Kind::fold, 1, 3});
  root.begin_update();
  REQUIRE(to_whom<wire::Begin>(root.begin(3, *plan, 2)) == (Workers{0, 1}));
  REQUIRE(root.on(0, wire::FlushStaged{2, 0, 10}, 3).send.empty());
  REQUIRE(root.on(0, wire::Undone{2, 1}, 3).send.empty());
  REQUIRE(root.on(1, wire::Undone{2, 1}, 3).send.empty());
  REQUIRE(root.running());
  to_end(root, 3, 3, {0, 1}, 4);
}

TEST_CASE("an update cannot be abandoned any more once it is committed") {
  RootDelivery root = committing(2, 1);
  REQUIRE(root.abandon(Failure{Code::superseded, "folded"}, 1).send.empty());
  REQUIRE_FALSE(root.failure());
  (void)root.on(0, applied_of(1, 1), 1);
  (void)root.on(1, applied_of(1, 1), 1);
  (void)root.on(0, wire::Released{1, 1, 0}, 1);
  REQUIRE(root.on(1, wire::Released{1, 1, 0}, 1).over);
}

TEST_CASE("an abort after a release leaves the version where it is: only the others undo") {
  RootDelivery root = committing(2, 1);
  (void)root.on(0, applied_of(1, 1), 1);
  const Actions aborted = root.abort(Failure{Code::peer_failed, "rank 2 hung up"}, 2);
  REQUIRE(to_whom<wire::Undo>(aborted) == Workers{1});
  (void)root.on(1, wire::Undone{1, 0}, 3);
  REQUIRE(root.on(0, wire::Released{1, 1, 0}, 3).over);
  REQUIRE_FALSE(root.failure()); // replica 0 serves it
  REQUIRE(root.records()[0].version == 1);
  REQUIRE(root.records()[1].error == "rank 2 hung up");
}

TEST_CASE("a worker that stood still is not served until it has answered what it owes, however late") {
  RootDelivery root = serving(2, 1);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  (void)root.on(0, wire::Ready{2, 1}, 0);
  REQUIRE(to_whom<wire::Undo>(root.tick(stall)) == Workers{1});
  REQUIRE(root.running());
  REQUIRE_THAT(root.records()[1].error, test::contains("worker 1 made no progress for 8.0 s (update.stall)"));
  stage(root, 2, {0}, stall);
  (void)root.on(0, applied_of(2, 2), stall);
  REQUIRE(root.on(0, wire::Released{2, 2, 0}, stall).over); // its answer is not waited for
  const auto planned = root.catch_up(2);                    // it may go on before the next update
  REQUIRE(planned == DeliveryPlan{Kind::fold, 1, 3});
  REQUIRE(root.oldest_version(2) == 1); // it may come back
  root.begin_update();
  REQUIRE_THAT(root.records()[1].error, test::contains("worker 1 made no progress")); // still why
  (void)root.begin(3, {Kind::delta, 2, 3}, 3 * stall);
  to_end(root, 3, 3, {0}, 3 * stall);
  (void)root.on(1, wire::Ready{2, 1}, 4 * stall); // it goes on, and begins with what it has missed
  const auto next = root.catch_up(3);
  REQUIRE(next == DeliveryPlan{Kind::fold, 1, 4});
  (void)root.on(1, wire::Undone{2, 1}, 4 * stall);
  REQUIRE(root.anyone_for(*next));
}

TEST_CASE("after an update that nobody could take, the next one heals whoever has undone it by then") {
  RootDelivery root = serving(2, 2); // one replica
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  (void)root.on(0, wire::Ready{2, 1}, 0);
  REQUIRE(to_whom<wire::Undo>(root.tick(stall)) == (Workers{0, 1})); // worker 1 stands still
  REQUIRE(root.on(0, wire::Undone{2, 1}, stall).over);
  REQUIRE(root.failure());
  const auto planned = root.catch_up(2); // as soon as the update is over
  REQUIRE(planned == DeliveryPlan{Kind::fold, 1, 3});
  (void)root.on(1, wire::Undone{2, 1}, 2 * stall);
  root.begin_update();
  REQUIRE_FALSE(root.anyone_for({Kind::delta, 2, 3}));
  REQUIRE(root.anyone_for(*planned));
}

TEST_CASE("a worker that is not heard of is left out at once, and taken in again when it is heard") {
  SECTION("between updates") {
    RootDelivery root = serving(2, 1);
    REQUIRE(root.silent(1, Failure{Code::timed_out, "nothing was heard of it"}, 1).send.empty());
    REQUIRE_FALSE(root.catch_up(1));
    REQUIRE(to_whom<wire::Begin>(root.begin(2, {Kind::delta, 1, 2}, 2)) == Workers{0});
    to_end(root, 2, 2, {0}, 2);
    REQUIRE(root.records()[1].error == "worker 1: nothing was heard of it");
    root.heard(1);
    REQUIRE(root.catch_up(2) == DeliveryPlan{Kind::fold, 1, 3});
  }
  SECTION("in an update it is not waited for") {
    RootDelivery root = serving(2, 1);
    (void)root.begin(2, {Kind::delta, 1, 2}, 0);
    (void)root.on(0, wire::Ready{2, 1}, 0);
    const Actions dropped = root.silent(1, Failure{Code::timed_out, "nothing was heard of it"}, 1);
    REQUIRE(to_whom<wire::Undo>(dropped) == Workers{1});
    REQUIRE(dropped.may_send_flushes);
    stage(root, 2, {0}, 2);
    (void)root.on(0, applied_of(2, 2), 2);
    REQUIRE(root.on(0, wire::Released{2, 2, 0}, 2).over);
    root.heard(1);
    const auto planned = root.catch_up(2); // its Undone is still owed
    REQUIRE(planned == DeliveryPlan{Kind::fold, 1, 3});
    (void)root.on(1, wire::Undone{2, 1}, 3);
    REQUIRE(root.anyone_for(*planned));
  }
  SECTION("alone, it fails the update by name") {
    RootDelivery root = serving(1, 1);
    (void)root.silent(0, Failure{Code::timed_out, "nothing was heard of it"}, 1);
    REQUIRE_FALSE(root.anyone_for({Kind::delta, 1, 2}));
    REQUIRE(root.nobody().code == Code::timed_out);
    REQUIRE(root.nobody().message == "no replica can be served: worker 0: nothing was heard of it");
  }
}

TEST_CASE("an engine that fails after its release is a failed worker at the target, and is served again") {
  RootDelivery root = serving(2, 1);
  (void)root.begin(2, {Kind::delta, 1, 2}, 0);
  to_commit(root, 2, {0, 1});
  (void)root.on(0, applied_of(2, 2), 0);
  SECTION("before it says Released") {
    REQUIRE(to_whom<wire::Undo>(root.on(0, wire::Failed{Code::peer_failed, "on_commit threw", 2}, 1)).empty());
    (void)root.on(0, wire::Released{2, 2, 0}, 1);
  }
  SECTION("after it") {
    (void)root.on(0, wire::Released{2, 2, 0}, 1);
    REQUIRE(to_whom<wire::Undo>(root.on(0, wire::Failed{Code::peer_failed, "on_commit threw", 2}, 1)).empty());
  }
  REQUIRE(root.records()[0].version == 2);
  REQUIRE(root.records()[0].error == "worker 0: on_commit threw");
  (void)root.on(1, applied_of(2, 2), 1);
  REQUIRE(root.on(1, wire::Released{2, 2, 0}, 1).over);
  // And once more, where the next update is abandoned: nothing is held against it.
  (void)root.begin(3, {Kind::delta, 2, 3}, 2);
  REQUIRE(root.takes_part(0));
  REQUIRE(root.abandon(Failure{Code::superseded, "folded"}, 2).over);
  REQUIRE(to_whom<wire::Begin>(root.begin(4, {Kind::fold, 2, 4}, 3)) == (Workers{0, 1}));
}

TEST_CASE("with no worker left nobody takes part, and the reason is told") {
  RootDelivery root = root_of(1, 1);
  REQUIRE_FALSE(root.lost(0, hung_up, 0).over);
  REQUIRE_FALSE(root.anyone_for(first_seed));
  REQUIRE_FALSE(root.catch_up(0));
  REQUIRE(root.nobody().code == Code::peer_failed);
  REQUIRE(root.nobody().message == "no replica can be served: worker 0: hung up");
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
    REQUIRE(root.silent(9, Failure{}, 1).send.empty());
  }
  REQUIRE(to_whom<wire::Release>(root.on(0, applied_of(1, 1), 2)) == Workers{0});
  REQUIRE(root.on(0, wire::Released{1, 1, 0}, 3).over);
  REQUIRE_FALSE(root.failure());
}
