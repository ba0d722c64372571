// A fake of transport::Communicator among the ranks of one process, which plays every fault, and a judge of how it is
// used. It proves the machines that drive it, not NCCL: what NCCL does on a device is for a device to show.
//
// Transfers take many steps. What is sent is read when both sides run it, what is received is written then and again
// when it ends, so that memory that is used for something else meanwhile is found out. What an abort ends goes on
// writing until the device is quiet.
#pragma once

#include "transport/communicator.hpp"

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace deltawire::test {

class FakeCommunicator;

struct Fabric {
  explicit Fabric(std::mt19937_64 generator) : random(std::move(generator)) {}

  /// True about once in `times`.
  bool once_in(std::uint64_t times) {
    return times != 0 && std::uniform_int_distribution<std::uint64_t>(1, times)(random) == 1;
  }
  std::uint64_t upto(std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random); }

  Failure fault(const std::string& what) {
    ++faults[what];
    return {Code::peer_failed, "planted: " + what};
  }
  void violated(const std::string& what) { violations.push_back(what); }

  /// A step of the devices' own.
  void step();

  std::mt19937_64 random;
  std::map<std::uint32_t, FakeCommunicator*> members;
  std::uint64_t rare = 0; ///< a fault about once in so many calls; 0: none
  std::uint64_t last_id = 0;
  std::map<std::string, std::uint64_t> faults; ///< played, by name
  std::vector<std::string> violations;
};

class FakeCommunicator final : public transport::Communicator {
public:
  using Progress = transport::Progress;

  FakeCommunicator(Fabric& fabric, std::uint32_t rank) : fabric_(fabric), rank_(rank) { fabric.members[rank] = this; }

  /// Whether the rank may launch now, by books that share nothing with the machine.
  std::function<bool()> in_window = [] { return true; };

  Result<transport::UniqueId> make_id() override {
    if (fabric_.once_in(fabric_.rare))
      return tl::make_unexpected(fabric_.fault("no id"));
    transport::UniqueId id{};
    std::memcpy(id.data(), &++fabric_.last_id, sizeof fabric_.last_id);
    return id;
  }

  Result<Progress> begin(const transport::UniqueId& id, std::uint32_t ranks, std::uint32_t rank) override {
    launching("a communicator");
    if (alive_ || !is_quiet())
      fabric_.violated("a communicator begins where there is one");
    if (rank != rank_)
      fabric_.violated("another rank's number");
    std::memcpy(&id_, id.data(), sizeof id_);
    ranks_ = ranks;
    alive_ = joining_ = true;
    never_joins_ = fabric_.once_in(fabric_.rare);
    if (never_joins_)
      ++fabric_.faults["never joins"];
    error_.reset();
    if (fabric_.once_in(fabric_.rare))
      return tl::make_unexpected(*(error_ = fabric_.fault("begin fails")));
    return Progress::under_way;
  }

  Result<Progress> poll() override {
    if (!alive_)
      fabric_.violated("a poll without a communicator");
    if (error_)
      return tl::make_unexpected(*error_);
    return joining_ || enqueueing_ > 0 ? Progress::under_way : Progress::done;
  }

  Result<void> group_begin() override {
    launching("a group");
    usable("a group");
    if (depth_++ != 0)
      fabric_.violated("a group in a group: the last one was not ended");
    building_ = {};
    if (fabric_.once_in(fabric_.rare)) {
      --depth_;
      return tl::make_unexpected(fabric_.fault("no group"));
    }
    return {};
  }

  Result<void> send(std::span<const std::byte> memory, std::uint32_t peer) override {
    return add({true, peer, const_cast<std::byte*>(memory.data()), memory.size(), {}, false});
  }
  Result<void> receive(std::span<std::byte> memory, std::uint32_t peer) override {
    return add({false, peer, memory.data(), memory.size(), {}, false});
  }

  Result<Progress> group_end() override {
    if (--depth_ != 0)
      fabric_.violated("a group ends that has not begun");
    if (broken_group_) {
      broken_group_ = false;
      return Progress::done;
    }
    if (fabric_.once_in(fabric_.rare))
      return tl::make_unexpected(fabric_.fault("a group's end fails"));
    ++groups;
    if (building_.transfers.empty())
      fabric_.violated("a group of nothing");
    building_.number = ++last_operation_;
    building_.late = fabric_.once_in(6) ? fabric_.upto(30) : fabric_.upto(3);
    building_.stuck = fabric_.once_in(fabric_.rare);
    if (building_.stuck)
      ++fabric_.faults["stuck"];
    enqueueing_ = fabric_.once_in(2) ? 1 + fabric_.upto(4) : 0;
    if (enqueueing_ > 0 && fabric_.once_in(fabric_.rare)) {
      ++fabric_.faults["never enqueued"];
      enqueueing_ = UINT64_MAX;
    }
    if (enqueueing_ > 0)
      return Progress::under_way;
    stream_.push_back(std::move(building_));
    return Progress::done;
  }

  Result<void> record(std::uint32_t slot) override {
    usable("an event");
    if (fabric_.once_in(fabric_.rare))
      return tl::make_unexpected(fabric_.fault("an event is not recorded"));
    events_[slot] = last_operation_;
    return {};
  }

  Result<Progress> reached(std::uint32_t slot) override {
    if (!events_.contains(slot))
      fabric_.violated("an event that was not recorded in this epoch");
    if (fabric_.once_in(2 * fabric_.rare))
      return tl::make_unexpected(fabric_.fault("an event fails"));
    if (!error_ && fabric_.once_in(2 * fabric_.rare))
      end_by_error("an error between two questions");
    const bool there = events_[slot] <= done_;
    if (there && fabric_.once_in(4)) {
      ++fabric_.faults["reordered"]; // a later event may be seen before this one
      return Progress::under_way;
    }
    return there ? Progress::done : Progress::under_way;
  }

  void abort() override {
    if (!alive_)
      fabric_.violated("an abort without a communicator, or a second one");
    if (depth_ != 0)
      fabric_.violated("an abort inside a group");
    alive_ = joining_ = false;
    enqueueing_ = 0;
    aborted_ = std::move(stream_);
    stream_.clear();
    events_.clear();
    ++aborts;
    quiet_in_ = fabric_.upto(20);
    if (may_be_lost && fabric_.once_in(4 * fabric_.rare)) {
      ++fabric_.faults["never quiet"];
      lost = true;
      quiet_in_ = UINT64_MAX;
    } else if (may_be_lost && fabric_.once_in(4 * fabric_.rare)) {
      lost = quiet_fails_ = true;
    }
  }

  Result<Progress> quiet() override {
    if (quiet_fails_)
      return tl::make_unexpected(fabric_.fault("the device fails"));
    return is_quiet() ? Progress::done : Progress::under_way;
  }

  Result<std::uint64_t> free_memory() override {
    usable("a question for memory", false);
    if (fabric_.once_in(4 * fabric_.rare))
      return tl::make_unexpected(fabric_.fault("no answer for memory"));
    return 1'000'000 - (alive_ ? 1000 * (rank_ + 1) : 0);
  }

  /// Nothing of ours is on the device, or may come to it.
  [[nodiscard]] bool is_silent() const { return is_quiet() && stream_.empty() && !joining_ && enqueueing_ == 0; }
  [[nodiscard]] bool alive() const { return alive_; }

  // What the device does in a step.
  void step() {
    if (quiet_in_ > 0 && quiet_in_ != UINT64_MAX && --quiet_in_ == 0) {
      for (const Operation& operation : aborted_)
        scribble(operation);
      aborted_.clear();
    }
    if (!alive_)
      return;
    if (joining_ && !never_joins_ && fabric_.once_in(3)) {
      std::uint32_t there = 0;
      for (const auto& [rank, member] : fabric_.members)
        there += member->alive_ && member->id_ == id_ && !member->never_joins_ ? 1 : 0;
      if (there == ranks_)
        joining_ = false;
    }
    if (enqueueing_ > 0 && enqueueing_ != UINT64_MAX && --enqueueing_ == 0)
      stream_.push_back(std::move(building_));
    if (!joining_ && !error_ && fabric_.once_in(20 * fabric_.rare))
      return end_by_error("an asynchronous error");
    if (!stream_.empty())
      run(stream_.front());
  }

  std::uint64_t groups = 0, aborts = 0;
  bool may_be_lost = false;
  bool lost = false;

private:
  struct Transfer {
    bool sends;
    std::uint32_t peer;
    std::byte* memory;
    std::size_t bytes;
    std::vector<std::byte> moved;
    bool matched;
  };
  struct Operation {
    std::uint64_t number = 0;
    std::vector<Transfer> transfers;
    std::uint64_t late = 0;
    bool stuck = false;
  };

  [[nodiscard]] bool is_quiet() const { return quiet_in_ == 0; }

  void launching(const char* what) {
    if (!in_window())
      fabric_.violated(std::string(what) + " outside a launch window");
  }
  void usable(const char* what, bool needs_communicator = true) {
    if ((needs_communicator && !alive_) || (alive_ && (joining_ || enqueueing_ > 0)))
      fabric_.violated(std::string(what) + " without a communicator, or while it is busy");
  }

  Result<void> add(Transfer transfer) {
    if (depth_ != 1)
      fabric_.violated("a transfer outside a group");
    if (transfer.bytes == 0)
      fabric_.violated("a transfer of nothing");
    if (error_) {
      broken_group_ = true;
      return tl::make_unexpected(*error_);
    }
    if (fabric_.once_in(fabric_.rare)) {
      broken_group_ = true;
      return tl::make_unexpected(fabric_.fault("a transfer fails in the middle of a group"));
    }
    building_.transfers.push_back(std::move(transfer));
    return {};
  }

  static void scribble(const Operation& operation) {
    for (const Transfer& transfer : operation.transfers)
      if (!transfer.sends)
        std::memset(transfer.memory, 0xEE, transfer.bytes);
  }

  /// What an error ends reaches its events.
  void end_by_error(const char* what) {
    error_ = fabric_.fault(what);
    for (const Operation& operation : stream_) {
      scribble(operation);
      done_ = operation.number;
    }
    stream_.clear();
    if (enqueueing_ > 0)
      enqueueing_ = UINT64_MAX; // it does not come any more
  }

  /// The first operation of the stream: transfers meet their other halves, then it ends.
  void run(Operation& operation) {
    bool all = true;
    for (Transfer& mine : operation.transfers) {
      if (!mine.matched)
        match(mine);
      all = all && mine.matched;
    }
    if (!all || operation.stuck)
      return;
    if (operation.late > 0) {
      --operation.late;
      return;
    }
    for (const Transfer& transfer : operation.transfers)
      if (transfer.sends) {
        if (std::memcmp(transfer.memory, transfer.moved.data(), transfer.bytes) != 0)
          fabric_.violated("memory was written while it was sent");
      } else {
        std::memcpy(transfer.memory, transfer.moved.data(), transfer.bytes);
      }
    done_ = operation.number;
    stream_.pop_front();
  }

  void match(Transfer& mine) {
    FakeCommunicator& other = *fabric_.members.at(mine.peer);
    if (!other.alive_ || other.id_ != id_ || other.stream_.empty())
      return;
    for (Transfer& theirs : other.stream_.front().transfers) {
      if (theirs.matched || theirs.peer != rank_ || theirs.sends == mine.sends)
        continue;
      if (theirs.bytes != mine.bytes)
        return fabric_.violated("a rank sends another length than the root receives");
      Transfer& sender = mine.sends ? mine : theirs;
      Transfer& receiver = mine.sends ? theirs : mine;
      sender.moved.assign(sender.memory, sender.memory + sender.bytes);
      receiver.moved = sender.moved;
      std::memcpy(receiver.memory, sender.memory, sender.bytes);
      sender.matched = receiver.matched = true;
      return;
    }
  }

  Fabric& fabric_;
  std::uint32_t rank_;
  bool alive_ = false;
  bool joining_ = false;
  bool never_joins_ = false;
  std::uint64_t id_ = 0;
  std::uint32_t ranks_ = 0;
  std::uint64_t enqueueing_ = 0; ///< steps that the last group still takes
  int depth_ = 0;
  bool broken_group_ = false;
  Operation building_;
  std::deque<Operation> stream_;
  std::deque<Operation> aborted_;
  std::map<std::uint32_t, std::uint64_t> events_; ///< slot -> the operation before it
  std::uint64_t last_operation_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t quiet_in_ = 0;
  bool quiet_fails_ = false;
  std::optional<Failure> error_;
};

inline void Fabric::step() {
  for (const auto& [rank, member] : members)
    if (!once_in(3))
      member->step();
}

} // namespace deltawire::test
