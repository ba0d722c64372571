// The arrows cannot deadlock: the whole chain of machines, from the capture walks of several ranks to the protocol of
// each worker, in one deterministic simulation. Every stage handles one message at a time from its own queue, as the
// actors do, connections keep their order, and a seeded scheduler picks any queue that is not empty. Pieces are real
// ones; caps go from the least that is legal upwards; workers get all of them or those that they hold only; workers
// stop reading, for a while or for good; captures run one ahead; updates are folded and replicas caught up.
//
// What is promised: as long as something is left to do, something can be done (or a named worker is waited for); no
// stage holds more than its cap, by books that the machines do not keep; every piece reaches every worker that takes
// part and holds any of it once, on each route in walk order of its rank, windows in order; every update ends, at the
// target wherever no worker stopped. Then the same simulation with a naive scheme in one place: each must be caught.
#include "catch.hpp"
#include "random.hpp"

#include "delta/piece.hpp"
#include "sync/capture_walk.hpp"
#include "sync/chunks.hpp"
#include "sync/flush_assembly.hpp"
#include "sync/gather.hpp"
#include "sync/root_delivery.hpp"
#include "sync/route_table.hpp"
#include "sync/worker.hpp"
#include "wire/frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <type_traits>

namespace {

using namespace deltawire;
using sync::CaptureWalk;
using sync::DeliveryPlan;
using sync::EncodedChunk;
using sync::Nanoseconds;
using sync::RootDelivery;
using sync::WorkerProtocol;
using Bytes = std::vector<std::byte>;
using Payload = std::shared_ptr<const Bytes>;
using Kind = wire::DeliveryKind;
using Work = CaptureWalk::Work;

constexpr Nanoseconds stall = 1000;
constexpr Nanoseconds timeout = 100 * stall;

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

// Schemes
// ---------------------------------------------------------------------------------------------------------------

/// Where it is not what is built.
struct Scheme {
  bool credit_before_copy = false;    ///< a round's bytes are given back when they arrive
  bool credit_before_leaving = false; ///< a rank's bytes are given back when they are offered
  bool sends_when_gathered = false;   ///< a flush waits until every window is gathered
  bool waits_for_an_event = false;    ///< the next window is looked at with the next event only
  bool keeps_discarded = false;       ///< what a delivery discards is not given back
  bool forgets_early_reports = false; ///< a rank ignores the end of an update that it has not begun
  bool drops_in_silence = false;      ///< a grant of a dropped gather is not answered
};

/// Naive: credit is taken for what a chunk encoded to, when it is there. A Differ waits with it until it fits, whoever
/// comes first.
class WalkByActualSize {
public:
  WalkByActualSize(std::vector<std::uint64_t> worst, std::uint64_t inflight, std::uint32_t at_once)
    : chunks_(worst.size()), credit_(inflight), at_once_(at_once), cursor_(chunks_), captured_(chunks_),
      catch_up_cursor_(chunks_) {}
  void start(bool) {
    cursor_ = captured_ = 0;
    catch_up_cursor_ = chunks_;
  }
  void add_catch_up() { catch_up_cursor_ = 0; }
  void drop_changes() {}
  void drop_catch_up() { catch_up_cursor_ = chunks_; }
  std::optional<CaptureWalk::HandOut> next() {
    if (out_ >= at_once_)
      return std::nullopt;
    if (cursor_ < chunks_) {
      ++out_;
      return CaptureWalk::HandOut{static_cast<std::uint32_t>(cursor_++), Work::capture_and_encode};
    }
    if (!captured() || catch_up_cursor_ == chunks_)
      return std::nullopt;
    ++out_;
    return CaptureWalk::HandOut{static_cast<std::uint32_t>(catch_up_cursor_++), Work::catch_up};
  }
  bool admits(std::uint64_t bytes) { return credit_.reserve(bytes); }
  void done(const CaptureWalk::HandOut& hand_out, std::uint64_t, std::uint64_t) {
    --out_;
    captured_ += hand_out.work == Work::capture_and_encode ? 1 : 0;
  }
  void returned(std::uint64_t bytes) { credit_.refund(bytes); }
  bool captured() const { return captured_ == chunks_; }
  bool idle() const { return captured() && out_ == 0 && catch_up_cursor_ == chunks_; }
  std::uint64_t reserved() const { return credit_.reserved(); }

private:
  std::size_t chunks_;
  sync::CreditLedger credit_;
  std::uint32_t at_once_, out_ = 0;
  std::size_t cursor_, captured_, catch_up_cursor_;
};

/// Naive: a chunk that does not fit is left for later, and one behind it may still take what credit is left.
class GreedyWalk {
public:
  GreedyWalk(std::vector<std::uint64_t> worst, std::uint64_t inflight, std::uint32_t at_once)
    : worst_(std::move(worst)), credit_(inflight), at_once_(at_once), cursor_(worst_.size()), captured_(worst_.size()),
      catch_up_cursor_(worst_.size()) {}
  void start(bool) {
    cursor_ = captured_ = 0;
    catch_up_cursor_ = worst_.size();
  }
  void add_catch_up() { catch_up_cursor_ = 0; }
  void drop_changes() { deferred_.clear(); }
  void drop_catch_up() { catch_up_cursor_ = worst_.size(); }
  std::optional<CaptureWalk::HandOut> next() {
    if (out_ >= at_once_)
      return std::nullopt;
    if (cursor_ < worst_.size()) {
      ++out_;
      const auto chunk = static_cast<std::uint32_t>(cursor_++);
      return CaptureWalk::HandOut{chunk, credit_.reserve(worst_[chunk]) ? Work::capture_and_encode : Work::capture};
    }
    if (!captured())
      return std::nullopt;
    if (!deferred_.empty()) {
      const std::uint32_t chunk = *deferred_.begin();
      if (!credit_.reserve(worst_[chunk]))
        return std::nullopt;
      deferred_.erase(chunk);
      ++out_;
      return CaptureWalk::HandOut{chunk, Work::encode};
    }
    if (catch_up_cursor_ == worst_.size() || !credit_.reserve(worst_[catch_up_cursor_]))
      return std::nullopt;
    ++out_;
    return CaptureWalk::HandOut{static_cast<std::uint32_t>(catch_up_cursor_++), Work::catch_up};
  }
  void done(const CaptureWalk::HandOut& hand_out, std::uint64_t, std::uint64_t encoded) {
    --out_;
    captured_ += hand_out.work == Work::capture_and_encode || hand_out.work == Work::capture ? 1 : 0;
    if (hand_out.work == Work::capture)
      deferred_.insert(hand_out.chunk);
    else
      credit_.refund(worst_[hand_out.chunk] - encoded);
  }
  void returned(std::uint64_t bytes) { credit_.refund(bytes); }
  bool captured() const { return captured_ == worst_.size(); }
  bool idle() const { return captured() && out_ == 0 && deferred_.empty() && catch_up_cursor_ == worst_.size(); }
  std::uint64_t reserved() const { return credit_.reserved(); }

private:
  std::vector<std::uint64_t> worst_;
  sync::CreditLedger credit_;
  std::uint32_t at_once_, out_ = 0;
  std::size_t cursor_, captured_, catch_up_cursor_;
  std::set<std::uint32_t> deferred_;
};

// The chain
// ---------------------------------------------------------------------------------------------------------------

struct Counts {
  std::uint64_t events = 0, updates = 0, committed = 0, superseded = 0, failed = 0, seeds = 0, deltas = 0, folds = 0,
                pieces = 0, rounds = 0, flushes = 0, chunks = 0, deferred = 0, dropped_gathers = 0, stops = 0,
                given_up = 0, returned = 0, ahead = 0, early_reports = 0, least_caps = 0, routed = 0, quiet_moments = 0;
  // How near the books came to the caps.
  std::uint64_t worst_share = 0; ///< of a chunk's worst case, per cent
  std::uint64_t full_inflight = 0, full_rounds = 0, full_flushes = 0;
};

struct Verdict {
  enum Kind : std::uint8_t { held, stands_still, over_cap, wrong_pieces, wrong_end, refused };
  static constexpr std::array<const char*, 6> names{"held",         "stands still", "over its cap",
                                                    "wrong pieces", "wrong end",    "refused by a machine"};
  Kind kind = held;
  std::string message;
};

/// What one actor handles, or one connection carries, in its order.
struct Queue {
  std::deque<std::function<void()>> events;
  bool stopped = false;
};

template <class Walk>
class Chain {
public:
  Chain(std::uint64_t schedule, Counts& counts, Scheme scheme = {})
    : random_(test::generator(7600000 + schedule)), counts_(counts), scheme_(scheme) {
    choose_caps();
    ranks_ = std::vector<Rank>(uniform(random_, 1, 4));
    windows_ = static_cast<std::uint32_t>(uniform(random_, 1, 4));
    versions_ = uniform(random_, 2, 5);
    fold_ = uniform(random_, 0, 2) == 0;
    const std::uint32_t differs = static_cast<std::uint32_t>(uniform(random_, 1, 3));
    for (std::uint32_t r = 0; r < ranks_.size(); ++r)
      make_rank(r, differs);
    per_replica_ = static_cast<std::uint32_t>(uniform(random_, 1, 2));
    workers_ = std::vector<Worker>(per_replica_ * uniform(random_, 1, 3));
    for (Worker& worker : workers_)
      for (Queue* queue : {&worker.applier, &worker.control_down, &worker.data_down, &worker.up})
        queues_.push_back(queue);
    for (Queue* queue : {&flush_bucket_, &sender_})
      queues_.push_back(queue);
    gather_root_.emplace(static_cast<std::uint32_t>(ranks_.size()), windows_, max_round_);
    make_routes();
    assembly_.emplace(cap_, routes_);
    delivery_.emplace(
      sync::DeliverySettings{static_cast<std::uint32_t>(workers_.size()), per_replica_, 0, stall, timeout});
    stops_left_ = uniform(random_, 0, 3);
    for (std::uint32_t r = 0; r < ranks_.size(); ++r)
      post(ranks_[r].supervisor, [this, r] { publish(r, 1); });
  }

  Verdict run() {
    std::uint64_t quiet = 0; // ticks in a row that led to nothing
    while (verdict_.kind == Verdict::held) {
      if (Queue* queue = pick()) {
        std::function<void()> event = std::move(queue->events.front());
        queue->events.pop_front();
        event();
        ++counts_.events;
        if (!std::exchange(ticking_, false))
          quiet = 0;
        check_caps();
        if (stops_left_ > 0 && uniform(random_, 0, 149) == 0)
          stop_a_worker();
        if (uniform(random_, 0, 199) == 0)
          goes_on(static_cast<std::uint32_t>(uniform(random_, 0, workers_.size() - 1)));
        continue;
      }
      if (all_over())
        break;
      // Nothing can be done now: only a worker that has stopped may be waited for.
      ++counts_.quiet_moments;
      const bool someone_stopped =
        std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.applier.stopped; });
      if (!someone_stopped || ++quiet > 60)
        return {Verdict::stands_still, where()};
      time_passes();
    }
    if (verdict_.kind == Verdict::held)
      check_end();
    return verdict_;
  }

private:
  struct Task {
    CaptureWalk::HandOut hand_out;
    std::uint64_t version = 0;
  };
  /// What a chunk was encoded to, and the block of each piece.
  struct Made {
    Bytes bytes;
    std::vector<std::uint64_t> ends;
    std::vector<std::uint32_t> blocks;
    explicit Made(const EncodedChunk& chunk) : bytes(chunk.bytes), ends(chunk.ends) {
      std::uint64_t begin = 0;
      for (const std::uint64_t end : ends) {
        blocks.push_back(delta::peek_piece(std::span<const std::byte>(bytes).subspan(begin))->block);
        begin = end;
      }
    }
  };
  struct Rank {
    std::vector<layout::Block> blocks;
    std::vector<sync::Chunk> chunks;
    std::unique_ptr<delta::PieceEncoder> encoder;
    Queue supervisor, snapshotter, gather_queue, leaving; // leaving: the transport's word that a share has left
    Queue control_up, data_up, control_down;              // connections to the root
    std::deque<Queue> differs;
    // supervisor
    std::deque<std::uint64_t> queued;
    std::set<std::uint64_t> published;
    std::uint64_t captures_started = 0, deliveries_over = 0, abandoned = 0;
    wire::NextUpdate next;
    // snapshotter
    std::optional<Walk> walk;
    std::deque<std::uint64_t> waiting;
    std::uint64_t version = 0;
    bool announced = true;
    wire::NextUpdate planned;
    std::set<std::uint64_t> dropped;
    std::size_t next_differ = 0;
    // differs: what waits for credit in a naive scheme
    std::vector<std::function<bool()>> blocked;
    // gather queue
    std::optional<sync::GatherRank> gather;
    bool share_under_way = false;
    std::deque<wire::Grant> waiting_grants;
    // the books
    std::uint64_t encoded = 0;                                       ///< bytes that are here
    std::map<std::uint64_t, std::map<std::uint32_t, Made>> made;     ///< by gather, by chunk
    std::map<std::pair<std::uint64_t, std::uint32_t>, bool> changed; ///< by version and chunk
  };
  struct Worker {
    Queue applier, control_down, data_down, up;
    WorkerProtocol protocol;
    /// Of a route: by rank, the next piece (chunk, piece in it); and the window so far.
    struct Progress {
      std::vector<std::pair<std::uint32_t, std::size_t>> cursors;
      std::uint32_t window = 0;
    };
    std::map<std::uint32_t, Progress> routes;
    std::uint64_t gather = 0;
    bool ever_stopped = false, told_silent = false;
    Nanoseconds stopped_at = 0;
    std::optional<Nanoseconds> goes_on;
  };

  // Random settings.
  void choose_caps() {
    size_ = std::array<std::size_t, 4>{1, 2, 4, 8}[uniform(random_, 0, 3)];
    dtype_ = size_ == 1 ? DType::u8 : size_ == 2 ? DType::bf16 : size_ == 4 ? DType::f32 : DType::f64;
    const std::uint64_t least = delta::least_piece_limit(size_);
    const std::uint64_t least_inflight = std::max<std::uint64_t>(least, delta::worst_case_bytes(1, size_, least));
    const auto cap = [&](std::uint64_t smallest) {
      switch (uniform(random_, 0, 3)) {
      case 0:
        return smallest;
      case 1:
        return smallest + uniform(random_, 0, 2 * smallest);
      case 2:
        return smallest + uniform(random_, 0, 1000);
      default:
        return smallest + uniform(random_, 0, 20000);
      }
    };
    inflight_ = cap(least_inflight);
    max_round_ = cap(least);
    cap_ = cap(least);
    const auto limit = sync::piece_limit(inflight_, max_round_, cap_ + wire::header_bytes, size_);
    if (ok(limit))
      piece_limit_ = *limit;
    counts_.least_caps += inflight_ == least_inflight && max_round_ == least && cap_ == least ? 1 : 0;
  }

  void make_rank(std::uint32_t r, std::uint32_t differs) {
    Rank& rank = ranks_[r];
    rank.encoder = std::make_unique<delta::PieceEncoder>(piece_limit_);
    // Blocks in the order of the walk, windows ascending; a rank may own nothing.
    std::uint32_t window = 0;
    for (std::uint64_t blocks = uniform(random_, 0, 4) == 0 ? 0 : uniform(random_, 1, 8); blocks > 0; --blocks) {
      layout::Block block;
      block.id = static_cast<std::uint32_t>(owner_of_block_.size());
      block.dtype = dtype_;
      block.extents = {static_cast<layout::Index>(uniform(random_, 1, piece_limit_ < 100 ? 16 : 250))};
      block.local_strides = block.slot_strides = {1};
      window = std::min(windows_ - 1, window + static_cast<std::uint32_t>(uniform(random_, 0, 1)));
      block.window = window;
      rank.blocks.push_back(block);
      owner_of_block_.push_back(r);
    }
    rank.chunks = sync::cut_chunks(rank.blocks, uniform(random_, 1, 2000), inflight_, piece_limit_).chunks;
    std::vector<std::uint32_t> windows;
    std::vector<std::uint64_t> worst;
    for (const sync::Chunk& chunk : rank.chunks) {
      windows.push_back(chunk.window);
      worst.push_back(chunk.worst_case);
    }
    rank.walk.emplace(std::move(worst), inflight_, 2 * differs);
    rank.gather.emplace(std::move(windows), windows_);
    rank.differs.resize(differs);
    for (Queue* queue : {&rank.supervisor, &rank.snapshotter, &rank.gather_queue, &rank.leaving, &rank.control_up,
                         &rank.data_up, &rank.control_down})
      queues_.push_back(queue);
    for (Queue& queue : rank.differs)
      queues_.push_back(&queue);
  }

  /// Everybody gets everything, or each what its place in the replica holds.
  void make_routes() {
    const auto blocks = static_cast<std::uint32_t>(owner_of_block_.size());
    if (uniform(random_, 0, 1)) {
      routes_ = std::make_shared<sync::RouteTable>(sync::broadcast(blocks, 0, workers_.size()));
      return;
    }
    ++counts_.routed;
    auto table = std::make_shared<sync::RouteTable>();
    std::map<std::vector<std::uint32_t>, std::uint32_t> routes;
    const std::uint64_t rarely = uniform(random_, 0, 3);
    for (std::uint32_t block = 0; block < blocks; ++block) {
      std::vector<std::uint32_t> holders;
      for (std::uint32_t place = 0; place < per_replica_; ++place)
        if (uniform(random_, 0, 3) >= rarely)
          for (std::uint32_t w = place; w < workers_.size(); w += per_replica_)
            holders.push_back(w);
      std::sort(holders.begin(), holders.end());
      if (holders.empty()) {
        table->route_of_block.push_back(sync::RouteTable::nobody);
        continue;
      }
      const auto [at, added] = routes.try_emplace(holders, static_cast<std::uint32_t>(routes.size()));
      if (added)
        table->workers.push_back(holders);
      table->route_of_block.push_back(at->second);
    }
    routes_ = std::move(table);
  }
  // The scheduler.
  template <class Event>
  void post(Queue& queue, Event&& event) {
    queue.events.emplace_back(std::forward<Event>(event));
  }
  Queue* pick() {
    enabled_.clear();
    for (Queue* queue : queues_)
      if (!queue->events.empty() && !queue->stopped)
        enabled_.push_back(queue);
    if (enabled_.empty())
      return nullptr;
    return enabled_[uniform(random_, 0, enabled_.size() - 1)];
  }
  void stop_a_worker() {
    Worker& worker = workers_[uniform(random_, 0, workers_.size() - 1)];
    if (worker.applier.stopped)
      return;
    --stops_left_;
    ++counts_.stops;
    worker.applier.stopped = worker.ever_stopped = true;
    worker.stopped_at = now_;
    worker.goes_on.reset();
    const std::uint64_t kind = uniform(random_, 0, 3);
    if (kind != 0) // in time; too late; or never
      worker.goes_on =
        now_ + static_cast<Nanoseconds>(kind == 1 ? uniform(random_, 1, 8) : uniform(random_, 12, 50)) * stall / 10;
  }
  void goes_on(std::uint32_t w) {
    Worker& worker = workers_[w];
    if (!worker.applier.stopped || !worker.goes_on)
      return;
    worker.applier.stopped = false;
    ++counts_.returned;
    if (std::exchange(worker.told_silent, false))
      post(sender_, [this, w] { delivery_->heard(w); });
  }
  /// A tenth of the stall, while everything waits.
  void time_passes() {
    now_ += stall / 10;
    for (std::uint32_t w = 0; w < workers_.size(); ++w) {
      Worker& worker = workers_[w];
      if (!worker.applier.stopped)
        continue;
      if (worker.goes_on && now_ >= *worker.goes_on) {
        goes_on(w);
      } else if (now_ > worker.stopped_at + stall && !worker.told_silent && uniform(random_, 0, 1)) {
        worker.told_silent = true;
        post(sender_, [this, w] {
          carry_out(delivery_->silent(w, Failure{Code::timed_out, "nothing was heard of it"}, now_));
        });
      }
    }
    post(sender_, [this] {
      ticking_ = true;
      carry_out(delivery_->tick(now_));
    });
  }

  void wrong(typename Verdict::Kind kind, std::string message) {
    if (verdict_.kind == Verdict::held)
      verdict_ = {kind, std::move(message)};
  }
  /// A machine refuses what an honest neighbour says.
  template <class T>
  bool ok(const Result<T>& result) {
    if (!result)
      wrong(Verdict::refused, result.error().message);
    return result.has_value();
  }

  // Books
  // -------------------------------------------------------------------------------------------------------------

  void check_caps() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      if (rank.encoded > inflight_ || rank.walk->reserved() > inflight_)
        wrong(Verdict::over_cap, fmt::format("rank {} holds {} encoded bytes ({} reserved), inflight is {}", r,
                                             rank.encoded, rank.walk->reserved(), inflight_));
      counts_.full_inflight += rank.walk->reserved() == inflight_ ? 1 : 0;
    }
    if (at_root_ > max_round_)
      wrong(Verdict::over_cap, fmt::format("the root holds {} gathered bytes, max_round is {}", at_root_, max_round_));
    if (assembly_->held_bytes() > 2 * cap_ || on_wire_.size() > 1)
      wrong(Verdict::over_cap,
            fmt::format("the flush bucket holds {} bytes and {} flushes are on the wire, the cap is {}",
                        assembly_->held_bytes(), on_wire_.size(), cap_));
    counts_.full_rounds += at_root_ == max_round_ ? 1 : 0;
  }

  [[nodiscard]] bool all_over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
      return rank.deliveries_over == versions_ && rank.walk->idle() && rank.announced;
    });
  }

  std::string where() const {
    std::string text = fmt::format("after {} of {} updates; delivery running: {}, gather {}, {} bytes at the root",
                                   ranks_[0].deliveries_over, versions_, delivery_->running(), gathering_, at_root_);
    for (std::uint32_t r = 0; r < ranks_.size(); ++r)
      text += fmt::format("; rank {}: version {}, captured {}, idle {}, {} reserved, {} queued", r, ranks_[r].version,
                          ranks_[r].walk->captured(), ranks_[r].walk->idle(), ranks_[r].walk->reserved(),
                          ranks_[r].gather->queued_bytes());
    return text;
  }

  void check_end() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].walk->reserved() != 0 || ranks_[r].gather->queued_bytes() != 0 || ranks_[r].encoded != 0)
        wrong(Verdict::wrong_end,
              fmt::format("rank {} keeps {} bytes reserved, {} queued, {} encoded", r, ranks_[r].walk->reserved(),
                          ranks_[r].gather->queued_bytes(), ranks_[r].encoded));
    const std::uint64_t discarded = assembly_->begin();
    if (gather_root_->held_bytes() != discarded || at_root_ != discarded)
      wrong(Verdict::wrong_end, fmt::format("the root holds {} bytes ({} by its own count) at the end", at_root_,
                                            gather_root_->held_bytes()));
    if (updates_over_ != versions_)
      wrong(Verdict::wrong_end, fmt::format("{} updates ended, {} were published", updates_over_, versions_));
  }

  // Supervisors
  // -------------------------------------------------------------------------------------------------------------

  void publish(std::uint32_t r, std::uint64_t version) {
    Rank& rank = ranks_[r];
    rank.queued.push_back(version);
    rank.published.insert(version);
    advance_supervisor(r);
  }
  void advance_supervisor(std::uint32_t r) {
    Rank& rank = ranks_[r];
    while (!rank.queued.empty() && rank.captures_started < rank.deliveries_over + 2) {
      const std::uint64_t version = rank.queued.front();
      rank.queued.pop_front();
      ++rank.captures_started;
      post(rank.snapshotter, [this, r, version] { capture_requested(r, version); });
    }
    if (r == 0 && delivering_ == 0 && rank.captures_started > rank.deliveries_over) {
      delivering_ = rank.deliveries_over + 1;
      std::optional<DeliveryPlan> catch_up;
      if (rank.next.version == delivering_ && rank.next.catch_up != 0)
        catch_up = DeliveryPlan{rank.next.kind, rank.next.base, delivering_};
      post(sender_, [this, version = delivering_, catch_up, abandoned = rank.abandoned == delivering_] {
        begin_update(version, catch_up, abandoned);
      });
    }
    const std::uint64_t busy = rank.deliveries_over + 1;
    if (fold_ && !rank.queued.empty() && busy != 1 && !(rank.next.version == busy && rank.next.catch_up != 0))
      abandon(r, busy);
  }
  void abandon(std::uint32_t r, std::uint64_t version) {
    Rank& rank = ranks_[r];
    if (version <= rank.deliveries_over)
      return;
    if (r != 0) {
      if (rank.abandoned >= version)
        return;
      rank.abandoned = version;
      post(rank.control_up, [this, version] { post(ranks_[0].supervisor, [this, version] { abandon(0, version); }); });
      return;
    }
    if (delivering_ == version)
      post(sender_, [this, version] {
        if (updating_ && version == updating_version_ && !carries_catch_up_)
          carry_out(delivery_->abandon(Failure{Code::superseded, "folded"}, now_));
      });
    else
      rank.abandoned = std::max(rank.abandoned, version);
  }
  void plan_next(std::uint32_t r, const wire::NextUpdate& next) {
    ranks_[r].next = next;
    post(ranks_[r].snapshotter, [this, r, next] {
      ranks_[r].planned = next;
      if (catches_up(r))
        begin_catch_up_capture(r);
      advance_snapshotter(r);
    });
  }
  void delivered(std::uint32_t r, std::uint64_t version) {
    counts_.early_reports += ranks_[r].published.contains(version) ? 0 : 1;
    if (scheme_.forgets_early_reports && !ranks_[r].published.contains(version))
      return;
    ranks_[r].deliveries_over = version;
    if (r == 0)
      delivering_ = 0;
    advance_supervisor(r);
  }
  void update_over(const wire::NextUpdate& next) {
    const std::uint64_t version = next.version - 1;
    for (std::uint32_t r = 1; r < ranks_.size(); ++r) {
      post(ranks_[r].control_down,
           [this, r, next] { post(ranks_[r].supervisor, [this, r, next] { plan_next(r, next); }); });
      post(ranks_[r].control_down,
           [this, r, version] { post(ranks_[r].supervisor, [this, r, version] { delivered(r, version); }); });
    }
    plan_next(0, next);
    delivered(0, version);
  }

  // Snapshotters and Differs
  // -------------------------------------------------------------------------------------------------------------

  bool catches_up(std::uint32_t r) const {
    return ranks_[r].planned.version == ranks_[r].version && ranks_[r].planned.catch_up != 0;
  }
  void begin_catch_up_capture(std::uint32_t r) {
    Rank& rank = ranks_[r];
    const std::uint64_t gather = sync::catch_up_gather_of(rank.version);
    if (rank.dropped.contains(gather))
      return;
    rank.walk->add_catch_up();
    post(rank.gather_queue, [this, r, gather] {
      if (ranks_[r].chunks.empty())
        offer(r, ranks_[r].gather->nothing(gather));
    });
  }
  void capture_requested(std::uint32_t r, std::uint64_t version) {
    Rank& rank = ranks_[r];
    rank.waiting.push_back(version);
    if (fold_ && rank.announced && !rank.walk->idle() && rank.version != 1 && !catches_up(r)) {
      rank.walk->drop_changes();
      post(rank.gather_queue, [this, r, gather = sync::gather_of(rank.version)] { drop_own(r, gather); });
      post(rank.supervisor, [this, r, abandoned = rank.version] { abandon(r, abandoned); });
    }
    advance_snapshotter(r);
  }
  void advance_snapshotter(std::uint32_t r) {
    Rank& rank = ranks_[r];
    for (;;) {
      if (rank.announced && rank.walk->idle() && !rank.waiting.empty()) {
        rank.version = rank.waiting.front();
        counts_.ahead += rank.version > ranks_[0].deliveries_over + 1 ? 1 : 0;
        rank.waiting.pop_front();
        rank.walk->start(rank.version == 1);
        rank.announced = false;
        std::erase_if(rank.dropped, [&](std::uint64_t gather) { return gather < sync::gather_of(rank.version); });
        if (rank.dropped.contains(sync::gather_of(rank.version)))
          rank.walk->drop_changes();
        if (catches_up(r))
          begin_catch_up_capture(r);
      }
      while (const auto next = rank.walk->next()) {
        ++counts_.chunks;
        counts_.deferred += next->work == Work::encode ? 1 : 0;
        post(rank.differs[rank.next_differ], [this, r, task = Task{*next, rank.version}] { work_on(r, task); });
        rank.next_differ = (rank.next_differ + 1) % rank.differs.size();
      }
      if (rank.announced || !rank.walk->captured())
        return;
      rank.announced = true;
      post(rank.gather_queue, [this, r, version = rank.version] { capture_reported(r, version); });
      if (rank.version < versions_)
        post(rank.supervisor, [this, r, version = rank.version + 1] { publish(r, version); });
    }
  }

  /// The pieces of a chunk, real ones, as dense as may be.
  EncodedChunk encode(Rank& rank, std::uint64_t gather, std::uint32_t c) {
    for (const sync::ChunkRange& range : rank.chunks[c].ranges) {
      const layout::Block& block = rank.blocks[range.block];
      values_.resize(range.count * size_);
      for (std::size_t i = 0; i < values_.size(); i += 8) {
        const std::uint64_t bits = random_();
        std::memcpy(values_.data() + i, &bits, std::min<std::size_t>(8, values_.size() - i));
      }
      const std::uint64_t density = uniform(random_, 0, 5); // 0 and 1: all changed
      if (density == 5) {
        rank.encoder->add_values(block, range.first, range.count, values_.data());
        continue;
      }
      positions_.clear();
      const std::uint64_t gap = density <= 1 ? 1 : density == 2 ? 2 : uniform(random_, 1, 100);
      for (std::uint64_t at = gap == 1 ? 0 : uniform(random_, 0, gap); at < range.count;
           at += gap <= 2 ? gap : uniform(random_, 1, gap))
        positions_.push_back(static_cast<std::uint16_t>(at));
      rank.encoder->start_range(block, range.first, range.count);
      if (!positions_.empty())
        rank.encoder->add_changes(range.first, positions_, values_.data());
      rank.encoder->finish_range();
    }
    delta::EncodedPieces pieces = rank.encoder->take();
    if (pieces.bytes.size() > rank.chunks[c].worst_case)
      wrong(Verdict::over_cap, fmt::format("a chunk encodes to {} bytes, its worst case is {}", pieces.bytes.size(),
                                           rank.chunks[c].worst_case));
    counts_.worst_share =
      std::max(counts_.worst_share, pieces.bytes.size() * 100 / std::max<std::uint64_t>(1, rank.chunks[c].worst_case));
    return {gather, c, std::move(pieces.bytes), std::move(pieces.ends)};
  }

  void work_on(std::uint32_t r, const Task& task) {
    Rank& rank = ranks_[r];
    const Work work = task.hand_out.work;
    const std::uint32_t c = task.hand_out.chunk;
    bool changed = false;
    if (work != Work::catch_up) {
      const auto [at, added] = rank.changed.try_emplace({task.version, c}, true);
      if (added)
        at->second = task.version == 1 || uniform(random_, 0, 3) != 0;
      changed = at->second;
    }
    EncodedChunk encoded;
    if (work == Work::catch_up)
      encoded = encode(rank, sync::catch_up_gather_of(task.version), c);
    else if (changed && (work == Work::capture_and_encode || work == Work::encode))
      encoded = encode(rank, sync::gather_of(task.version), c);
    else
      encoded = {sync::gather_of(task.version), c, {}, {}};
    const auto leave = [this, r, task, changed, chunk = std::make_shared<EncodedChunk>(std::move(encoded))] {
      Rank& its = ranks_[r];
      const std::uint64_t bytes = chunk->bytes.size();
      if constexpr (std::is_same_v<Walk, WalkByActualSize>)
        if (!its.walk->admits(bytes))
          return false;
      if (task.hand_out.work != Work::capture) {
        its.encoded += bytes;
        its.made[chunk->gather].emplace(chunk->chunk, Made(*chunk));
        post(its.gather_queue, [this, r, chunk] { chunk_encoded(r, *chunk); });
      }
      post(its.snapshotter, [this, r, task, changed, bytes] {
        ranks_[r].walk->done(task.hand_out, changed ? 1 : 0, bytes);
        advance_snapshotter(r);
      });
      return true;
    };
    if (!leave())
      rank.blocked.push_back(leave);
  }
  void credit_returned(std::uint32_t r, std::uint64_t bytes) {
    ranks_[r].encoded -= std::min(bytes, ranks_[r].encoded);
    if (!scheme_.credit_before_leaving)
      give_credit(r, bytes);
  }
  void give_credit(std::uint32_t r, std::uint64_t bytes) {
    post(ranks_[r].snapshotter, [this, r, bytes] {
      Rank& rank = ranks_[r];
      rank.walk->returned(bytes);
      auto blocked = std::exchange(rank.blocked, {});
      std::shuffle(blocked.begin(), blocked.end(), random_);
      for (auto& leave : blocked)
        if (!leave())
          rank.blocked.push_back(std::move(leave));
      advance_snapshotter(r);
    });
  }

  // Gather queues
  // -------------------------------------------------------------------------------------------------------------

  /// What another rank's gather queue says to the root's.
  template <class Event>
  void tell_root(std::uint32_t r, Event event) {
    if (r == 0)
      return event();
    post(ranks_[r].control_up, [this, event] { post(ranks_[0].gather_queue, event); });
  }
  void offer(std::uint32_t r, const wire::Offer& offer) {
    tell_root(r, [this, r, offer] {
      if (ok(gather_root_->on_offer(r, offer)))
        advance_root();
    });
  }
  void capture_reported(std::uint32_t r, std::uint64_t version) {
    if (ranks_[r].chunks.empty())
      offer(r, ranks_[r].gather->nothing(sync::gather_of(version)));
    wire::CaptureReport report;
    report.version = version;
    report.step = version;
    report.kind = version == 1 ? Kind::seed : Kind::delta;
    tell_root(r, [this, r, report] {
      if (ok(gather_root_->on_report(r, report)))
        advance_root();
    });
  }
  void chunk_encoded(std::uint32_t r, EncodedChunk chunk) {
    Rank& rank = ranks_[r];
    const std::uint64_t bytes = chunk.bytes.size();
    if (rank.gather->dropped(chunk.gather))
      return credit_returned(r, bytes);
    if (const auto ready = rank.gather->add(std::move(chunk)))
      offer(r, *ready);
    if (scheme_.credit_before_leaving)
      give_credit(r, bytes);
  }
  void drop_own(std::uint32_t r, std::uint64_t gather) {
    if (const std::uint64_t bytes = ranks_[r].gather->drop(gather); bytes > 0)
      credit_returned(r, bytes);
  }
  void dropped(std::uint32_t r, std::uint64_t gather) {
    drop_own(r, gather);
    post(ranks_[r].snapshotter, [this, r, gather] {
      Rank& rank = ranks_[r];
      rank.dropped.insert(gather);
      if (gather == sync::gather_of(rank.version))
        rank.walk->drop_changes();
      if (gather == sync::catch_up_gather_of(rank.version))
        rank.walk->drop_catch_up();
      advance_snapshotter(r);
    });
  }
  void granted(std::uint32_t r, const wire::Grant& grant) {
    Rank& rank = ranks_[r];
    auto share = rank.gather->cut(grant);
    if (!ok(share))
      return;
    if (scheme_.drops_in_silence && share->empty())
      return;
    if (r == 0) {
      if (!share->empty())
        credit_returned(0, share->size());
      return share_arrived(0, grant, std::make_shared<Bytes>(std::move(*share)));
    }
    rank.share_under_way = true;
    post(rank.data_up, [this, r, grant, bytes = std::make_shared<Bytes>(std::move(*share))] {
      const std::uint64_t size = bytes->size();
      post(ranks_[0].gather_queue, [this, r, grant, bytes] {
        share_arrived(r, grant, bytes);
        advance_root();
      });
      post(ranks_[r].leaving,
           [this, r, size] { post(ranks_[r].gather_queue, [this, r, size] { share_left(r, size); }); });
    });
  }
  void share_left(std::uint32_t r, std::uint64_t bytes) {
    Rank& rank = ranks_[r];
    credit_returned(r, bytes);
    rank.share_under_way = false;
    if (rank.waiting_grants.empty())
      return;
    const wire::Grant next = rank.waiting_grants.front();
    rank.waiting_grants.pop_front();
    granted(r, next);
  }
  void share_arrived(std::uint32_t r, const wire::Grant& grant, std::shared_ptr<Bytes> bytes) {
    const auto wanted = gather_root_->on_share(r, grant.gather, grant.round, bytes->size());
    if (!ok(wanted))
      return;
    if (!*wanted) {
      at_root_ -= grant.bytes;
      return;
    }
    if (scheme_.credit_before_copy)
      gather_root_->consumed(bytes->size());
    post(flush_bucket_, [this, gather = grant.gather, bytes] { round_gathered(gather, std::move(*bytes)); });
  }
  void grant_rounds() {
    for (auto round = gather_root_->next_round(); !round.empty(); round = gather_root_->next_round()) {
      ++counts_.rounds;
      for (const auto& [rank, grant] : round) {
        at_root_ += grant.bytes;
        if (rank == 0)
          granted(0, grant);
        else
          post(ranks_[rank].control_down, [this, r = rank, grant = grant] {
            post(ranks_[r].gather_queue, [this, r, grant] {
              if (ranks_[r].share_under_way)
                ranks_[r].waiting_grants.push_back(grant);
              else
                granted(r, grant);
            });
          });
      }
    }
  }
  void advance_root() {
    grant_rounds();
    while (gather_root_->window_ended()) {
      post(flush_bucket_, [this, gather = gathering_] {
        if (gather != flush_gather_)
          return;
        assembly_->window_ended();
        advance_flush_bucket();
      });
      if (!scheme_.waits_for_an_event)
        grant_rounds();
    }
    if (const auto totals = gather_root_->finished()) {
      if (scheme_.sends_when_gathered)
        post(sender_, [this, gather = totals->gather] {
          all_gathered_ = gather;
          send_what_waits();
        });
      post(flush_bucket_, [this, gather = totals->gather] {
        if (gather != flush_gather_)
          return;
        gathered_ = true;
        assembly_->finish();
        advance_flush_bucket();
      });
    }
  }
  void gather_begins(std::uint64_t gather) {
    post(flush_bucket_, [this, gather] {
      flush_gather_ = gather;
      const std::uint64_t discarded = assembly_->begin();
      on_wire_.clear();
      round_consumed(discarded, scheme_.keeps_discarded);
      gathered_ = false;
    });
    post(ranks_[0].gather_queue, [this, gather] {
      gathering_ = gather;
      gather_root_->begin(gather);
      advance_root();
    });
  }
  void drop_gather(std::uint64_t gather) {
    ++counts_.dropped_gathers;
    post(ranks_[0].gather_queue, [this, gather] {
      gather_root_->drop(gather);
      for (std::uint32_t r = 1; r < ranks_.size(); ++r)
        post(ranks_[r].control_down,
             [this, r, gather] { post(ranks_[r].gather_queue, [this, r, gather] { dropped(r, gather); }); });
      dropped(0, gather);
    });
  }

  // Flush bucket
  // -------------------------------------------------------------------------------------------------------------

  void round_consumed(std::uint64_t bytes, bool kept = false) {
    at_root_ -= bytes;
    if (bytes == 0 || scheme_.credit_before_copy || kept)
      return;
    post(ranks_[0].gather_queue, [this, bytes] {
      gather_root_->consumed(bytes);
      advance_root();
    });
  }
  void round_gathered(std::uint64_t gather, Bytes pieces) {
    if (gather != flush_gather_)
      return round_consumed(pieces.size());
    assembly_->add_round(std::move(pieces));
    advance_flush_bucket();
  }
  void advance_flush_bucket() {
    for (;;) {
      auto step = assembly_->advance();
      if (!ok(step))
        return;
      round_consumed(step->consumed);
      if (!step->flush)
        break;
      ++counts_.flushes;
      const std::uint64_t bytes = step->flush->bytes;
      counts_.full_flushes += bytes == cap_ ? 1 : 0;
      if (bytes > cap_)
        wrong(Verdict::over_cap, fmt::format("a flush of {} bytes, the cap is {}", bytes, cap_));
      on_wire_.insert(step->flush->sequence);
      const auto flush = std::make_shared<const sync::FlushAssembly::Flush>(std::move(*step->flush));
      post(sender_, [this, gather = flush_gather_, flush] {
        if (!delivery_->running() || gather != gather_)
          return; // given up meanwhile
        if (may_send_ && (!scheme_.sends_when_gathered || all_gathered_ == gather))
          send_flush(*flush);
        else
          flush_waits_.push_back(flush);
      });
    }
    if (gathered_ && assembly_->finished()) {
      gathered_ = false;
      post(sender_, [this, gather = flush_gather_] {
        if (!delivery_->running() || gather != gather_)
          return;
        sealed_ = true;
        send_what_waits();
      });
    }
  }

  // Sender
  // -------------------------------------------------------------------------------------------------------------

  void begin_update(std::uint64_t version, std::optional<DeliveryPlan> catch_up, bool abandoned) {
    updating_ = true;
    updating_version_ = version;
    catch_up_ = catch_up;
    carries_catch_up_ = catch_up.has_value();
    planned_ = catch_up ? std::optional(catch_up->kind) : std::nullopt;
    committed_ = false;
    failed_.reset();
    delivery_->begin_update();
    if (abandoned) {
      failed_ = Failure{Code::superseded, "folded"};
      drop_gather(sync::gather_of(version));
      return begin_catch_up();
    }
    if (!begin_delivery(sync::gather_of(version), {version == 1 ? Kind::seed : Kind::delta, version - 1, version}))
      begin_catch_up();
  }
  bool begin_delivery(std::uint64_t gather, const DeliveryPlan& plan) {
    if (!delivery_->anyone_for(plan)) {
      drop_gather(gather);
      return false;
    }
    gather_ = gather;
    may_send_ = sealed_ = manifest_sent_ = false;
    flush_waits_.clear();
    gather_begins(gather);
    counts_.seeds += plan.kind == Kind::seed ? 1 : 0;
    counts_.deltas += plan.kind == Kind::delta ? 1 : 0;
    counts_.folds += plan.kind == Kind::fold ? 1 : 0;
    gathers_.push_back(gather); // delivery ids count from 1
    carry_out(delivery_->begin(gathers_.size(), plan, now_));
    return true;
  }
  void begin_catch_up() {
    const auto plan = std::exchange(catch_up_, std::nullopt);
    if (!plan || !begin_delivery(sync::catch_up_gather_of(updating_version_), *plan))
      finish_update();
  }
  void delivery_over() {
    if (!sealed_ || !manifest_sent_)
      drop_gather(gather_);
    committed_ = committed_ || !delivery_->failure();
    if (delivery_->failure() && !failed_)
      failed_ = delivery_->failure();
    flush_waits_.clear();
    sealed_ = false;
    begin_catch_up();
  }
  void finish_update() {
    updating_ = false;
    const std::uint64_t version = updating_version_;
    ++updates_over_;
    ++counts_.updates;
    (committed_ ? counts_.committed : counts_.failed) += 1;
    const bool superseded = !committed_ && failed_ && failed_->code == Code::superseded;
    counts_.superseded += superseded ? 1 : 0;
    check_update(version, superseded);
    wire::NextUpdate next;
    next.version = version + 1;
    if (const auto plan = delivery_->catch_up(version)) {
      next.catch_up = 1;
      next.kind = plan->kind;
      next.base = plan->base;
    }
    post(ranks_[0].supervisor, [this, next] { update_over(next); });
  }
  /// Every replica whose workers all read is at the target, unless the update was folded into the next one, or the
  /// catch-up was for others.
  void check_update(std::uint64_t version, bool superseded) {
    const auto& records = delivery_->records();
    for (std::uint32_t first = 0; first < workers_.size(); first += per_replica_) {
      bool reads = true, there = true;
      for (std::uint32_t w = first; w < first + per_replica_; ++w) {
        reads = reads && !workers_[w].ever_stopped;
        there = there && records[w].version == version;
        counts_.given_up += records[w].error.empty() ? 0 : 1;
      }
      std::uint64_t& missed = missed_[first];
      if (there || !reads || superseded) {
        missed = 0;
        continue;
      }
      // Where others had to be seeded, a fold waits for its turn, once.
      if (++missed > 1 || planned_ != Kind::seed)
        wrong(Verdict::wrong_end, fmt::format("worker {} reads, and is at version {} after the update to {}: {}", first,
                                              records[first].version, version, records[first].error));
    }
    if (committed_ || superseded)
      return;
    const std::string reason = failed_ ? failed_->message : delivery_->nobody().message;
    bool named = reason.find("wait for the next one") != std::string::npos;
    for (std::uint32_t w = 0; w < workers_.size(); ++w)
      named = named || (workers_[w].ever_stopped && reason.find(fmt::format("worker {}", w)) != std::string::npos);
    if (!named)
      wrong(Verdict::wrong_end, "no worker that stopped is named: " + reason);
  }
  void send_flush(const sync::FlushAssembly::Flush& flush) {
    const std::uint64_t delivery = gathers_.size();
    for (const auto& [route, bytes, pieces] : flush.parts) {
      const auto payload = std::make_shared<const Bytes>(bytes);
      for (const std::uint32_t w : routes_->workers[route]) {
        if (!delivery_->takes_part(w))
          continue;
        const std::uint64_t sequence = delivery_->frame_sent(w, bytes.size());
        post(workers_[w].data_down, [this, w, delivery, sequence, payload] {
          post(workers_[w].applier, [this, w, delivery, sequence, payload] { take(w, delivery, sequence, payload); });
        });
      }
    }
    carry_out(delivery_->flush_sent(now_));
  }
  void send_what_waits() {
    if (!may_send_ || !delivery_->running() || (scheme_.sends_when_gathered && all_gathered_ != gather_))
      return;
    for (const auto& flush : std::exchange(flush_waits_, {}))
      send_flush(*flush);
    if (sealed_ && !manifest_sent_) {
      manifest_sent_ = true;
      carry_out(delivery_->seal([](std::uint32_t) { return RootDelivery::Digests{}; }, now_));
    }
  }
  void carry_out(const RootDelivery::Actions& actions) {
    for (const auto& [w, message] : actions.send) {
      ticking_ = false;
      post(workers_[w].control_down, [this, w = w, message = message] {
        post(workers_[w].applier,
             [this, w, message] { std::visit([this, w](const auto& each) { receive(w, each); }, message); });
      });
    }
    may_send_ = may_send_ || actions.may_send_flushes;
    if (actions.flush_credit)
      post(flush_bucket_, [this, gather = gather_] {
        if (gather != flush_gather_)
          return;
        on_wire_.clear();
        assembly_->wire_free();
        advance_flush_bucket();
      });
    if (actions.over)
      return delivery_over();
    send_what_waits();
  }

  // Workers
  // -------------------------------------------------------------------------------------------------------------

  template <class Message>
  void say(std::uint32_t w, const Message& message) {
    post(workers_[w].up,
         [this, w, message] { post(sender_, [this, w, message] { carry_out(delivery_->on(w, message, now_)); }); });
  }
  void receive(std::uint32_t w, const wire::Begin& message) {
    Worker& worker = workers_[w];
    const auto ready = worker.protocol.begin(message);
    if (!ok(ready))
      return;
    worker.routes.clear();
    for (std::uint32_t route = 0; route < routes_->workers.size(); ++route)
      if (std::count(routes_->workers[route].begin(), routes_->workers[route].end(), w) > 0)
        worker.routes[route].cursors.resize(ranks_.size());
    worker.gather = gathers_[message.delivery - 1];
    say(w, *ready);
  }
  void take(std::uint32_t w, std::uint64_t delivery, std::uint64_t sequence, const Payload& payload) {
    Worker& worker = workers_[w];
    if (worker.protocol.over(delivery))
      return;
    if (!ok(worker.protocol.flush(delivery, sequence, payload->size())))
      return;
    for (std::span<const std::byte> rest(*payload); !rest.empty();) {
      const auto piece = delta::peek_piece(rest);
      if (!ok(piece))
        return;
      take_piece(w, piece->block, rest.first(piece->bytes));
      rest = rest.subspan(piece->bytes);
    }
    say(w, wire::FlushStaged{delivery, sequence, payload->size()});
    staged_if_complete(w);
  }
  /// The next piece of a rank on a route, if the rank has made it.
  const Made* next_piece(Worker& worker, std::uint32_t route, std::uint32_t r) {
    const Rank& rank = ranks_[r];
    auto& [chunk, index] = worker.routes.at(route).cursors[r];
    const auto gathered = rank.made.find(worker.gather);
    for (; chunk < rank.chunks.size(); ++chunk, index = 0) {
      if (gathered == rank.made.end() || !gathered->second.contains(chunk))
        return nullptr;
      const Made& made = gathered->second.at(chunk);
      while (index < made.ends.size() && routes_->route_of_block[made.blocks[index]] != route)
        ++index;
      if (index < made.ends.size())
        return &made;
    }
    return nullptr;
  }
  /// It is the next one of its rank and route, and no window before this one comes any more there.
  void take_piece(std::uint32_t w, std::uint32_t block, std::span<const std::byte> bytes) {
    Worker& worker = workers_[w];
    ++counts_.pieces;
    const std::uint32_t r = owner_of_block_[block], route = routes_->route_of_block[block];
    const auto progress = worker.routes.find(route);
    const Made* expected = progress == worker.routes.end() ? nullptr : next_piece(worker, route, r);
    if (expected == nullptr)
      return wrong(Verdict::wrong_pieces, fmt::format("worker {}: a piece of rank {} too many", w, r));
    auto& [chunk, index] = progress->second.cursors[r];
    const std::uint64_t begin = index == 0 ? 0 : expected->ends[index - 1];
    const std::uint64_t end = expected->ends[index++];
    if (bytes.size() != end - begin ||
        !std::equal(bytes.begin(), bytes.end(), expected->bytes.begin() + static_cast<std::ptrdiff_t>(begin)))
      return wrong(Verdict::wrong_pieces, fmt::format("worker {}: another piece of rank {} was due", w, r));
    const std::uint32_t window = ranks_[r].chunks[chunk].window;
    if (window < progress->second.window)
      return wrong(Verdict::wrong_pieces,
                   fmt::format("worker {}: a piece of window {} after window {}", w, window, progress->second.window));
    progress->second.window = window;
  }
  void staged_if_complete(std::uint32_t w) {
    Worker& worker = workers_[w];
    if (!worker.protocol.complete())
      return;
    for (const auto& [route, progress] : worker.routes)
      for (std::uint32_t r = 0; r < ranks_.size(); ++r)
        if (next_piece(worker, route, r) != nullptr || progress.cursors[r].first != ranks_[r].chunks.size())
          return wrong(Verdict::wrong_pieces, fmt::format("worker {} misses pieces of rank {}", w, r));
    say(w, worker.protocol.verified());
  }
  void receive(std::uint32_t w, const wire::Seal& message) {
    if (ok(workers_[w].protocol.seal(message)))
      staged_if_complete(w);
  }
  void receive(std::uint32_t w, const wire::Commit& message) {
    if (!ok(workers_[w].protocol.commit(message)))
      return;
    workers_[w].protocol.applied();
    wire::Applied applied;
    applied.delivery = message.delivery;
    applied.version = workers_[w].protocol.target();
    say(w, applied);
  }
  void receive(std::uint32_t w, const wire::Release& message) {
    const auto released = workers_[w].protocol.release(message);
    if (ok(released))
      say(w, *released);
  }
  void receive(std::uint32_t w, const wire::Settle&) {
    FAIL("worker " << w << " is told what becomes of a doubt that it never had");
  }
  void receive(std::uint32_t w, const wire::Audit&) { FAIL("worker " << w << " is audited, and nobody asked for it"); }
  void receive(std::uint32_t w, const wire::Adopt&) { FAIL("worker " << w << " is to adopt, and was not audited"); }
  void receive(std::uint32_t w, const wire::Undo& message) {
    const auto undoing = workers_[w].protocol.undo(message);
    if (ok(undoing))
      say(w, undoing->answer);
  }

  std::mt19937_64 random_;
  Counts& counts_;
  Scheme scheme_;
  Verdict verdict_;
  std::size_t size_ = 1;
  DType dtype_ = DType::u8;
  std::uint64_t inflight_ = 0, max_round_ = 0, cap_ = 0;
  std::size_t piece_limit_ = 0;
  std::uint32_t windows_ = 0, per_replica_ = 0;
  std::uint64_t versions_ = 0, stops_left_ = 0;
  bool fold_ = false;
  std::vector<Queue*> queues_, enabled_;
  std::vector<Rank> ranks_;
  std::vector<Worker> workers_;
  std::vector<std::uint32_t> owner_of_block_;
  Nanoseconds now_ = 1;
  bool ticking_ = false;
  Bytes values_;
  std::vector<std::uint16_t> positions_;
  // the root
  std::optional<sync::GatherRoot> gather_root_;
  std::uint64_t gathering_ = 0;
  std::uint64_t delivering_ = 0;
  // flush bucket
  std::shared_ptr<const sync::RouteTable> routes_;
  Queue flush_bucket_;
  std::optional<sync::FlushAssembly> assembly_;
  std::uint64_t flush_gather_ = 0;
  bool gathered_ = false;
  // sender
  Queue sender_;
  std::optional<RootDelivery> delivery_;
  std::vector<std::uint64_t> gathers_; ///< by delivery
  std::uint64_t gather_ = 0, updating_version_ = 0, all_gathered_ = 0;
  bool updating_ = false, carries_catch_up_ = false, committed_ = false, may_send_ = false, sealed_ = false,
       manifest_sent_ = false;
  std::optional<DeliveryPlan> catch_up_;
  std::optional<Kind> planned_; ///< of the catch-up that the update carries
  std::optional<Failure> failed_;
  std::vector<std::shared_ptr<const sync::FlushAssembly::Flush>> flush_waits_;
  // books
  std::uint64_t at_root_ = 0; ///< granted, and not copied out of a round
  std::set<std::uint64_t> on_wire_;
  std::uint64_t updates_over_ = 0;
  std::map<std::uint32_t, std::uint64_t> missed_; ///< by replica's first worker: updates in a row
};

/// How some schedules end.
template <class Walk>
std::array<std::uint64_t, Verdict::names.size()> verdicts_of(const char* name, Scheme scheme = {}) {
  constexpr std::uint64_t schedules = 500;
  std::array<std::uint64_t, Verdict::names.size()> verdicts{};
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule)
    ++verdicts[Chain<Walk>(schedule, counts, scheme).run().kind];
  std::string text;
  for (std::size_t kind = 0; kind < verdicts.size(); ++kind)
    if (verdicts[kind] > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", Verdict::names[kind], verdicts[kind]);
  fmt::print("  {:<62} {}\n", name, text);
  return verdicts;
}

} // namespace

TEST_CASE("the arrows cannot deadlock: every schedule of the whole chain ends, under every cap") {
  constexpr std::uint64_t schedules = 4000;
  CAPTURE(test::seed());
  Counts counts;
  for (std::uint64_t schedule = 0; schedule < schedules; ++schedule) {
    CAPTURE(schedule);
    const Verdict verdict = Chain<CaptureWalk>(schedule, counts).run();
    if (verdict.kind != Verdict::held)
      FAIL("schedule " << schedule << ": " << Verdict::names[verdict.kind] << ": " << verdict.message);
  }
  fmt::print(
    "deadlock: seed {}, {} schedules, {} events, {} under the least caps, {} by routes; {} updates: {} committed, {} "
    "folded into the next, {} failed by name\n"
    "  {} deliveries: {} seeds, {} deltas, {} folds; {} gathers dropped\n"
    "  {} captures ahead of the delivery, {} reports ahead of the publish; {} chunks ({} deferred; up to {}% of their "
    "worst case), {} rounds, {} flushes, {} pieces checked at workers\n"
    "  {} times a worker stopped, {} times one went on, {} workers were given up; {} moments with nothing to do "
    "but wait\n"
    "  at the cap: {} times inflight, {} events max_round, {} flushes\n",
    test::seed(), schedules, counts.events, counts.least_caps, counts.routed, counts.updates, counts.committed,
    counts.superseded, counts.failed - counts.superseded, counts.seeds + counts.deltas + counts.folds, counts.seeds,
    counts.deltas, counts.folds, counts.dropped_gathers, counts.ahead, counts.early_reports, counts.chunks,
    counts.deferred, counts.worst_share, counts.rounds, counts.flushes, counts.pieces, counts.stops, counts.returned,
    counts.given_up, counts.quiet_moments, counts.full_inflight, counts.full_rounds, counts.full_flushes);
  REQUIRE(counts.least_caps > 10);
  REQUIRE(counts.superseded > 100);
  REQUIRE(counts.folds > 200);
  REQUIRE(counts.deferred > 1000);
  REQUIRE(counts.given_up > 200);
  REQUIRE(counts.returned > 200);
  REQUIRE(counts.full_rounds > 1000);
  REQUIRE(counts.full_flushes > 100);
}

TEST_CASE("each naive scheme of credit or of sealing is caught by the same simulation") {
  fmt::print("deadlock: naive schemes, seed {}\n", test::seed());
  CAPTURE(test::seed());
  const auto caught = [](const auto& verdicts) {
    return std::accumulate(verdicts.begin() + 1, verdicts.end(), std::uint64_t{0});
  };
  REQUIRE(caught(verdicts_of<CaptureWalk>("(none)")) == 0);
  REQUIRE(verdicts_of<WalkByActualSize>("credit for the actual size, when a chunk is encoded")[Verdict::stands_still] >
          20);
  REQUIRE(verdicts_of<GreedyWalk>(
            "a later chunk may take the credit that an earlier one waits for")[Verdict::stands_still] > 20);
  REQUIRE(verdicts_of<CaptureWalk>("a round's credit back when it arrives, not when it is copied",
                                   {.credit_before_copy = true})[Verdict::over_cap] > 20);
  REQUIRE(verdicts_of<CaptureWalk>("a chunk's credit back when it is offered, not when it has left",
                                   {.credit_before_leaving = true})[Verdict::over_cap] > 20);
  REQUIRE(verdicts_of<CaptureWalk>("a flush waits until all windows are gathered",
                                   {.sends_when_gathered = true})[Verdict::stands_still] > 20);
  REQUIRE(verdicts_of<CaptureWalk>("the next window's offers are looked at with the next event only",
                                   {.waits_for_an_event = true})[Verdict::stands_still] > 20);
  REQUIRE(verdicts_of<CaptureWalk>("a rank ignores the end of an update that it has not begun",
                                   {.forgets_early_reports = true})[Verdict::stands_still] > 2);
  // Credit that is lost a little at a time stands still only when enough of it is: the books tell at the end.
  REQUIRE(caught(verdicts_of<CaptureWalk>("what a delivery that was given up discards keeps its credit",
                                          {.keeps_discarded = true})) > 2);
  REQUIRE(caught(verdicts_of<CaptureWalk>("a rank does not answer a grant of a gather that was dropped",
                                          {.drops_in_silence = true})) > 2);
}
