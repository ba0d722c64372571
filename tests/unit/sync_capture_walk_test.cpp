// Contract of sync/capture_walk.hpp and credit.hpp, in random simulations: the capture waits for nobody, credit keeps
// to its cap, and everything is encoded in walk order as credit comes back, first the changes, then the catch-up;
// either may be dropped at any moment. The simulated gather drains in walk order only, so that a walk which lets a
// later chunk take the credit of an earlier one stands still: one such is planted.
#include "catch.hpp"
#include "random.hpp"

#include "sync/capture_walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <type_traits>

namespace {

using namespace deltawire;
using sync::CaptureWalk;
using HandOut = CaptureWalk::HandOut;
using Work = CaptureWalk::Work;

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

/// The planted mistake: a chunk that does not fit is deferred, and a later one may still take what credit is left.
class GreedyWalk {
public:
  GreedyWalk(std::vector<std::uint64_t> worst, std::uint64_t inflight, std::uint32_t at_once)
    : worst_(std::move(worst)), credit_(inflight), at_once_(at_once), cursor_(worst_.size()), captured_(worst_.size()) {
  }
  void start(bool seed) {
    cursor_ = captured_ = 0;
    seed_ = seed;
    changed_.clear();
  }
  std::optional<HandOut> next() {
    if (out_ >= at_once_)
      return std::nullopt;
    if (cursor_ < worst_.size()) {
      const auto chunk = static_cast<std::uint32_t>(cursor_++);
      ++out_;
      return HandOut{chunk, !seed_ && credit_.reserve(worst_[chunk]) ? Work::capture_and_encode : Work::capture};
    }
    if (!captured() || deferred_.empty())
      return std::nullopt;
    const std::uint32_t chunk = *deferred_.begin();
    if (changed_[chunk] != 0 && !credit_.reserve(worst_[chunk]))
      return std::nullopt;
    deferred_.erase(deferred_.begin());
    ++out_;
    return HandOut{chunk, changed_[chunk] == 0 ? Work::skip : Work::encode};
  }
  void done(const HandOut& hand_out, std::uint64_t changed, std::uint64_t encoded) {
    --out_;
    if (hand_out.work == Work::capture || hand_out.work == Work::capture_and_encode) {
      ++captured_;
      changed_[hand_out.chunk] = changed;
    }
    if (hand_out.work == Work::capture)
      deferred_.insert(hand_out.chunk);
    if (hand_out.work == Work::encode || hand_out.work == Work::capture_and_encode)
      credit_.refund(worst_[hand_out.chunk] - encoded);
  }
  void returned(std::uint64_t bytes) { credit_.refund(bytes); }
  bool captured() const { return captured_ == worst_.size(); }
  bool idle() const { return captured() && deferred_.empty() && out_ == 0; }
  std::uint64_t reserved() const { return credit_.reserved(); }

private:
  std::vector<std::uint64_t> worst_;
  sync::CreditLedger credit_;
  std::uint32_t at_once_;
  std::uint32_t out_ = 0;
  std::size_t cursor_;
  std::size_t captured_;
  bool seed_ = false;
  std::set<std::uint32_t> deferred_;
  std::map<std::uint32_t, std::uint64_t> changed_;
};

bool needs_credit(Work work) {
  return work == Work::encode || work == Work::capture_and_encode || work == Work::catch_up;
}
bool captures(Work work) {
  return work == Work::capture || work == Work::capture_and_encode;
}

/// What a gather has of one walk over the chunks. It drains them in walk order.
struct Drain {
  bool exists = false;
  bool dropped = false;
  std::vector<std::optional<std::uint64_t>> left; ///< by chunk: encoded bytes that have not left; nothing: not encoded
  std::size_t next = 0;                           ///< chunks before this one have left wholly

  void add(std::uint32_t chunk, std::uint64_t bytes) {
    left[chunk] = bytes;
    skip_empty();
  }
  void take(std::uint64_t bytes) {
    *left[next] -= bytes;
    skip_empty();
  }
  void skip_empty() {
    while (next < left.size() && left[next] && *left[next] == 0)
      ++next;
  }
  [[nodiscard]] bool over() const { return !exists || dropped || next == left.size(); }
  [[nodiscard]] bool can_drain() const { return !over() && left[next].has_value(); }
};

struct Verdict {
  std::string broken; ///< the promise that did not hold; empty = all held
  bool stands_still = false;
  std::uint64_t hand_outs = 0;
  std::uint64_t deferred = 0;
  std::uint64_t caught_up = 0;
  std::uint64_t drops = 0;
};

/// Some captures of one rank, with Differs that finish in any order and a gather that drains in walk order.
template <class Walk>
Verdict simulate(std::mt19937_64& random) {
  const std::uint64_t cap = uniform(random, 1, 1000);
  const std::size_t chunks = uniform(random, 0, 30);
  const auto at_once = static_cast<std::uint32_t>(uniform(random, 1, 6));
  const std::uint64_t most = uniform(random, 1, cap);
  std::vector<std::uint64_t> worst(chunks);
  for (std::uint64_t& bytes : worst)
    bytes = uniform(random, 0, 3) == 0 ? uniform(random, 1, cap) : uniform(random, 0, most);

  Walk walk(worst, cap, at_once);
  Verdict verdict;
  const auto broken = [&](const char* promise) {
    if (verdict.broken.empty())
      verdict.broken = promise;
  };
  if (!walk.idle() || walk.next())
    broken("a walk is idle before its first capture");

  constexpr bool real = std::is_same_v<Walk, CaptureWalk>; // the planted one knows neither catch-ups nor drops
  const std::uint64_t rounds = uniform(random, 1, 4);
  std::uint64_t queued = 0;  // encoded bytes that have not left the rank
  std::vector<Drain> drains; // two a capture: its changes, its catch-up
  std::size_t draining = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const bool seed = uniform(random, 0, 4) == 0;
    const std::uint64_t quiet = uniform(random, 0, 3); // how much changes
    const bool credit_waits = uniform(random, 0, 2) == 0;
    const bool catches_up = real && uniform(random, 0, 2) == 0;
    const bool drops = real && uniform(random, 0, 2) == 0;
    std::vector<std::uint64_t> changed(chunks);
    std::vector<std::uint64_t> encoded(chunks);
    std::vector<std::uint64_t> caught_up(chunks);
    for (std::size_t i = 0; i < chunks; ++i) {
      if (worst[i] == 0)
        continue;
      if (seed || uniform(random, 0, 3) >= quiet) {
        changed[i] = uniform(random, 1, 100);
        encoded[i] = uniform(random, 0, 3) == 0 ? worst[i] : uniform(random, 1, worst[i]);
      }
      caught_up[i] = uniform(random, 0, 2) == 0 ? worst[i] : uniform(random, 0, worst[i]);
    }
    walk.start(seed);
    const std::size_t own = drains.size(), catch_up = own + 1;
    drains.resize(own + 2);
    for (Drain* drain : {&drains[own], &drains[catch_up]})
      drain->left.resize(chunks);
    drains[own].exists = chunks > 0;
    std::vector<HandOut> out;
    std::vector<int> captured(chunks);
    std::size_t captures_done = 0;
    std::size_t next_capture = 0;
    std::size_t next_encode = 0; // of the changes
    std::size_t next_catch_up = 0;
    std::size_t encoded_done = 0;
    while (verdict.broken.empty()) {
      // The ledger's oracle: what is out with credit, plus what was encoded and has not left.
      std::uint64_t expected = queued;
      for (const HandOut& each : out)
        if (needs_credit(each.work))
          expected += worst[each.chunk];
      if (walk.reserved() != expected)
        broken("reserved credit is what is out and what is queued");
      if (walk.reserved() > cap)
        broken("credit never passes the cap");
      if (walk.captured() != (captures_done == chunks))
        broken("captured() tells when every chunk was captured");
      const bool own_read = drains[own].dropped || encoded_done == chunks;
      const bool catch_up_read = !drains[catch_up].exists || drains[catch_up].dropped || next_catch_up == chunks;
      if (walk.idle() != (captures_done == chunks && own_read && catch_up_read && out.empty()))
        broken("idle() tells when nothing is left to read");
      if (out.size() > at_once)
        broken("no more chunks are out than may be");

      if constexpr (real) {
        if (catches_up && chunks > 0 && !drains[catch_up].exists && uniform(random, 0, 3) == 0) {
          drains[catch_up].exists = true;
          walk.add_catch_up();
        }
        if (drops && uniform(random, 0, 15) == 0) {
          const bool changes = uniform(random, 0, 1) == 0;
          Drain& drain = drains[changes ? own : catch_up];
          if (drain.exists && !drain.dropped) {
            ++verdict.drops;
            drain.dropped = true;
            changes ? walk.drop_changes() : walk.drop_catch_up();
            // GatherQueue forgets what it has of it.
            std::uint64_t bytes = 0;
            for (const auto& left : drain.left)
              bytes += left.value_or(0);
            queued -= bytes;
            walk.returned(bytes);
            continue;
          }
        }
      }
      while (draining < drains.size() && drains[draining].over() &&
             (draining < own || (draining == own && (drains[own].dropped || encoded_done == chunks))))
        ++draining;
      const bool may_drain =
        draining < drains.size() && drains[draining].can_drain() && !(credit_waits && captures_done < chunks);
      const bool waits_for_plan = catches_up && chunks > 0 && !drains[catch_up].exists;
      const std::uint64_t choice = uniform(random, 0, 2);
      if (choice == 0 || (out.empty() && !may_drain)) {
        if (const auto hand_out = walk.next()) {
          ++verdict.hand_outs;
          const std::uint32_t chunk = hand_out->chunk;
          const Work work = hand_out->work;
          if (chunk >= chunks) {
            broken("only chunks of the walk are handed out");
            break;
          }
          if (captures(work)) {
            if (chunk != next_capture++ || captured[chunk]++ != 0)
              broken("every chunk is captured once, in walk order");
          } else if (captures_done < chunks)
            broken("a chunk is encoded again only after the capture");
          if (work == Work::encode || work == Work::skip) {
            ++verdict.deferred;
            if ((work == Work::skip) != (changed[chunk] == 0))
              broken("a deferred chunk is skipped when nothing changed in it");
          }
          if (work == Work::capture_and_encode && seed)
            broken("a seed is logged and encoded later");
          if (work == Work::catch_up) {
            ++verdict.caught_up;
            if (!drains[catch_up].exists || drains[catch_up].dropped)
              broken("only a catch-up that is wanted is encoded");
            if (chunk != next_catch_up++)
              broken("the catch-up is encoded once, in walk order");
            if (!drains[own].dropped && next_encode != chunks)
              broken("the catch-up comes after the changes");
          } else if (work != Work::capture) {
            if (drains[own].dropped)
              broken("dropped changes are not encoded any more");
            // The planted walk breaks this promise too; what it is there for is the standstill.
            if (chunk != next_encode && real)
              broken("chunks are encoded in walk order");
            ++next_encode;
          }
          out.push_back(*hand_out);
          continue;
        }
        if (out.empty() && !may_drain && !waits_for_plan) {
          if (captures_done < chunks)
            broken("a capture waits for no credit");
          else if (!walk.idle())
            verdict.stands_still = true;
          break;
        }
      } else if (choice == 1 && !out.empty()) {
        const std::size_t which = uniform(random, 0, out.size() - 1);
        const HandOut done = out[which];
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
        const bool catching_up = done.work == Work::catch_up;
        const std::uint64_t bytes =
          !needs_credit(done.work) ? 0 : (catching_up ? caught_up[done.chunk] : encoded[done.chunk]);
        captures_done += captures(done.work) ? 1 : 0;
        walk.done(done, captures(done.work) ? changed[done.chunk] : 0, bytes);
        if (done.work != Work::capture) {
          Drain& drain = drains[catching_up ? catch_up : own];
          encoded_done += catching_up ? 0 : 1;
          if (drain.left[done.chunk])
            broken("every chunk is encoded or skipped once");
          if (drain.dropped) {
            walk.returned(bytes);
          } else {
            drain.add(done.chunk, bytes);
            queued += bytes;
          }
        }
      } else if (choice == 2 && may_drain) {
        Drain& drain = drains[draining];
        const std::uint64_t bytes = uniform(random, 1, *drain.left[drain.next]);
        drain.take(bytes);
        queued -= bytes;
        walk.returned(bytes);
      }
    }
    if (verdict.stands_still || !verdict.broken.empty())
      return verdict;
    if (!walk.idle())
      broken("a capture ends idle");
  }
  return verdict;
}

/// One capture in parts: chunks become ready in any order while a gather drains those that are encoded, until it is
/// finished or aborted with some chunks left; then a whole capture. Returns the promise that did not hold.
std::string simulate_parts(std::mt19937_64& random, std::uint64_t& early, std::uint64_t& ahead) {
  const std::uint64_t cap = uniform(random, 1, 1000);
  const auto chunks = static_cast<std::uint32_t>(uniform(random, 0, 24));
  std::vector<std::uint64_t> worst(chunks);
  for (std::uint64_t& bytes : worst)
    bytes = uniform(random, 1, uniform(random, 0, 2) == 0 ? cap : (cap + 3) / 4);
  CaptureWalk walk(worst, cap, static_cast<std::uint32_t>(uniform(random, 1, 6)));
  for (int round = 0; round < 3; ++round) {
    const bool seed = uniform(random, 0, 3) == 0, in_parts = round < 2, aborts = in_parts && uniform(random, 0, 2) == 0;
    const bool drains = uniform(random, 0, 2) != 0; // while the caller is at it
    std::vector<std::uint32_t> order(chunks);       // in which the caller sends
    for (std::uint32_t c = 0; c < chunks; ++c)
      order[c] = c;
    if (uniform(random, 0, 2) != 0)
      std::shuffle(order.begin(), order.end(), random);
    const std::uint64_t parts = in_parts ? uniform(random, 0, chunks) : chunks;
    std::vector<std::uint64_t> encoded(chunks);
    std::set<std::uint32_t> log_only;
    for (std::uint32_t c = 0; c < chunks; ++c) {
      encoded[c] = uniform(random, 0, 3) == 0 ? 0 : uniform(random, 1, worst[c]);
      if (uniform(random, 0, 4) == 0)
        log_only.insert(c);
    }
    in_parts ? walk.start_in_parts(seed) : walk.start(seed);
    bool finished = !in_parts, dropped = false;
    std::set<std::uint32_t> ready;
    if (!in_parts)
      ready.insert(order.begin(), order.end());
    std::size_t sent = 0;
    std::vector<HandOut> out;
    std::set<std::uint32_t> handed_out, captured_done;
    std::uint32_t next_encode = 0, next_drain = 0;
    std::vector<std::optional<std::uint64_t>> queued(chunks); // encoded and not drained
    for (;;) {
      if (walk.captured() != (finished && captured_done.size() == chunks))
        return "captured() tells when it is finished and every chunk was captured";
      const bool read_out = dropped || next_encode == chunks;
      if (walk.idle() != (walk.captured() && read_out && out.empty()))
        return "idle() tells when nothing is left to read";
      const bool can_drain = next_drain < chunks && queued[next_drain] && (drains || finished);
      const std::uint64_t choice = uniform(random, 0, 3);
      if (choice == 0 && !finished) {
        if (sent < parts) {
          walk.ready(order[sent]);
          ready.insert(order[sent++]);
        } else {
          if (aborts) {
            walk.drop_changes();
            dropped = true;
            for (auto& bytes : queued) { // as GatherQueue gives back what nobody takes
              walk.returned(bytes.value_or(0));
              bytes.reset();
            }
          }
          for (auto c = log_only.begin(); c != log_only.end();)
            c = ready.contains(*c) ? log_only.erase(c) : std::next(c);
          walk.finish(std::vector<std::uint32_t>(log_only.begin(), log_only.end()));
          finished = true;
          ready.insert(order.begin(), order.end());
        }
        continue;
      }
      if (choice == 1 && !out.empty()) {
        const std::size_t which = uniform(random, 0, out.size() - 1);
        const HandOut done = out[which];
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
        const std::uint64_t bytes = done.work == Work::capture || done.work == Work::skip ? 0 : encoded[done.chunk];
        walk.done(done, captures(done.work) ? encoded[done.chunk] : 0, bytes);
        if (captures(done.work))
          captured_done.insert(done.chunk);
        if (done.work != Work::capture) {
          if (dropped)
            walk.returned(bytes);
          else
            queued[done.chunk] = bytes;
        }
        continue;
      }
      if (choice == 2 && can_drain) {
        walk.returned(*queued[next_drain]);
        queued[next_drain++].reset();
        continue;
      }
      const auto hand_out = walk.next();
      if (!hand_out) {
        if (out.empty() && finished && !can_drain) {
          if (!walk.captured())
            return "a capture waits for no credit";
          if (!walk.idle())
            return "it stands still";
          break;
        }
        // Whatever is ready is captured, though nothing is finished and no credit comes back.
        if (out.empty() && handed_out.size() != ready.size())
          return "what is ready is captured at once";
        continue;
      }
      const std::uint32_t chunk = hand_out->chunk;
      if (captures(hand_out->work)) {
        if (!ready.contains(chunk))
          return "only what is ready is captured";
        if (!handed_out.insert(chunk).second)
          return "every chunk is captured once";
        early += finished ? 0 : 1;
        ahead += chunk > next_encode ? 1 : 0;
      } else if (!captured_done.contains(chunk)) {
        return "a chunk is encoded after it was captured";
      }
      if (hand_out->work == Work::capture_and_encode && (seed || (in_parts && finished && log_only.contains(chunk))))
        return "what goes into the log only is not encoded with its capture";
      if (hand_out->work != Work::capture) {
        if (dropped)
          return "dropped changes are not encoded any more";
        if (chunk != next_encode++)
          return "chunks are encoded in walk order";
        if (hand_out->work == Work::skip && encoded[chunk] != 0)
          return "a chunk with changes is not skipped";
      }
      if (walk.reserved() > cap)
        return "credit never passes the cap";
      out.push_back(*hand_out);
    }
    if (walk.reserved() != 0)
      return "all credit has come back";
  }
  return "";
}

} // namespace

TEST_CASE("chunks of a capture in parts are captured as they become ready and encoded in walk order") {
  constexpr std::uint64_t schedules = 4000;
  CAPTURE(test::seed());
  std::uint64_t early = 0, ahead = 0;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    auto random = test::generator(7500 + schedule);
    const std::string broken = simulate_parts(random, early, ahead);
    if (!broken.empty())
      FAIL("schedule " << schedule << ": " << broken);
  }
  fmt::print("capture walk in parts: seed {}, {} schedules, {} chunks captured before the last part was sent, {} ahead "
             "of their turn\n",
             test::seed(), schedules, early, ahead);
  REQUIRE(early > 1000);
  REQUIRE(ahead > 1000);
}

TEST_CASE("a capture waits for nobody and everything is encoded in walk order as credit comes back") {
  constexpr std::uint64_t schedules = 4000;
  CAPTURE(test::seed());
  std::uint64_t hand_outs = 0;
  std::uint64_t deferred = 0;
  std::uint64_t caught_up = 0;
  std::uint64_t drops = 0;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    auto random = test::generator(7100 + schedule);
    const Verdict verdict = simulate<CaptureWalk>(random);
    if (!verdict.broken.empty() || verdict.stands_still)
      FAIL("schedule " << schedule << ": " << (verdict.stands_still ? "it stands still" : verdict.broken));
    hand_outs += verdict.hand_outs;
    deferred += verdict.deferred;
    caught_up += verdict.caught_up;
    drops += verdict.drops;
  }
  fmt::print(
    "capture walk: seed {}, {} schedules, {} chunks handed out, {} of them deferred, {} for catch-ups; {} times "
    "something was dropped\n",
    test::seed(), schedules, hand_outs, deferred, caught_up, drops);
  REQUIRE(deferred > 1000);
  REQUIRE(caught_up > 1000);
  REQUIRE(drops > 500);
}

TEST_CASE("a walk that lets a later chunk take the credit of an earlier one stands still in the same simulation") {
  CAPTURE(test::seed());
  std::uint64_t still = 0;
  for (std::uint64_t schedule = 0; schedule < 500; ++schedule) {
    auto random = test::generator(7100 + schedule);
    const Verdict verdict = simulate<GreedyWalk>(random);
    CAPTURE(schedule, verdict.broken);
    REQUIRE(verdict.broken.empty());
    still += verdict.stands_still ? 1 : 0;
  }
  fmt::print("capture walk: the planted greedy walk stands still in {} of 500 schedules\n", still);
  REQUIRE(still > 10);
}

TEST_CASE("chunks that do not fit the credit, and all after them, go into the log only") {
  CaptureWalk walk({60, 50, 10}, 100, 3);
  walk.start(false);
  const auto first = walk.next();
  const auto second = walk.next();
  const auto third = walk.next();
  REQUIRE(first->work == Work::capture_and_encode);
  REQUIRE(second->work == Work::capture);
  REQUIRE(third->work == Work::capture);
  REQUIRE_FALSE(walk.next());
  walk.done(*third, 1, 0);
  walk.done(*second, 1, 0);
  REQUIRE_FALSE(walk.captured());
  walk.done(*first, 5, 60);
  REQUIRE(walk.captured());
  REQUIRE_FALSE(walk.idle());
  REQUIRE_FALSE(walk.next()); // chunk 1 needs 50, 40 are left; chunk 2 must not overtake it
  walk.returned(10);
  REQUIRE(walk.next()->chunk == 1);
  REQUIRE_FALSE(walk.next());
}

TEST_CASE("a catch-up begins when the changes are handed out, waits for credit, and keeps the next capture waiting") {
  CaptureWalk walk({60, 60}, 100, 2);
  walk.start(false);
  walk.add_catch_up();
  const auto first = walk.next();
  const auto second = walk.next();
  REQUIRE(second->work == Work::capture);
  walk.done(*first, 1, 60);
  walk.done(*second, 0, 0);
  REQUIRE(walk.captured());
  const auto skipped = walk.next();
  REQUIRE(skipped->work == Work::skip);
  REQUIRE_FALSE(walk.next()); // 40 are left
  walk.done(*skipped, 0, 0);
  REQUIRE_FALSE(walk.next());
  REQUIRE_FALSE(walk.idle());
  walk.returned(20);
  const auto again = walk.next();
  REQUIRE(again->work == Work::catch_up);
  REQUIRE(again->chunk == 0);
  REQUIRE_FALSE(walk.next());
  walk.done(*again, 0, 10);
  REQUIRE_FALSE(walk.next());
  walk.returned(40);
  const auto last = walk.next();
  REQUIRE(last->chunk == 1);
  REQUIRE_FALSE(walk.idle());
  walk.done(*last, 0, 0);
  REQUIRE(walk.idle());
  REQUIRE(walk.reserved() == 10);
}

TEST_CASE("a catch-up may be added after the capture was read, and dropped while a chunk of it is out") {
  CaptureWalk walk({10, 10}, 100, 2);
  walk.start(false);
  for (int chunk = 0; chunk < 2; ++chunk)
    walk.done(*walk.next(), 1, 10);
  REQUIRE(walk.idle());
  walk.add_catch_up();
  REQUIRE_FALSE(walk.idle());
  const auto out = walk.next();
  walk.drop_catch_up();
  REQUIRE_FALSE(walk.next());
  REQUIRE_FALSE(walk.idle());
  walk.done(*out, 0, 10);
  walk.returned(10);
  REQUIRE(walk.idle());
  walk.start(false); // the next capture brings no catch-up of its own accord
  for (int chunk = 0; chunk < 2; ++chunk)
    walk.done(*walk.next(), 0, 0);
  REQUIRE(walk.idle());
}

TEST_CASE("changes that nobody takes are captured all the same, into the log") {
  CaptureWalk walk({10, 10, 10}, 100, 1);
  walk.start(false);
  const auto first = walk.next();
  REQUIRE(first->work == Work::capture_and_encode);
  walk.drop_changes();
  walk.done(*first, 1, 10);
  walk.returned(10);
  for (int chunk = 1; chunk < 3; ++chunk) {
    const auto next = walk.next();
    REQUIRE(next->work == Work::capture);
    walk.done(*next, 1, 0);
  }
  REQUIRE(walk.captured());
  REQUIRE(walk.idle());
  REQUIRE_FALSE(walk.next());
  REQUIRE(walk.reserved() == 0);
  walk.start(false); // the next one is wanted again
  REQUIRE(walk.next()->work == Work::capture_and_encode);
}

TEST_CASE("what is in front of the walk is encoded while the caller is at it, and the rest waits for its turn") {
  CaptureWalk walk({10, 10, 10}, 100, 4);
  walk.start_in_parts(false);
  REQUIRE_FALSE(walk.next());
  walk.ready(1);
  const auto second = walk.next();
  REQUIRE((second->chunk == 1 && second->work == Work::capture));
  walk.done(*second, 1, 0);
  REQUIRE_FALSE(walk.next()); // chunk 0 comes before it
  walk.ready(0);
  const auto first = walk.next();
  REQUIRE((first->chunk == 0 && first->work == Work::capture_and_encode));
  const auto again = walk.next();
  REQUIRE((again->chunk == 1 && again->work == Work::encode));
  walk.done(*first, 1, 5);
  walk.done(*again, 0, 5);
  REQUIRE_FALSE(walk.captured());
  const std::uint32_t patched[] = {2};
  walk.finish(patched);
  const auto third = walk.next();
  REQUIRE((third->chunk == 2 && third->work == Work::capture));
  walk.done(*third, 1, 0);
  REQUIRE(walk.captured());
  REQUIRE(walk.next()->work == Work::encode);
}

TEST_CASE("a chunk that encodes to more than its worst case does not free the credit of others") {
  CaptureWalk walk({10, 90}, 100, 2);
  walk.start(false);
  const auto first = walk.next();
  const auto second = walk.next();
  REQUIRE(walk.reserved() == 100);
  walk.done(*first, 1, 11);
  REQUIRE(walk.reserved() == 100);
  walk.done(*second, 1, 90);
  REQUIRE(walk.reserved() == 100);
}

TEST_CASE("a walk is blocked where only credit is missing: never by captures, until a chunk leaves") {
  CaptureWalk walk({60, 60, 60}, 100, 2);
  REQUIRE_FALSE(walk.blocked()); // nothing to do
  walk.start(false);
  const HandOut first = *walk.next(), second = *walk.next();
  REQUIRE(first.work == Work::capture_and_encode);
  REQUIRE(second.work == Work::capture); // no credit, no wait
  REQUIRE_FALSE(walk.next());
  REQUIRE_FALSE(walk.blocked()); // the Differs have enough
  walk.done(second, 5, 0);
  const HandOut third = *walk.next();
  walk.done(third, 0, 0);
  REQUIRE_FALSE(walk.next());
  REQUIRE_FALSE(walk.blocked()); // a chunk is still being captured
  walk.done(first, 5, 50);
  REQUIRE_FALSE(walk.next()); // 50 of 100 are taken, the next needs 60
  REQUIRE(walk.blocked());
  walk.returned(50);
  const HandOut encode = *walk.next();
  REQUIRE(encode.chunk == 1);
  REQUIRE(encode.work == Work::encode);
  REQUIRE(walk.next()->work == Work::skip); // nothing changed: no credit
  REQUIRE_FALSE(walk.blocked());

  walk.done(encode, 0, 60);
  walk.done({2, Work::skip}, 0, 0);
  REQUIRE(walk.idle());
  REQUIRE_FALSE(walk.blocked());
  walk.add_catch_up();
  REQUIRE_FALSE(walk.next());
  REQUIRE(walk.blocked());
  walk.drop_catch_up();
  REQUIRE_FALSE(walk.blocked());
}

TEST_CASE("the ledger refuses what passes its cap and never gives back more than was taken") {
  sync::CreditLedger ledger(100);
  REQUIRE(ledger.reserve(60));
  REQUIRE_FALSE(ledger.reserve(41));
  REQUIRE_FALSE(ledger.reserve(UINT64_MAX));
  REQUIRE(ledger.reserved() == 60);
  REQUIRE(ledger.reserve(40));
  ledger.refund(150);
  REQUIRE(ledger.reserved() == 0);
  REQUIRE(ledger.cap() == 100);
  sync::CreditLedger unlimited(UINT64_MAX);
  REQUIRE(unlimited.reserve(UINT64_MAX - 1));
  REQUIRE_FALSE(unlimited.reserve(2));
}
