// One session's trainer in a simulated job: all ranks with their programs, and the root, from the start-up agreement to
// the end of the session. The machines of src/sync are put together as the actors do, each stage with a queue of its
// own; captures and encoding are the product's, over real memory.
#pragma once

#include "worker.hpp"

#include "delta/capture.hpp"
#include "sync/agreement.hpp"
#include "sync/capture_walk.hpp"
#include "sync/chunks.hpp"
#include "sync/flush_assembly.hpp"
#include "sync/gather.hpp"
#include "sync/route_table.hpp"
#include "sync/update_parts.hpp"
#include "wire/frame.hpp"

#include <map>
#include <set>

namespace deltawire::simulation {

struct TrainerSettings {
  std::uint64_t session = 1;
  std::uint64_t updates = 1; ///< that the program publishes
  bool may_abort = true;     ///< the program may leave updates in parts
  bool fold = false;         ///< update.busy
  bool rank_local = true;    ///< actors.sender.route
  std::uint32_t quorum = 0;
  Nanoseconds stall = 1000;
  Nanoseconds timeout = 20000;
};

class Trainer {
public:
  /// `workers`: who may connect.
  Trainer(const Job& job, Surroundings surroundings, const TrainerSettings& settings, std::vector<Worker*> workers);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Workers.
  /// A worker's process introduces itself over a new link and declares what it holds.
  void hello(std::uint32_t worker, Link& link, std::uint64_t incarnation, const layout::Declaration& declaration);
  /// The worker's end of this link is gone.
  void lost(std::uint32_t worker, Link& link);
  void silent(std::uint32_t worker);
  void heard(std::uint32_t worker);

  void tick();
  /// The trainer's side cannot go on.
  void fail();
  /// The program publishes more, and from now on leaves no update half done and folds none.
  void calm_down(std::uint64_t more);
  void freeze_rank(Nanoseconds until);
  /// The next frame of a flush is sent twice.
  void repeat_a_frame() noexcept { repeats_ = true; }

  [[nodiscard]] bool over() const noexcept { return over_; }
  [[nodiscard]] bool running() const noexcept { return running_; }
  /// Every update that the program is to publish has ended.
  [[nodiscard]] bool done() const;
  /// The last version that was published and not left half done; 0: none.
  [[nodiscard]] std::uint64_t newest() const noexcept { return newest_; }
  /// Root: since when an update is under way; 0: none is.
  [[nodiscard]] Nanoseconds updating_since() const noexcept { return updating_ ? began_ : 0; }
  /// By what the root has said; idle, capturing, beginning, sending, seeding, sealing or committing.
  [[nodiscard]] Phase phase() const;
  [[nodiscard]] std::uint64_t session() const noexcept { return settings_.session; }
  /// What a worker serves is the target of the running delivery, in which it takes part.
  [[nodiscard]] bool serves_target(std::uint32_t worker, std::optional<Oracle::Version> served) const {
    return delivery_ && delivery_->takes_part(worker) && served == Oracle::Version{settings_.session, plan_.target};
  }

private:
  using Plan = sync::DeliveryPlan;
  using Work = sync::CaptureWalk::Work;
  using Bytes = std::vector<std::byte>;

  struct Part {
    enum class Kind : std::uint8_t { sent, finished, aborted };
    std::uint64_t version = 0;
    Kind kind = Kind::sent;
    std::vector<std::uint32_t> parameters;
    std::shared_ptr<const sync::CaptureParts> captured;
  };
  struct Request {
    std::uint64_t version = 0;
    bool in_parts = false;
  };
  struct Task {
    std::uint64_t version = 0;
    sync::CaptureWalk::HandOut hand_out;
    bool all = false;
    std::uint64_t base = 0, keep_logs_after = 0;
    std::shared_ptr<const sync::CaptureParts> parts;
  };
  struct CaptureLog {
    std::uint64_t version = 0;
    std::vector<delta::PositionLog> ranges;
  };

  struct Rank {
    explicit Rank(Network& network)
      : user(network), supervisor(network), snapshotter(network), gather_queue(network), leaving(network),
        control_up(network), data_up(network), control_down(network) {}
    Queue user, supervisor, snapshotter, gather_queue, leaving, control_up, data_up, control_down;
    std::deque<Queue> differs;
    // what it holds
    std::vector<std::string> names; ///< of its parameters
    std::vector<std::size_t> offsets;
    std::vector<std::uint32_t> numbers; ///< of the elements of its memory
    std::vector<Bits> memory;
    std::vector<layout::Block> blocks;
    std::vector<sync::Chunk> chunks;
    std::vector<std::size_t> snapshot_offsets;
    Bytes snapshot;
    std::vector<std::vector<CaptureLog>> logs; ///< by chunk
    std::unique_ptr<delta::PieceEncoder> encoder;
    // its program
    std::uint64_t published = 0;
    std::optional<sync::UpdateParts> open;
    std::vector<bool> ever_captured, sent;
    std::vector<std::pair<std::uint32_t, Bits>> patched; ///< in the open update
    bool waits = true;                                   ///< for captured(), or for more to do
    // supervisor
    std::deque<Request> queued;
    std::set<std::uint64_t> tickets;
    std::set<std::uint64_t> early; ///< reports of versions that it has not published
    std::uint64_t captures_started = 0, deliveries_over = 0, abandoned = 0;
    wire::NextUpdate next;
    // snapshotter
    std::optional<sync::CaptureWalk> walk;
    std::optional<sync::ChunkParts> chunk_parts;
    std::deque<Request> waiting;
    std::vector<Part> early_parts;
    wire::CaptureReport report;
    bool announced = true;
    wire::NextUpdate planned;
    std::set<std::uint64_t> dropped;
    std::vector<std::uint64_t> first_captured; ///< by chunk
    std::map<std::uint64_t, std::uint64_t> log_bytes;
    std::uint64_t keep_logs_after = 0;
    std::shared_ptr<const sync::CaptureParts> parts;
    std::size_t next_differ = 0;
    // gather queue
    std::optional<sync::GatherRank> gather;
    bool share_under_way = false;
    std::deque<wire::Grant> waiting_grants;
  };

  // The agreement.
  void rank_declares(std::uint32_t r, const layout::Declaration& declaration);
  void agreed(std::uint32_t worker, Link& link, const wire::Agreed& standing);
  void on_answer(std::uint32_t worker, Link& link, const Answer& answer);
  void agree();
  void compile(layout::Plan& plan);
  void send_compiled(std::uint32_t worker, Link& link);

  // A rank's program.
  void publish_next(std::uint32_t r);
  void part_step(std::uint32_t r);
  void send_parts(std::uint32_t r, bool all_first);
  void patch_some(std::uint32_t r);
  void finish_parts(std::uint32_t r);
  void abort_parts(std::uint32_t r);
  void captured(std::uint32_t r, std::uint64_t version);
  void change(Rank& rank, std::uint32_t parameter);
  [[nodiscard]] std::pair<std::size_t, std::size_t> range_of(const Rank& rank, std::uint32_t parameter) const;

  // Supervisors.
  void publish(std::uint32_t r, const Request& request);
  void advance_supervisor(std::uint32_t r);
  void abandon(std::uint32_t r, std::uint64_t version);
  void plan_next(std::uint32_t r, const wire::NextUpdate& next);
  void delivered(std::uint32_t r, std::uint64_t version);
  void update_over(const wire::NextUpdate& next);
  void capture_aborted(std::uint64_t version);

  // Snapshotters and Differs.
  [[nodiscard]] bool catches_up(const Rank& rank) const;
  void begin_catch_up_capture(std::uint32_t r);
  void begin_capture(std::uint32_t r, const Request& request);
  void take_part(std::uint32_t r, const Part& part);
  void part_said(std::uint32_t r, const Part& part);
  void capture_requested(std::uint32_t r, const Request& request);
  void hand_out(std::uint32_t r, const sync::CaptureWalk::HandOut& hand_out);
  void advance_snapshotter(std::uint32_t r);
  void work_on(std::uint32_t r, const Task& task);
  /// How many elements changed.
  [[nodiscard]] std::uint64_t capture_range(Rank& rank, const Task& task, std::size_t range);
  void encode_range(Rank& rank, const Task& task, std::size_t range);

  // Gather queues.
  template <class Event>
  void tell_root(std::uint32_t r, Event event);
  void offer(std::uint32_t r, const wire::Offer& offer);
  void report_capture(std::uint32_t r, const wire::CaptureReport& report);
  void chunk_encoded(std::uint32_t r, sync::EncodedChunk chunk);
  void give_back(std::uint32_t r, std::uint64_t bytes);
  void drop_own(std::uint32_t r, std::uint64_t gather);
  void dropped(std::uint32_t r, std::uint64_t gather);
  void granted(std::uint32_t r, const wire::Grant& grant);
  void share_left(std::uint32_t r, std::uint64_t bytes);
  void share_arrived(std::uint32_t r, const wire::Grant& grant, Bytes bytes);
  void grant_rounds();
  void advance_gather();
  void drop_gather(std::uint64_t gather);

  // Flush bucket.
  void consumed(std::uint64_t bytes);
  void advance_flush_bucket();

  // Sender.
  void begin_update(std::uint64_t version, std::optional<Plan> catch_up, bool abandoned, bool aborted);
  [[nodiscard]] bool begin_delivery(std::uint64_t gather, const Plan& plan);
  void begin_catch_up();
  void delivery_over();
  void finish_update();
  [[nodiscard]] sync::Digests digests_at(std::uint32_t worker, std::uint64_t version) const;
  void send_flush(const sync::FlushAssembly::Flush& flush);
  void send_what_waits();
  void carry_out(const sync::RootDelivery::Actions& actions);
  void send(std::uint32_t worker, sync::RootDelivery::Message message);

  template <class T>
  void need(const Result<T>& result) {
    if (!result)
      throw Violation(Clause::refused, result.error().message);
  }
  [[nodiscard]] bool planted(Planted which) const noexcept { return around_.planted == which; }

  const Job& job_;
  Surroundings around_;
  Network& network_;
  TrainerSettings settings_;
  std::vector<Worker*> workers_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::uint64_t inflight_ = 0, max_round_ = 0, cap_ = 0, chunk_bytes_ = 0, log_cap_ = 0;
  std::size_t piece_limit_ = 0;
  std::uint32_t windows_ = 0;
  bool over_ = false, running_ = false, fatal_ = false;
  std::uint64_t newest_ = 0;
  std::set<std::uint64_t> left_; ///< versions that a rank left half done
  // the agreement
  sync::AgreementRoot agreement_;
  bool compiled_all_ = false;
  std::vector<layout::SlotSpec> slots_;
  std::vector<std::shared_ptr<const Compiled>> compiled_; ///< by worker
  std::vector<Link*> links_;                              ///< by worker; null: lost
  Nanoseconds started_ = 0;
  // the root's supervisor
  std::uint64_t delivering_ = 0;
  std::set<std::uint64_t> aborted_;
  // gather queue
  Queue flush_bucket_, sender_;
  std::optional<sync::GatherRoot> gather_root_;
  std::uint64_t gathering_ = 0;
  // flush bucket
  std::shared_ptr<const sync::RouteTable> routes_;
  std::optional<sync::FlushAssembly> assembly_;
  std::uint64_t flush_gather_ = 0;
  bool gathered_ = false;
  // sender
  std::optional<sync::RootDelivery> delivery_;
  std::uint64_t next_audit_ = 1;
  int audits_ = 0; ///< to come after this update: of those who have its version, then of those who have nothing whole
  bool auditing_ = false;
  std::uint64_t next_delivery_ = 1, gather_ = 0, updating_version_ = 0;
  Plan plan_;
  Nanoseconds began_ = 0;
  bool updating_ = false, carries_catch_up_ = false, committed_ = false, left_half_done_ = false, aborted_all_ = false,
       may_send_ = false, sealed_ = false, manifest_sent_ = false, commit_sent_ = false, repeats_ = false;
  std::optional<Plan> catch_up_;
  std::optional<sync::FlushAssembly::Flush> flush_waits_;
};

} // namespace deltawire::simulation
