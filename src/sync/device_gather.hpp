// Rounds of a gather from device to device, as two pure machines over a StreamOwner each: DeviceGatherRoot on the root,
// DeviceGatherRank on every other rank. Time is a number of ticks. No session uses them yet.
//
// Everything is agreed over the control channel before anything runs on a device, step by step. The root proposes a
// step to those that take part: a new communicator (all ranks), or a round (the ranks that have bytes in it, with how
// many). Each answers whether it holds a launch window for it. Where all do, the root says go, in the order of the
// steps, and each launches its part: a rank sends exactly the bytes that were proposed, and the root receives from all
// of them in one group. Otherwise the step is cancelled, and a round goes through host memory: so it does whenever the
// root or one of the ranks is outside a launch window, and while there is no communicator. That is what `auto` means.
//
// Where one side fails, all are told, and the epoch ends everywhere. What is said of an older epoch is ignored. A round
// that was not launched yet then goes through host memory as well; one that was has failed. Whatever waits is told
// once.
//
// Messages arrive in order, and are not on any wire yet.
#pragma once

#include "sync/stream_owner.hpp"

#include <map>

namespace deltawire::sync {

// ------------------------------------------------------------------------------------------------------- messages

using DeviceUuid = std::array<std::byte, 16>;

/// From each rank, once.
struct DeviceHello {
  std::string name; ///< "rank 3 on host-a, GPU 0": for messages
  DeviceUuid device{};
};

struct StepProposed {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  ///< of the session, never reused
  bool begins = false;     ///< the communicator of `epoch`, or a round
  std::uint64_t round = 0; ///< the caller's number
  std::uint64_t bytes = 0; ///< that the rank sends
};
struct StepAnswered {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  bool holds = false;
  std::string why_not;
};
struct StepGo {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  transport::UniqueId id{}; ///< of a step that begins a communicator
};
struct StepCancelled {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::string why;
};
/// A rank's part is over.
struct StepEnded {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t memory = 0; ///< of a step that began a communicator: bytes that its connections took on the device
};
struct EpochAborted {
  std::uint64_t epoch = 0;
  Failure why;
};

using ToRank = std::variant<StepProposed, StepGo, StepCancelled, EpochAborted>;
using ToRoot = std::variant<DeviceHello, StepAnswered, StepEnded, EpochAborted>;

/// Bytes that each rank sends to the root when a communicator begins, so that its connections are made before the first
/// round needs them. The least that a slot has.
inline constexpr std::size_t warm_up_bytes = 16;

// ----------------------------------------------------------------------------------------------------------- root

class DeviceGatherRoot {
public:
  using Ticks = StreamOwner::Ticks;
  using Slots = std::vector<std::span<std::byte>>; ///< device memory, one a slot of the owner

  struct Limits {
    Ticks connect = 1; ///< until all ranks are known and hold their windows, and from then on until all are connected
    Ticks agree = 1;   ///< for the answers to a proposed round
  };

  struct Share {
    std::uint32_t rank = 0;
    std::uint64_t bytes = 0;
  };
  struct Part {
    std::uint32_t rank = 0;
    std::span<std::byte> memory;
  };

  // Each is told once.
  struct Connected {
    std::uint64_t waiter = 0;
    Result<void> how;
    std::vector<std::uint64_t> memory; ///< by rank: bytes of its device that connections took
  };
  /// Its slot is the caller's until consumed(slot).
  struct Gathered {
    std::uint64_t round = 0;
    std::optional<std::uint32_t> slot; ///< none where nobody had bytes
    std::vector<Part> parts;           ///< ascending in ranks
  };
  /// Not a byte of it was launched: ranks are to be asked for it another way.
  struct ThroughHost {
    std::uint64_t round = 0;
    std::string why;
  };
  struct RoundFailed {
    std::uint64_t round = 0;
    Failure why;
  };
  using Notice = std::variant<Connected, Gathered, ThroughHost, RoundFailed, StreamOwner::WindowClosed>;

  struct Message {
    std::uint32_t rank = 0;
    ToRank message;
  };

  /// The owner must outlive this, and is driven by it: nobody else ticks it or takes its notices.
  DeviceGatherRoot(StreamOwner& owner, Slots slots, DeviceHello own, std::uint32_t ranks, Limits limits);

  /// Fails on what no honest rank says.
  [[nodiscard]] Result<void> on(std::uint32_t rank, const ToRoot& message);

  /// Makes a communicator of a new epoch, in a launch window. One at a time, and none while there is one.
  [[nodiscard]] Result<void> connect(std::uint64_t waiter);

  /// Gathers what ranks other than the root have. Ascending in ranks, a rank once; those without bytes may be left out.
  [[nodiscard]] Result<void> gather(std::uint64_t round, const std::vector<Share>& shares);
  void consumed(std::uint32_t slot) { owner_.give_slot(slot); }

  void open_window() { owner_.open_window(); }
  [[nodiscard]] Result<void> close_window(std::uint64_t waiter);

  /// Something outside has failed: a rank is gone, the session ends.
  void abort(const Failure& why);

  void tick();

  [[nodiscard]] std::vector<Message> messages() { return std::exchange(messages_, {}); }
  [[nodiscard]] std::vector<Notice> notices() { return std::exchange(notices_, {}); }
  [[nodiscard]] bool ready() const noexcept { return ready_; }

private:
  struct Member {
    std::uint32_t rank = 0;
    std::span<std::byte> memory;
    bool answered = false;
    bool ended = false;
    std::uint64_t took = 0; ///< memory
  };
  struct Step {
    std::uint64_t number = 0;
    bool begins = false;
    std::uint64_t round = 0;
    std::uint32_t slot = 0;
    StreamOwner::Hold hold = 0;
    std::vector<Member> members;
    Ticks proposed = 0;
    bool went = false;
    bool own_ended = false;
  };

  [[nodiscard]] Result<void> on_hello(std::uint32_t rank, const DeviceHello& hello);
  void on_answer(std::uint32_t rank, const StepAnswered& answer);
  void on_ended(std::uint32_t rank, const StepEnded& ended);
  void on_aborted(std::uint32_t rank, const EpochAborted& aborted);
  [[nodiscard]] std::string name_of(std::uint32_t rank) const;
  template <class Missing>
  [[nodiscard]] std::string names(const Step& step, Missing missing) const;
  [[nodiscard]] std::string why_through_host() const;
  void propose_communicator();
  void propose(Step step);
  void cancel(Step& step, const std::string& why);
  void go();
  void go(Step& step);
  void warm_up(Step& step);
  void connected_if_all_are();
  void connect_failed(const Failure& why);
  void settle();
  void hear(StreamOwner::Begun& begun);
  void hear(StreamOwner::Ended& ended);
  void hear(StreamOwner::Aborted& aborted);
  void hear(StreamOwner::Lost& lost);
  void hear(StreamOwner::WindowClosed& closed);
  [[nodiscard]] Step* find(std::uint64_t number);
  void remove(std::uint64_t number);

  StreamOwner& owner_;
  Slots slots_;
  std::uint32_t ranks_;
  Limits limits_;
  Ticks now_ = 0;
  std::map<std::uint32_t, DeviceHello> hellos_;
  std::optional<Failure> refused_; ///< why there will be no communicator
  std::uint64_t epoch_ = 0;        ///< the last one proposed
  std::uint64_t last_step_ = 0;
  bool ready_ = false;
  std::string why_apart_ = "it has not been connected"; ///< while not ready
  std::deque<Step> steps_;
  std::optional<std::uint64_t> connecting_; ///< its waiter
  Ticks connecting_since_ = 0;
  std::string busy_; ///< why the last proposal of a communicator was cancelled
  std::uint64_t memory_before_ = 0;
  std::vector<Message> messages_;
  std::vector<Notice> notices_;
};

// ----------------------------------------------------------------------------------------------------------- rank

class DeviceGatherRank {
public:
  using Ticks = StreamOwner::Ticks;
  using Slots = DeviceGatherRoot::Slots;

  struct Limits {
    Ticks held = 1; ///< from an answer until the root says go, and from there on until the caller has filled the slot
  };

  /// Write the round's bytes here, exactly, and call filled(step).
  struct Fill {
    std::uint64_t step = 0;
    std::uint64_t round = 0;
    std::span<std::byte> memory;
  };
  // One of these ends every Fill.
  struct Sent {
    std::uint64_t round = 0;
  };
  /// Not a byte of it was launched.
  struct Cancelled {
    std::uint64_t round = 0;
    std::string why;
  };
  struct SendFailed {
    std::uint64_t round = 0;
    Failure why;
  };
  struct Disconnected {
    std::uint64_t epoch = 0;
    Failure why;
  };
  using Notice = std::variant<Fill, Sent, Cancelled, SendFailed, Disconnected, StreamOwner::WindowClosed>;

  DeviceGatherRank(StreamOwner& owner, Slots slots, DeviceHello own, std::uint32_t rank, std::uint32_t ranks,
                   Limits limits);

  /// Fails on what no honest root says.
  [[nodiscard]] Result<void> on(const ToRank& message);

  void filled(std::uint64_t step);

  void open_window() { owner_.open_window(); }
  [[nodiscard]] Result<void> close_window(std::uint64_t waiter);

  void abort(const Failure& why);

  void tick();

  [[nodiscard]] std::vector<ToRoot> messages() { return std::exchange(messages_, {}); }
  [[nodiscard]] std::vector<Notice> notices() { return std::exchange(notices_, {}); }

private:
  struct Step {
    StepProposed proposed;
    StreamOwner::Hold hold = 0;
    std::uint32_t slot = 0;
    Ticks since = 0;
    bool went = false;
    bool filled = false;
    bool launched = false;
  };

  [[nodiscard]] Result<void> on_proposed(const StepProposed& proposed);
  void on_go(const StepGo& go);
  void on_cancelled(const StepCancelled& cancelled);
  void on_aborted(const EpochAborted& aborted);
  void launch_ready();
  void launch(Step& step);
  void end(std::map<std::uint64_t, Step>::iterator step);
  void settle();
  void hear(StreamOwner::Begun& begun);
  void hear(StreamOwner::Ended& ended);
  void hear(StreamOwner::Aborted& aborted);
  void hear(StreamOwner::Lost& lost);
  void hear(StreamOwner::WindowClosed& closed);

  StreamOwner& owner_;
  Slots slots_;
  std::string name_;
  std::uint32_t rank_;
  std::uint32_t ranks_;
  Limits limits_;
  Ticks now_ = 0;
  std::map<std::uint64_t, Step> steps_;
  std::uint64_t finished_ = 0; ///< epochs up to this one have ended, or never began here
  std::uint64_t memory_before_ = 0;
  bool root_knows_ = false; ///< of the abort that is about to be heard of
  std::optional<Failure> lost_;
  std::vector<ToRoot> messages_;
  std::vector<Notice> notices_;
};

} // namespace deltawire::sync
