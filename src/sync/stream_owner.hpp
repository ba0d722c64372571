// The owner of a device's stream and of the communicator on it, as a pure machine: time is a number of ticks.
//
// Epochs. A communicator that failed once is finished: it is aborted, everybody who waits is told why, once, and the
// next one has a new epoch. Between the two the owner waits until the device is quiet; a device that does not become
// quiet is lost, for good.
//
// Windows. Work on the device is begun under a hold only, and a hold is had only inside a launch window: kernels of two
// communicators that wait for each other's peers can stop a trainer for ever. A window is closed when all that was held
// inside it is released, and, after an abort, when the device is quiet.
//
// Slots. Memory on the device belongs to slots. A slot that was launched is not handed out again before its event was
// reached, or before the device is quiet.
//
// Operations begin and end in the order in which they are launched. An event that was reached counts only if the
// communicator has no error to tell afterwards: what an error ends reaches its event too.
#pragma once

#include "transport/communicator.hpp"

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace deltawire::sync {

class StreamOwner {
public:
  using Ticks = std::uint64_t;
  using Hold = std::uint64_t;

  /// How many ticks without progress each may take.
  struct Limits {
    Ticks begin = 1;     ///< a communicator, until all have joined
    Ticks operation = 1; ///< the oldest operation
    Ticks quiet = 1;     ///< the device, after an abort
  };

  enum class State : std::uint8_t { idle, beginning, ready, aborting, lost };

  struct Transfer {
    bool sends = false; ///< or receives
    std::uint32_t peer = 0;
    std::span<std::byte> memory; ///< on the device; at least a byte
  };
  struct Operation {
    std::uint64_t tag = 0; ///< the caller's
    std::string what;      ///< for messages: "round 7 from rank 1"
    std::uint32_t slot = 0;
    std::vector<Transfer> transfers;
  };

  // Each is told once.
  struct Begun {
    std::uint64_t epoch = 0;
    Result<void> how;
  };
  struct Ended {
    std::uint64_t epoch = 0;
    std::uint64_t tag = 0;
    Result<void> how;
  };
  /// After all that its abort ended.
  struct Aborted {
    std::uint64_t epoch = 0;
    Failure why;
  };
  struct Lost {
    Failure why;
  };
  /// Failed: there was an abort meanwhile, or the device is lost, and work may still run on it.
  struct WindowClosed {
    std::uint64_t waiter = 0;
    Result<void> how;
  };
  using Notice = std::variant<Begun, Ended, Aborted, Lost, WindowClosed>;

  StreamOwner(transport::Communicator& communicator, std::uint32_t slots, Limits limits);

  /// Windows are counted: launches may begin as long as one of them is open.
  void open_window() { ++windows_; }
  [[nodiscard]] Result<void> close_window(std::uint64_t waiter);

  /// Nothing outside a window, and none after an abort until the device is quiet.
  [[nodiscard]] std::optional<Hold> hold();
  void release(Hold hold);

  [[nodiscard]] std::optional<std::uint32_t> take_slot();
  void give_slot(std::uint32_t slot) { slots_[slot].taken = false; }

  [[nodiscard]] Result<transport::UniqueId> make_id() { return communicator_.make_id(); }
  [[nodiscard]] Result<std::uint64_t> free_memory() { return communicator_.free_memory(); }

  /// Begun tells how it goes, unless the call is refused: then nothing has changed. The epoch is above all before it.
  [[nodiscard]] Result<void> begin(Hold hold, std::uint64_t epoch, const transport::UniqueId& id, std::uint32_t ranks,
                                   std::uint32_t rank);

  /// Ended tells how it goes, unless the call is refused.
  [[nodiscard]] Result<void> launch(Hold hold, Operation operation);

  /// Ends the communicator that there is, if there is one.
  void abort(const Failure& why);

  void tick();

  [[nodiscard]] std::vector<Notice> notices() { return std::exchange(notices_, {}); }

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; } ///< the last one begun; 0: none
  [[nodiscard]] bool window_is_open() const noexcept { return windows_ > 0; }
  [[nodiscard]] std::size_t operations() const noexcept { return operations_.size(); }

private:
  struct Slot {
    bool taken = false;
    bool launched = false;
  };
  struct Closing {
    std::uint64_t waiter = 0;
    Hold last = 0; ///< holds up to this one were had inside the window
    std::optional<Failure> why;
  };

  [[nodiscard]] std::string here() const;
  [[nodiscard]] Failure named(const std::string& attempt, const Failure& failure) const;
  [[nodiscard]] bool held_up_to(Hold last) const { return !holds_.empty() && *holds_.begin() <= last; }
  void advance();
  [[nodiscard]] Result<void> enqueue(const Operation& operation);
  void enqueue_next();
  void become_quiet();
  void lose(const Failure& why);
  void settle_windows();

  transport::Communicator& communicator_;
  Limits limits_;
  State state_ = State::idle;
  Ticks now_ = 0;
  Ticks since_ = 0; ///< progress was last made
  std::uint64_t epoch_ = 0;
  std::deque<Operation> operations_; ///< in the order of launch
  std::size_t running_ = 0;          ///< of them, from the first on, on the stream, with an event
  bool enqueueing_ = false;          ///< the one after them is under way to the stream
  std::vector<Slot> slots_;
  std::uint64_t windows_ = 0;
  Hold last_hold_ = 0;
  std::set<Hold> holds_;
  std::vector<Closing> closing_;
  Failure why_; ///< the last abort, or what lost the device
  std::vector<Notice> notices_;
};

} // namespace deltawire::sync
