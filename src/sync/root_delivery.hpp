// The root's side of one delivery at a time, as a pure machine: begin, flushes, seal, staged, commit, applied, release
// (design, section 6.2). Time comes in as ticks (nanoseconds); what is to be sent comes out as a list.
//
//   beginning --all ready--> sending --sealed--> sealing --all staged--> committing --all applied, replica by
//   replica--> released --all released--> done          any failure: aborting --all undone or lost--> done (failed)
//
// Below a commit nothing of the version exists anywhere. A release is never taken back: an abort undoes the others and
// waits for those to say Released. A worker that is waited for and makes no progress within `stall` fails the delivery
// by name; its clock runs only while it is waited for.
#pragma once

#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace deltawire::sync {

using Nanoseconds = std::int64_t;

class RootDelivery {
public:
  using Message = std::variant<wire::Begin, wire::Seal, wire::Commit, wire::Release, wire::Undo>;
  struct ToWorker {
    std::uint32_t worker = 0;
    Message message;
  };
  /// What the caller must do now, in this order.
  struct Actions {
    std::vector<ToWorker> send;
    bool may_send_flushes = false; ///< every worker is ready
    bool flush_credit = false;     ///< the flush on the wire was staged by every worker
    bool over = false;             ///< the delivery has ended: see failure(), records()
  };
  /// What is known of a worker.
  struct Record {
    std::uint64_t version = 0; ///< committed and released
    bool lost = false;
    std::string error;
    bool digest_ok = false; ///< it applied the running target, digests read back were right
    std::uint64_t elements = 0;
    wire::Span stage, commit;
    std::int64_t pause_ns = 0;
    std::uint64_t applier_peak = 0;
  };

  RootDelivery(std::uint32_t workers, std::uint32_t workers_per_replica, Nanoseconds stall, Nanoseconds timeout);

  /// Requires that no delivery runs. Delivery ids are the caller's, ascending, never reused.
  [[nodiscard]] Actions begin(std::uint64_t delivery, bool seed, std::uint64_t target, Nanoseconds now);

  /// A flush was handed to the wire. One at a time: the next only after flush_credit.
  void flush_sent(std::uint64_t sequence, std::uint64_t bytes);

  /// Everything was sent.
  [[nodiscard]] Actions seal(std::vector<std::pair<std::uint32_t, std::uint64_t>> digests, Nanoseconds now);

  // What workers say. A message that does not fit fails the delivery, naming the worker.
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Ready& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::FlushStaged& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Staged& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Applied& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Released& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Undone& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Failed& message, Nanoseconds now);

  /// The worker is gone.
  [[nodiscard]] Actions lost(std::uint32_t worker, const Failure& reason, Nanoseconds now);
  /// The trainer's side cannot go on.
  [[nodiscard]] Actions abort(const Failure& reason, Nanoseconds now);
  /// Deadlines; call at least every tenth of `stall`.
  [[nodiscard]] Actions tick(Nanoseconds now);

  [[nodiscard]] bool running() const noexcept { return phase_ != Phase::idle; }
  [[nodiscard]] const std::vector<Record>& records() const noexcept { return records_; }
  /// Why the last delivery failed; nothing when it was committed everywhere.
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }

private:
  enum class Phase : std::uint8_t { idle, beginning, sending, sealing, committing, aborting };
  enum class Step : std::uint8_t { none, ready, staged, applied, released, undone };
  struct Worker {
    Step step = Step::none;
    bool release_given = false; ///< from here on it serves the target, whatever happens to others
    std::uint64_t flushes_staged = 0;
    Nanoseconds progress = 0; ///< when it last moved, or was last not waited for
  };

  [[nodiscard]] bool out_of_place(std::uint32_t worker, std::uint64_t delivery) const noexcept;
  [[nodiscard]] Actions fail_delivery(Failure reason, Nanoseconds now);
  [[nodiscard]] Actions wrong(std::uint32_t worker, std::string_view message, Nanoseconds now);
  [[nodiscard]] bool all_at(Step step) const noexcept;
  [[nodiscard]] bool waits_for(std::uint32_t worker) const noexcept;
  [[nodiscard]] Actions finish_abort_if_done();
  void touch(std::uint32_t worker, Nanoseconds now) { workers_[worker].progress = now; }
  void restart_clocks(Nanoseconds now);

  std::uint32_t workers_per_replica_;
  Nanoseconds stall_;
  Nanoseconds timeout_;
  std::vector<Worker> workers_;
  std::vector<Record> records_;
  Phase phase_ = Phase::idle;
  std::uint64_t delivery_ = 0;
  std::uint64_t target_ = 0;
  Nanoseconds begun_ = 0;
  std::uint64_t flushes_sent_ = 0;
  std::uint64_t flushes_done_ = 0; ///< staged by every worker
  std::uint64_t bytes_sent_ = 0;
  std::optional<Failure> failure_;
};

} // namespace deltawire::sync
