// The root's side of one delivery at a time, as a pure machine: begin, flushes, seal, staged, commit, applied, release
// (design, section 6.2), for the replicas that take part. Time comes in as ticks (nanoseconds); what is to be sent
// comes out as a list.
//
//   beginning --all ready--> sending --sealed--> sealing --all staged--> committing --all released--> ending --> idle
//
// The unit is the replica. One whose worker dies, fails, lies or makes no progress within `stall` is dropped: its other
// workers undo, and the rest goes on without it, unless less than the quorum is left and nothing was committed yet:
// then all undo, and nothing of the version exists anywhere. After the commit only the replica itself is affected. A
// release is never taken back. A worker's clock runs only while it is waited for. A delivery ends when nobody is waited
// for: what a stopped worker says later is taken up whenever it comes (`owes`).
//
// A worker that comes from a lost root may be in doubt: it applied a delivery and heard no more (meet). A replica
// serves one version: its members in doubt serve the target where one of them does already or all of them applied it,
// else they undo; and where it was this root's delivery, this root knows. The word is given once: who asks again hears
// the same.
//
// Between deliveries an audit may run: workers read all of their memory again and say its digests. One that serves and
// is wrong has nothing whole any more: the next delivery seeds its replica. A replica whose members have nothing whole,
// and hold in memory what the trainer has, is told to serve that: it is sent no values.
#pragma once

#include "result.hpp"
#include "sync/audit.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace deltawire::sync {

using Nanoseconds = std::int64_t;

struct DeliverySettings {
  std::uint32_t workers = 1;
  std::uint32_t workers_per_replica = 1;
  /// Replicas that must have staged before the commit; those that can be served and wait for a delivery of their kind
  /// count too. A version that some replica has already, from the update's first delivery, is there for all the others.
  /// 0: those that are left, at least one.
  std::uint32_t quorum = 0;
  Nanoseconds stall = 0;
  Nanoseconds timeout = 0;
  Nanoseconds engine = 0;    ///< for what includes a call of the engine, where it is longer than `stall`
  std::uint64_t session = 0; ///< this root's
  bool verify = true;        ///< manifests name digests (update.verify is not "off")
  /// A cell in words, for messages: of which slot it is. None: its number.
  std::function<std::string(std::uint32_t cell)> cell_name{};
};

/// What one delivery brings, and so to whom.
struct DeliveryPlan {
  wire::DeliveryKind kind = wire::DeliveryKind::delta;
  std::uint64_t base =
    0; ///< a delta: for replicas at `base`; a fold: at `base` or later; a seed: for those with nothing
  std::uint64_t target = 0;

  friend bool operator==(const DeliveryPlan&, const DeliveryPlan&) = default;
};

/// Whose memory is read again.
struct AuditPlan {
  std::uint64_t audit = 0;   ///< ascending, never reused
  std::uint64_t version = 0; ///< whose digests are known
  bool adopt = false;        ///< of those who have nothing whole, and were never asked; else of those at `version`
};

class RootDelivery {
public:
  using Message = std::variant<wire::Begin, wire::Seal, wire::Commit, wire::Release, wire::Undo, wire::Settle,
                               wire::Audit, wire::Adopt>;
  struct ToWorker {
    std::uint32_t worker = 0;
    Message message;
  };
  /// What the caller must do now, in this order.
  struct Actions {
    std::vector<ToWorker> send;
    bool may_send_flushes = false; ///< every worker that takes part is ready
    bool flush_credit = false;     ///< the flush on the wire was staged by every worker that takes part
    bool over = false;             ///< the delivery, or audit, has ended: see failure(), records()
  };
  /// What is known of a worker.
  struct Record {
    std::uint64_t version = 0; ///< committed and released; 0: nothing whole
    bool lost = false;         ///< its connection is gone
    bool dirty = false;        ///< a seed was begun and did not come to its end
    std::string error;         ///< why it did not come to the last target
    // of the update under way, see begin_update()
    std::optional<wire::DeliveryKind> brought; ///< the delivery that brought it to its version
    bool matched = false;                      ///< its memory was taken for a version as it was
    bool audited = false;                      ///< all of its memory was read again, and is right
    bool digest_ok = false; ///< it applied the target (or has it already), digests read back were right
    std::uint64_t elements = 0;
    wire::Span stage, commit;
    std::int64_t pause_ns = 0;
    std::uint64_t applier_peak = 0;
  };

  explicit RootDelivery(const DeliverySettings& settings);

  /// A new update: what the records say of the last one is forgotten. It takes one or two deliveries.
  void begin_update();

  /// Would anybody take part, and can the quorum be met?
  [[nodiscard]] bool anyone_for(const DeliveryPlan& plan) const;

  /// Requires that no delivery runs and anyone_for(plan). Delivery ids are the caller's, ascending, never reused.
  [[nodiscard]] Actions begin(std::uint64_t delivery, const DeliveryPlan& plan, Nanoseconds now);

  [[nodiscard]] bool takes_part(std::uint32_t worker) const noexcept { return workers_[worker].takes_part; }

  /// A frame of a flush goes to a worker that takes part: the frame's sequence.
  [[nodiscard]] std::uint64_t frame_sent(std::uint32_t worker, std::uint64_t bytes);
  /// All frames of a flush were handed to the wire. One flush at a time: the next only after flush_credit.
  [[nodiscard]] Actions flush_sent(Nanoseconds now);

  using Digests = sync::Digests;
  /// Everything was sent. `digests_of`: what a worker's manifest says.
  [[nodiscard]] Actions seal(const std::function<Digests(std::uint32_t worker)>& digests_of, Nanoseconds now);

  /// What a worker answers. Late and repeated answers change nothing; one out of order drops its replica.
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Ready& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::FlushStaged& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Staged& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Applied& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Released& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Undone& message, Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Failed& message, Nanoseconds now);

  /// Would anybody be asked?
  [[nodiscard]] bool anyone_for(const AuditPlan& plan) const;
  /// Requires that nothing runs and anyone_for(plan). `digests_of`: of all cells that a worker holds, at plan.version.
  [[nodiscard]] Actions audit(const AuditPlan& plan, const std::function<Digests(std::uint32_t worker)>& digests_of,
                              Nanoseconds now);
  [[nodiscard]] Actions on(std::uint32_t worker, const wire::Audited& message, Nanoseconds now);
  /// What the last audit found first; nothing where all who were asked are right.
  [[nodiscard]] const std::optional<Failure>& found() const noexcept { return found_; }

  /// The worker is gone.
  [[nodiscard]] Actions lost(std::uint32_t worker, const Failure& reason, Nanoseconds now);
  /// Nothing was heard of the worker for too long; heard() when that is over.
  [[nodiscard]] Actions silent(std::uint32_t worker, const Failure& reason, Nanoseconds now);
  void heard(std::uint32_t worker) { workers_[worker].silent = false; }
  /// All workers are there for the first time, with what they bring along, by worker: settles what is in doubt.
  [[nodiscard]] Actions met(const std::vector<wire::Agreed>& standing);
  /// A worker that is lost is back, or a new process in its place: whatever it serves, an update seeds it. The next one
  /// where it joins before that is planned, when the update before it ends; else the one after.
  [[nodiscard]] Actions joined(std::uint32_t worker, const wire::Agreed& standing);
  /// The trainer's side cannot go on.
  [[nodiscard]] Actions abort(const Failure& reason, Nanoseconds now);
  /// The update is folded into the next one. Only before its commit (else nothing happens), and then at once: nobody's
  /// answer is waited for, since a worker handles the undo before the next begin.
  [[nodiscard]] Actions abandon(const Failure& reason, Nanoseconds now);
  /// Deadlines; call at least every tenth of `stall`.
  [[nodiscard]] Actions tick(Nanoseconds now);

  [[nodiscard]] bool running() const noexcept { return phase_ != Phase::idle; }
  [[nodiscard]] const std::vector<Record>& records() const noexcept { return records_; }
  /// Why the last delivery failed; nothing when at least one replica was told to serve the target.
  [[nodiscard]] const std::optional<Failure>& failure() const noexcept { return failure_; }

  /// What would bring up the replicas that are not at `version` and are there, also those that owe an answer: it may
  /// come before the next update. Nothing when there are none. Call at the end of each update, and again where an audit
  /// of its version has found something. Seeds first: an empty replica serves nobody; but in turns with folds where
  /// both are needed, so that a seed which fails again and again keeps nobody else behind.
  [[nodiscard]] std::optional<DeliveryPlan> catch_up(std::uint64_t version);
  /// No worker that may come back is at an older version.
  [[nodiscard]] std::uint64_t oldest_version(std::uint64_t version) const;
  /// Why nobody, or less than the quorum, can be served: the first replica's reason.
  [[nodiscard]] Failure nobody() const;

private:
  enum class Phase : std::uint8_t { idle, beginning, sending, sealing, committing, ending, auditing };
  enum class Step : std::uint8_t { none, ready, staged, applied, released };
  struct Worker {
    bool takes_part = false; ///< in the running delivery, and its replica was not dropped
    bool began = false;      ///< it took part when the delivery began
    Step step = Step::none;
    bool release_given = false; ///< from here on it serves the target, whatever happens to others
    std::uint64_t frames_sent = 0;
    std::uint64_t frames_staged = 0;
    std::uint64_t bytes_sent = 0;
    Digests expected;         ///< what its manifest, or audit, says
    bool asked = false;       ///< in the running audit, and has not answered, or not confirmed that it adopts
    bool matches = false;     ///< what it holds is the version of the running audit; asked too: told to adopt it
    Nanoseconds progress = 0; ///< when it last moved, or was last not waited for
    // what outlasts a delivery
    std::uint64_t owes = 0;    ///< the delivery whose Undone, or Released, has not come yet
    bool owes_release = false; ///< Released it is
    bool awaited = false;      ///< and it is waited for, within `stall`
    bool unresponsive = false; ///< it stood still: not served until it answers what it owes
    bool failed = false;       ///< it said so itself: not served until it has answered
    bool silent = false;       ///< nothing is heard of it
    bool may_match = true;     ///< nobody has looked at what it brought along, and nothing was written over it
  };
  /// Of a worker that was in doubt.
  struct Doubt {
    wire::Agreed about;
    bool release = false;
  };

  [[nodiscard]] std::uint32_t replica_of(std::uint32_t worker) const noexcept {
    return worker / settings_.workers_per_replica;
  }
  [[nodiscard]] std::uint32_t replicas() const noexcept { return settings_.workers / settings_.workers_per_replica; }
  [[nodiscard]] std::uint32_t first_of(std::uint32_t replica) const noexcept {
    return replica * settings_.workers_per_replica;
  }
  [[nodiscard]] std::uint32_t end_of(std::uint32_t replica) const noexcept { return first_of(replica + 1); }

  [[nodiscard]] bool available(std::uint32_t worker) const noexcept;
  [[nodiscard]] bool replica_available(std::uint32_t replica) const noexcept;
  [[nodiscard]] bool replica_connected(std::uint32_t replica) const noexcept;
  [[nodiscard]] bool fits(std::uint32_t replica, const DeliveryPlan& plan) const noexcept;
  [[nodiscard]] bool out_of_place(std::uint32_t worker, std::uint64_t delivery) const noexcept;
  [[nodiscard]] bool all_at(Step step) const noexcept;
  /// Below the quorum of a version that nobody has yet.
  [[nodiscard]] bool too_few() const noexcept;
  [[nodiscard]] bool waits_for(std::uint32_t worker) const noexcept;
  [[nodiscard]] bool in_engine(std::uint32_t worker) const noexcept;
  [[nodiscard]] std::uint32_t replicas_left() const noexcept;
  [[nodiscard]] std::uint32_t replicas_available() const noexcept;
  /// Some replica was told to serve it: it can no more be undone.
  [[nodiscard]] bool exists(std::uint64_t version) const noexcept;
  /// Towards the quorum: all but those that were dropped from the running delivery or cannot be served.
  [[nodiscard]] std::uint32_t replicas_counted() const noexcept;

  /// A replica goes on without the delivery; the other ones too where too few are left.
  void drop(std::uint32_t replica, std::optional<std::uint32_t> because_of, const Failure& reason, Nanoseconds now,
            Actions& actions);
  void drop_all(const Failure& reason, Nanoseconds now, Actions& actions);
  void undo(std::uint32_t replica, std::optional<std::uint32_t> because_of, const Failure& reason, Nanoseconds now,
            Actions& actions);
  /// Goes on as far as what is known allows.
  void advance(Nanoseconds now, Actions& actions);
  void stopped(std::uint32_t worker, const Failure& reason, Nanoseconds now, Actions& actions);
  [[nodiscard]] Actions wrong(std::uint32_t worker, std::string_view message, Nanoseconds now);
  void answered(std::uint32_t worker);
  /// What is wrong with a worker's digests, in words; nothing where they are as expected.
  [[nodiscard]] std::optional<Failure> compare(std::uint32_t worker, const Digests& reported,
                                               std::string_view when) const;
  [[nodiscard]] bool is_asked(std::uint32_t worker, const AuditPlan& plan) const noexcept;
  void adopt_matches(Actions& actions);
  void settle(std::uint32_t worker, const wire::Agreed& standing, bool release, Actions& actions);
  void touch(std::uint32_t worker, Nanoseconds now) { workers_[worker].progress = now; }
  void restart_clocks(Nanoseconds now);

  DeliverySettings settings_;
  std::vector<Worker> workers_;
  std::vector<Record> records_;
  std::vector<std::uint64_t> last_release_; ///< by worker: the last delivery that it was told to serve
  std::vector<Doubt> doubts_;               ///< by worker: what was said last
  Phase phase_ = Phase::idle;
  std::uint64_t delivery_ = 0;
  DeliveryPlan plan_;
  Nanoseconds begun_ = 0;
  bool on_wire_ = false;          ///< a flush that not every worker has staged
  bool released_ = false;         ///< some replica was told to serve the target
  bool seeds_next_ = true;        ///< where a catch-up could be either
  std::uint64_t planned_for_ = 0; ///< the version of the last catch_up()
  bool seeds_were_next_ = true;   ///< before it
  AuditPlan audit_;
  std::optional<Failure> found_;
  std::optional<Failure> failure_;
};

} // namespace deltawire::sync
