// A worker's side of the protocol as a pure machine (design, section 6): which message is legal now, what state
// follows, what to answer. The Applier does the work on memory in between and reports how it went. A call out of order
// is an error that names it and changes nothing.
//
//   empty -Begin(seed)-> seeding -Release-> serving(V) -Begin(delta)-> staging -Commit-> in_doubt -Release->
//   serving(V+1)       a failure inside an in-place write: dirty, left only by a seed
//
// A delta applies on its base only; a fold, which holds absolute values, on any version from its base on. A seed may
// come at any time: it is written in place, and nothing is served until it is released.
//
// Between deliveries its memory may be audited: what serves and is wrong serves no more. What serves nothing of the
// session and is right may be adopted: its memory is the version, and it serves it.
//
// A worker outlives its root. When that is gone (root_lost), a delivery that was not applied is given up here: nobody
// can have released it. One that was applied stays in doubt until the next root settles it. A version is of the session
// that counted it: from one session to another leads a seed, or memory that is the same, and nothing else.
#pragma once

#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <string_view>

namespace deltawire::sync {

enum class WorkerState : std::uint8_t { empty, seeding, serving, staging, in_doubt, dirty };

/// "empty", "seeding", ...
[[nodiscard]] std::string_view to_string(WorkerState state) noexcept;

class WorkerProtocol {
public:
  [[nodiscard]] WorkerState state() const noexcept { return state_; }
  /// The committed version that it serves or served last; 0 = none.
  [[nodiscard]] std::uint64_t version() const noexcept { return version_; }
  [[nodiscard]] std::uint64_t delivery() const noexcept { return delivery_; }
  [[nodiscard]] std::uint64_t target() const noexcept { return target_; }
  /// The session that counted version(), or that counts the running delivery; 0 = none.
  [[nodiscard]] std::uint64_t session() const noexcept { return session_; }
  /// Applied, the root that could release it is lost: nothing is legal but settle().
  [[nodiscard]] bool unsettled() const noexcept { return unsettled_; }
  /// What it has is another session's than the root's.
  [[nodiscard]] bool foreign() const noexcept { return session_ != root_session_; }

  /// The running delivery writes to memory as frames arrive (a seed into a worker that serves nothing).
  [[nodiscard]] bool in_place() const noexcept { return state_ == WorkerState::seeding; }

  /// A fence: only a newer delivery, only a delta on its base, only one at a time, and never back.
  [[nodiscard]] Result<wire::Ready> begin(const wire::Begin& message);

  /// The delivery is over here, or was never begun while a newer one was: its frames are to be ignored.
  [[nodiscard]] bool over(std::uint64_t delivery) const noexcept {
    return delivery < delivery_ || (delivery == delivery_ && !running_);
  }

  enum class Fresh : std::uint8_t { fresh, duplicate };
  /// May this flush be taken? A duplicate is acknowledged again and not taken.
  [[nodiscard]] Result<Fresh> flush(std::uint64_t delivery, std::uint64_t sequence, std::uint64_t bytes);

  [[nodiscard]] Result<void> seal(const wire::Seal& message);
  /// Everything that the manifest announces is here: verify now, then call verified().
  [[nodiscard]] bool complete() const noexcept {
    return sealed_ && flushes_ == sealed_flushes_ && !verified_ && !given_up_;
  }
  /// Digests will be (delta) or are (seed) right.
  [[nodiscard]] wire::Staged verified();

  /// Commit now: exchange, then call applied().
  [[nodiscard]] Result<void> commit(const wire::Commit& message);
  void applied();

  [[nodiscard]] Result<wire::Released> release(const wire::Release& message);

  struct Undoing {
    bool exchange_back = false; ///< memory holds the target: put the old values back
    wire::Undone answer;
  };
  [[nodiscard]] Result<Undoing> undo(const wire::Undo& message);

  /// A root is there: the first one, the same again, or the next one with a session of its own.
  void meet(std::uint64_t session) noexcept;
  /// The root is gone; true: memory holds a target that is given up, put the old values back.
  [[nodiscard]] bool root_lost() noexcept;
  /// What it tells the root that it meets.
  [[nodiscard]] wire::Agreed standing() const noexcept;

  struct Settled {
    bool released = false;      ///< it serves the target
    bool exchange_back = false; ///< memory holds the target: put the old values back
  };
  /// The next root's word on what is in doubt.
  [[nodiscard]] Result<Settled> settle(const wire::Settle& message);

  /// All of memory is to be read now: then call audited(). Refused while a delivery runs.
  [[nodiscard]] Result<void> audit(const wire::Audit& message);
  /// `right`: every digest was the root's.
  void audited(const wire::Audit& message, bool right) noexcept;
  /// It serves the version that its memory was found to be, in the audit just before.
  [[nodiscard]] Result<void> adopt(const wire::Adopt& message);

  /// A flush could not be staged: nothing of the delivery is taken or verified any more, until it is undone.
  void give_up() noexcept { given_up_ = running_; }
  [[nodiscard]] bool gave_up() const noexcept { return given_up_; }

  /// Writing in place failed, or values could not be put back: nothing is known of memory.
  void spoiled() noexcept {
    state_ = WorkerState::dirty;
    version_ = 0;
    matches_ = {};
  }

private:
  /// Ends the running delivery without its target; true: put the old values back.
  bool end_without_target() noexcept;
  void serve_target() noexcept;
  /// Delivery ids are the root's: those of another session are no fence for its own.
  void forget_fence() noexcept;

  WorkerState state_ = WorkerState::empty;
  std::uint64_t session_ = 0;      ///< of everything below
  std::uint64_t root_session_ = 0; ///< of the root that is there, or was last
  std::uint64_t version_ = 0;
  std::uint64_t highest_ = 0; ///< the latest version it ever served
  wire::Adopt matches_;       ///< the last audit, and the version that it found in memory; 0: another one
  std::uint64_t delivery_ = 0;
  std::uint64_t target_ = 0;
  bool running_ = false;
  bool seed_ = false;
  bool sealed_ = false;
  bool verified_ = false;
  bool committed_ = false;
  bool applied_ = false;
  bool given_up_ = false;
  bool unsettled_ = false;
  std::uint64_t flushes_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t sealed_flushes_ = 0;
  std::uint64_t sealed_bytes_ = 0;
};

} // namespace deltawire::sync
