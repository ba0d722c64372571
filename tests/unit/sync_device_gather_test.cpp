// Contract of sync/device_gather.hpp and, below it, sync/stream_owner.hpp: a root and its ranks in random schedules
// over a fake communicator that plays every fault, and books that share nothing with the machines. They prove the
// machines, not NCCL.
//
// Held to: nothing is launched outside a window, and a window that was told closed has nothing of ours on its device;
// no memory is used again before its event was reached or the device was quiet; what was gathered is what the ranks
// sent, byte for byte; every round, every connection, every slot that a rank was asked to fill and every window ends,
// once, with a cause where it failed; whatever happened, ranks connect again afterwards.
#include "catch.hpp"
#include "device_fabric.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/device_gather.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace {

using namespace deltawire;
using namespace deltawire::sync;
using test::Fabric;
using test::FakeCommunicator;

std::byte pattern(std::uint64_t round, std::uint32_t rank, std::size_t i) {
  return static_cast<std::byte>(round * 131 + rank * 31 + i * 7 + 1);
}

struct Counts {
  std::uint64_t connected = 0, connect_failed = 0, gathered = 0, empty = 0, through_host = 0, failed = 0, sent = 0,
                cancelled = 0, send_failed = 0, windows = 0, windows_failed = 0, lost = 0, aborts = 0, told_late = 0;
  std::map<std::string, std::uint64_t> faults;
};

constexpr std::uint64_t slot_bytes = 96;

/// A rank's side of the books.
struct Books {
  std::uint64_t open = 0;              ///< windows
  std::uint64_t not_told = 0;          ///< that are closed and not told so
  std::set<std::uint64_t> waiters;     ///< for windows
  std::map<std::uint64_t, bool> fills; ///< round -> not filled yet; ends with Sent, Cancelled or SendFailed
};

class Simulation {
public:
  Simulation(std::uint64_t schedule, Counts& counts) : fabric_(test::generator(9100000 + schedule)), counts_(counts) {
    ranks_ = static_cast<std::uint32_t>(2 + fabric_.upto(3));
    slots_ = static_cast<std::uint32_t>(1 + fabric_.upto(2));
    fabric_.rare = fabric_.once_in(5) ? 0 : 20 + fabric_.upto(400);
    StreamOwner::Limits limits{60, 120, 60};
    memory_.resize(ranks_);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      for (std::uint32_t slot = 0; slot < slots_; ++slot)
        memory_[rank].emplace_back(slot_bytes);
      DeviceGatherRoot::Slots spans(memory_[rank].begin(), memory_[rank].end());
      fakes_.push_back(std::make_unique<FakeCommunicator>(fabric_, rank));
      fakes_.back()->may_be_lost = fabric_.once_in(10);
      fakes_.back()->in_window = [this, rank] { return books_[rank].open + books_[rank].not_told > 0; };
      owners_.push_back(std::make_unique<StreamOwner>(*fakes_.back(), slots_, limits));
      DeviceHello hello{fmt::format("host-{}", rank), {}};
      hello.device[3] = static_cast<std::byte>(rank);
      if (rank == 0)
        root_.emplace(*owners_[0], spans, hello, ranks_, DeviceGatherRoot::Limits{200, 60});
      else
        others_.emplace(rank, DeviceGatherRank(*owners_[rank], spans, hello, rank, ranks_, {150}));
    }
    books_.resize(ranks_);
    up_.resize(ranks_);
    down_.resize(ranks_);
  }

  void run() {
    for (std::uint64_t steps = 300 + fabric_.upto(900); steps > 0; --steps) {
      user();
      step();
    }
    // No new faults; what was stuck stays stuck. All that waits is to be told.
    fabric_.rare = 0;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      while (books_[rank].open > 0)
        close_window(rank);
    for (int i = 0; i < 1500; ++i)
      step();
    REQUIRE(rounds_.empty());
    REQUIRE(connects_.empty());
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      CAPTURE(rank);
      REQUIRE(books_[rank].waiters.empty());
      REQUIRE(books_[rank].fills.empty());
      if (!fakes_[rank]->lost)
        REQUIRE(fakes_[rank]->is_silent());
    }
    REQUIRE(root_groups() <= counted_groups_);
    if (std::any_of(fakes_.begin(), fakes_.end(), [](const auto& fake) { return fake->lost; })) {
      ++counts_.lost;
      return;
    }
    while (!kept_.empty())
      consume(0);
    // Whatever it was, they connect again, and a round goes from device to device.
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      open_window(rank);
    if (!root_->ready())
      connect();
    for (int i = 0; i < 1200 && !root_->ready(); ++i)
      step();
    INFO(last_connect_failure_);
    REQUIRE(root_->ready());
    const std::uint64_t before = device_rounds_;
    // Ranks may have to end what they held: a round may go through host memory until then.
    for (int i = 0; i < 400 && device_rounds_ == before; ++i) {
      if (rounds_.empty())
        gather(true);
      step();
      while (!kept_.empty())
        consume(0);
    }
    REQUIRE(device_rounds_ > before);
  }

  void finish() {
    for (const auto& [what, times] : fabric_.faults)
      counts_.faults[what] += times;
    for (const auto& fake : fakes_)
      counts_.aborts += fake->aborts;
  }

private:
  struct Kept {
    std::uint32_t slot;
    std::uint64_t round;
    std::vector<DeviceGatherRoot::Part> parts;
  };

  void ok(const Result<void>& result) {
    INFO((result ? std::string() : result.error().message));
    REQUIRE(result);
  }

  void open_window(std::uint32_t rank) {
    ++books_[rank].open;
    rank == 0 ? root_->open_window() : others_.at(rank).open_window();
  }
  void close_window(std::uint32_t rank) {
    const std::uint64_t waiter = ++last_waiter_;
    --books_[rank].open;
    ++books_[rank].not_told;
    books_[rank].waiters.insert(waiter);
    ok(rank == 0 ? root_->close_window(waiter) : others_.at(rank).close_window(waiter));
    hear(rank);
  }
  void connect() {
    connects_.insert(++last_waiter_);
    ok(root_->connect(last_waiter_));
    hear(0);
  }
  void gather(bool something = false) {
    std::vector<DeviceGatherRoot::Share> shares;
    std::uint64_t left = slot_bytes;
    for (std::uint32_t rank = 1; rank < ranks_; ++rank)
      if (something || fabric_.once_in(2)) {
        const std::uint64_t most = fabric_.once_in(40) ? slot_bytes : left / 2;
        shares.push_back({rank, something ? 1 : fabric_.once_in(3) ? 0 : fabric_.upto(most)});
        left -= std::min(left, shares.back().bytes);
      }
    std::map<std::uint32_t, std::uint64_t>& expected = rounds_[++last_round_];
    for (const auto& share : shares)
      if (share.bytes > 0)
        expected[share.rank] = share.bytes;
    ok(root_->gather(last_round_, shares));
    hear(0);
  }
  void consume(std::size_t which) {
    check_bytes(kept_[which]);
    root_->consumed(kept_[which].slot);
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void check_bytes(const Kept& kept) {
    for (const auto& part : kept.parts)
      for (std::size_t i = 0; i < part.memory.size(); ++i)
        if (part.memory[i] != pattern(kept.round, part.rank, i))
          FAIL(fmt::format("round {}: byte {} of rank {} is not what it sent", kept.round, i, part.rank));
  }

  /// What the callers of the machines do, at any moment.
  void user() {
    const auto rank = static_cast<std::uint32_t>(fabric_.upto(ranks_ - 1));
    if (fabric_.once_in(6) && books_[rank].open < 2)
      open_window(rank);
    if (fabric_.once_in(60) && books_[rank].open > 0)
      close_window(rank);
    if (fabric_.once_in(8) && connects_.empty() && !root_->ready())
      connect();
    if (fabric_.once_in(5) && rounds_.size() < 6)
      gather();
    if (fabric_.once_in(6) && !kept_.empty())
      consume(fabric_.upto(kept_.size() - 1));
    if (fabric_.rare != 0 && fabric_.once_in(4 * fabric_.rare)) {
      const Failure why = fabric_.fault("called off from outside");
      rank == 0 ? root_->abort(why) : others_.at(rank).abort(why);
      hear(rank);
    }
  }

  void step() {
    fabric_.step();
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (!fabric_.once_in(3)) {
        rank == 0 ? root_->tick() : others_.at(rank).tick();
        hear(rank);
      }
      if (rank == 0)
        continue;
      if (!up_[rank].empty() && fabric_.once_in(2)) {
        const ToRoot message = std::move(up_[rank].front());
        up_[rank].pop_front();
        ok(root_->on(rank, message));
        hear(0);
      }
      if (!down_[rank].empty() && fabric_.once_in(2)) {
        const ToRank message = std::move(down_[rank].front());
        down_[rank].pop_front();
        ok(others_.at(rank).on(message));
        hear(rank);
      }
      fill(rank);
    }
    INFO((fabric_.violations.empty() ? std::string() : fabric_.violations.front()));
    REQUIRE(fabric_.violations.empty());
  }

  void fill(std::uint32_t rank) {
    for (auto& [step, fill] : fills_[rank])
      if (fabric_.once_in(3)) {
        for (std::size_t i = 0; i < fill.memory.size(); ++i)
          fill.memory[i] = pattern(fill.round, rank, i);
        const std::uint64_t number = step;
        fills_[rank].erase(number);
        others_.at(rank).filled(number);
        hear(rank);
        return;
      }
  }

  /// A failure has a cause: one that was planted, or a deadline.
  void check_cause(const Failure& why) {
    INFO(why.message);
    const bool has_cause =
      why.message.find("planted: ") != std::string::npos || why.message.find("ticks") != std::string::npos;
    REQUIRE(has_cause);
  }

  void hear(std::uint32_t rank) {
    if (rank != 0) {
      for (ToRoot& message : others_.at(rank).messages())
        up_[rank].push_back(std::move(message));
      for (auto& notice : others_.at(rank).notices())
        std::visit([&](const auto& told) { heard(rank, told); }, notice);
      return;
    }
    for (auto& [to, message] : root_->messages())
      down_[to].push_back(std::move(message));
    for (auto& notice : root_->notices())
      std::visit([&](const auto& told) { heard(0, told); }, notice);
  }

  void heard(std::uint32_t rank, const StreamOwner::WindowClosed& closed) {
    Books& books = books_[rank];
    REQUIRE(books.waiters.erase(closed.waiter) == 1);
    --books.not_told;
    ++counts_.windows;
    if (!closed.how) {
      ++counts_.windows_failed;
      check_cause(closed.how.error());
    }
    if (books.open + books.not_told == 0 && !fakes_[rank]->lost)
      REQUIRE(fakes_[rank]->is_silent());
  }
  void heard(std::uint32_t, const DeviceGatherRoot::Connected& connected) {
    REQUIRE(connects_.erase(connected.waiter) == 1);
    if (connected.how) {
      ++counts_.connected;
      ++counted_groups_; // the first bytes
      REQUIRE(connected.memory.size() == ranks_);
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
        REQUIRE(connected.memory[rank] == 1000 * (rank + 1));
        REQUIRE(fakes_[rank]->alive() | (fabric_.rare != 0));
      }
    } else {
      ++counts_.connect_failed;
      ++counted_groups_; // at most
      last_connect_failure_ = connected.how.error().message;
      check_cause(connected.how.error());
    }
  }
  void heard(std::uint32_t, const DeviceGatherRoot::Gathered& gathered) {
    const auto expected = rounds_.extract(gathered.round);
    REQUIRE(expected);
    REQUIRE(gathered.parts.size() == expected.mapped().size());
    REQUIRE(gathered.slot.has_value() == !expected.mapped().empty());
    for (const auto& part : gathered.parts)
      REQUIRE(expected.mapped().at(part.rank) == part.memory.size());
    if (!gathered.slot) {
      ++counts_.empty;
      return;
    }
    ++counts_.gathered;
    ++counted_groups_;
    ++device_rounds_;
    kept_.push_back({*gathered.slot, gathered.round, gathered.parts});
    check_bytes(kept_.back());
  }
  void heard(std::uint32_t, const DeviceGatherRoot::ThroughHost& host) {
    REQUIRE(rounds_.erase(host.round) == 1);
    REQUIRE_FALSE(host.why.empty());
    ++counts_.through_host;
  }
  void heard(std::uint32_t, const DeviceGatherRoot::RoundFailed& failed) {
    REQUIRE(rounds_.erase(failed.round) == 1);
    check_cause(failed.why);
    ++counts_.failed;
    ++counted_groups_; // at most
  }
  void heard(std::uint32_t rank, const DeviceGatherRank::Fill& fill) {
    REQUIRE(books_[rank].fills.emplace(fill.round, true).second);
    fills_[rank].emplace(fill.step, fill);
  }
  void ended(std::uint32_t rank, std::uint64_t round) {
    REQUIRE(books_[rank].fills.erase(round) == 1);
    std::erase_if(fills_[rank], [round](const auto& fill) { return fill.second.round == round; });
  }
  void heard(std::uint32_t rank, const DeviceGatherRank::Sent& sent) {
    ended(rank, sent.round);
    ++counts_.sent;
  }
  void heard(std::uint32_t rank, const DeviceGatherRank::Cancelled& cancelled) {
    ended(rank, cancelled.round);
    REQUIRE_FALSE(cancelled.why.empty());
    ++counts_.cancelled;
  }
  void heard(std::uint32_t rank, const DeviceGatherRank::SendFailed& failed) {
    ended(rank, failed.round);
    check_cause(failed.why);
    ++counts_.send_failed;
  }
  void heard(std::uint32_t rank, const DeviceGatherRank::Disconnected& gone) {
    check_cause(gone.why);
    REQUIRE(gone.epoch > last_gone_[rank]); // an epoch ends once, and none comes back
    last_gone_[rank] = gone.epoch;
  }

  [[nodiscard]] std::uint64_t root_groups() const { return fakes_[0]->groups; }

  Fabric fabric_;
  Counts& counts_;
  std::uint32_t ranks_ = 0, slots_ = 0;
  std::vector<std::vector<std::vector<std::byte>>> memory_; ///< by rank and slot
  std::vector<std::unique_ptr<FakeCommunicator>> fakes_;
  std::vector<std::unique_ptr<StreamOwner>> owners_;
  std::optional<DeviceGatherRoot> root_;
  std::map<std::uint32_t, DeviceGatherRank> others_;
  std::vector<Books> books_;
  std::vector<std::deque<ToRoot>> up_;
  std::vector<std::deque<ToRank>> down_;
  std::map<std::uint32_t, std::map<std::uint64_t, DeviceGatherRank::Fill>> fills_;
  std::map<std::uint64_t, std::map<std::uint32_t, std::uint64_t>> rounds_; ///< not told -> rank -> bytes
  std::set<std::uint64_t> connects_;                                       ///< not told
  std::map<std::uint32_t, std::uint64_t> last_gone_;
  std::vector<Kept> kept_;
  std::string last_connect_failure_;
  std::uint64_t last_waiter_ = 0, last_round_ = 0, counted_groups_ = 0, device_rounds_ = 0;
};

} // namespace

TEST_CASE("rounds between devices, whatever fails and whoever waits") {
  CAPTURE(test::seed());
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < 2000; ++schedule) {
    CAPTURE(schedule);
    Simulation simulation(schedule, counts);
    simulation.run();
    simulation.finish();
  }
  fmt::print(
    "device gather: seed {}, connected {}, not connected {}; rounds: gathered {}, of nothing {}, through host "
    "memory {}, failed {}; shares: sent {}, cancelled {}, failed {}; windows closed {}, by an abort {}; aborts "
    "{}, jobs with a lost device {}\n",
    test::seed(), counts.connected, counts.connect_failed, counts.gathered, counts.empty, counts.through_host,
    counts.failed, counts.sent, counts.cancelled, counts.send_failed, counts.windows, counts.windows_failed,
    counts.aborts, counts.lost);
  for (const auto& [what, times] : counts.faults)
    fmt::print("  {}: {}\n", what, times);
  CHECK(counts.connected > 1000);
  CHECK(counts.gathered > 5000);
  CHECK(counts.failed > 200);
  CHECK(counts.through_host > 1000);
  CHECK(counts.send_failed > 200);
  CHECK(counts.cancelled > 200);
  CHECK(counts.windows_failed > 50);
  CHECK(counts.lost > 5);
  CHECK(counts.faults.size() >= 14);
}
