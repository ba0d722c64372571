// Contract of sync/capture_walk.hpp and credit.hpp, in random simulations: the capture waits for nobody, credit keeps
// to its cap, and everything is encoded in walk order as credit comes back. The simulated gather drains in walk order
// only, so that a walk which lets a later chunk take the credit of an earlier one stands still: one such is planted.
#include "catch.hpp"
#include "random.hpp"

#include "sync/capture_walk.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

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

struct Verdict {
  std::string broken; ///< the promise that did not hold; empty = all held
  bool stands_still = false;
  std::uint64_t hand_outs = 0;
  std::uint64_t deferred = 0;
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

  const std::uint64_t captures = uniform(random, 1, 4);
  std::uint64_t queued = 0;                         // encoded bytes that have not left the rank
  std::map<std::uint64_t, std::uint64_t> undrained; // walk position over all captures -> bytes left of a chunk
  std::uint64_t drained = 0;                        // walk positions below this one have left
  for (std::uint64_t capture = 0; capture < captures; ++capture) {
    const bool seed = uniform(random, 0, 4) == 0;
    const std::uint64_t quiet = uniform(random, 0, 3); // how much changes
    const bool credit_waits = uniform(random, 0, 2) == 0;
    std::vector<std::uint64_t> changed(chunks);
    std::vector<std::uint64_t> encoded(chunks);
    for (std::size_t i = 0; i < chunks; ++i)
      if (worst[i] > 0 && (seed || uniform(random, 0, 3) >= quiet)) {
        changed[i] = uniform(random, 1, 100);
        encoded[i] = uniform(random, 0, 3) == 0 ? worst[i] : uniform(random, 1, worst[i]);
      }
    walk.start(seed);
    std::vector<HandOut> out;
    std::vector<int> captured(chunks);
    std::vector<int> gone(chunks); // encoded or skipped
    std::size_t captures_done = 0;
    std::size_t chunks_done = 0;
    std::size_t next_capture = 0;
    std::size_t next_encode = 0;
    const std::uint64_t first_position = capture * chunks;
    while (verdict.broken.empty()) {
      // The ledger's oracle: what is out with credit, plus what was encoded and has not left.
      std::uint64_t expected = queued;
      for (const HandOut& each : out)
        if (each.work == Work::encode || each.work == Work::capture_and_encode)
          expected += worst[each.chunk];
      if (walk.reserved() != expected)
        broken("reserved credit is what is out and what is queued");
      if (walk.reserved() > cap)
        broken("credit never passes the cap");
      if (walk.captured() != (captures_done == chunks))
        broken("captured() tells when every chunk was captured");
      if (walk.idle() != (captures_done == chunks && chunks_done == chunks && out.empty()))
        broken("idle() tells when nothing is left to read");
      if (out.size() > at_once)
        broken("no more chunks are out than may be");

      const bool drains = !undrained.empty() && undrained.begin()->first == drained;
      const bool may_drain = drains && !(credit_waits && captures_done < chunks);
      const std::uint64_t choice = uniform(random, 0, 2);
      if (choice == 0 || (out.empty() && !may_drain)) {
        if (const auto hand_out = walk.next()) {
          ++verdict.hand_outs;
          const std::uint32_t chunk = hand_out->chunk;
          if (chunk >= chunks) {
            broken("only chunks of the walk are handed out");
            break;
          }
          if (hand_out->work == Work::capture || hand_out->work == Work::capture_and_encode) {
            if (chunk != next_capture++ || captured[chunk]++ != 0)
              broken("every chunk is captured once, in walk order");
          }
          if (hand_out->work == Work::encode || hand_out->work == Work::skip) {
            ++verdict.deferred;
            if (captures_done < chunks)
              broken("a deferred chunk is encoded after the capture");
            if ((hand_out->work == Work::skip) != (changed[chunk] == 0))
              broken("a deferred chunk is skipped when nothing changed in it");
          }
          if (hand_out->work == Work::capture_and_encode && seed)
            broken("a seed is logged and encoded later");
          if (hand_out->work != Work::capture) {
            // The planted walk breaks this promise too; what it is there for is the standstill.
            if (chunk != next_encode && std::is_same_v<Walk, CaptureWalk>)
              broken("chunks are encoded in walk order");
            ++next_encode;
          }
          out.push_back(*hand_out);
          continue;
        }
        if (out.empty() && !may_drain) {
          if (captures_done < chunks)
            broken("a capture waits for no credit");
          else if (chunks_done < chunks)
            verdict.stands_still = true;
          break;
        }
      } else if (choice == 1 && !out.empty()) {
        const std::size_t which = uniform(random, 0, out.size() - 1);
        const HandOut done = out[which];
        out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
        const bool captures_it = done.work == Work::capture || done.work == Work::capture_and_encode;
        const bool encodes_it = done.work == Work::encode || done.work == Work::capture_and_encode;
        const std::uint64_t bytes = encodes_it ? encoded[done.chunk] : 0;
        if (captures_it)
          ++captures_done;
        if (done.work != Work::capture) {
          ++chunks_done;
          if (gone[done.chunk]++ != 0)
            broken("every chunk is encoded or skipped once");
          undrained[first_position + done.chunk] = bytes;
          queued += bytes;
        }
        walk.done(done, captures_it ? changed[done.chunk] : 0, bytes);
        while (!undrained.empty() && undrained.begin()->first == drained && undrained.begin()->second == 0) {
          undrained.erase(undrained.begin());
          ++drained;
        }
      } else if (choice == 2 && may_drain) {
        std::uint64_t& left = undrained.begin()->second;
        const std::uint64_t bytes = uniform(random, 1, left);
        left -= bytes;
        queued -= bytes;
        walk.returned(bytes);
        while (!undrained.empty() && undrained.begin()->first == drained && undrained.begin()->second == 0) {
          undrained.erase(undrained.begin());
          ++drained;
        }
      }
    }
    if (verdict.stands_still || !verdict.broken.empty())
      return verdict;
    if (!walk.idle())
      broken("a capture ends idle");
  }
  return verdict;
}

} // namespace

TEST_CASE("a capture waits for nobody and everything is encoded in walk order as credit comes back") {
  constexpr std::uint64_t schedules = 4000;
  CAPTURE(test::seed());
  std::uint64_t hand_outs = 0;
  std::uint64_t deferred = 0;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    auto random = test::generator(7100 + schedule);
    const Verdict verdict = simulate<CaptureWalk>(random);
    if (!verdict.broken.empty() || verdict.stands_still)
      FAIL("schedule " << schedule << ": " << (verdict.stands_still ? "it stands still" : verdict.broken));
    hand_outs += verdict.hand_outs;
    deferred += verdict.deferred;
  }
  fmt::print("capture walk: seed {}, {} schedules, {} chunks handed out, {} of them deferred\n", test::seed(),
             schedules, hand_outs, deferred);
  REQUIRE(deferred > 1000);
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
