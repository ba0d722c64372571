#include "world.hpp"

#include "random.hpp"

namespace deltawire::simulation {
namespace {

constexpr Nanoseconds stall = 1000;
constexpr Nanoseconds timeout = 20 * stall;
constexpr std::uint64_t updates_to_heal = 4;
/// What no schedule comes near to: events, and time that an update is under way or all is.
constexpr std::uint64_t most_events = 400000;
constexpr Nanoseconds longest_update = 4 * timeout;
constexpr Nanoseconds longest_job = 100 * timeout;

class World {
public:
  World(std::uint64_t schedule, Counts& counts, Planted planted, bool told)
    : network_(test::generator(9100000 + schedule)), counts_(counts), job_(Job::make(network_.random())),
      oracle_(make_oracle()), around_{network_, *oracle_, counts,
                                      planted,  told,     [this](Fault fault) { struck(fault); }} {
    for (std::uint32_t w = 0; w < job_.workers(); ++w)
      workers_.push_back(std::make_unique<Worker>(w, job_, around_));
    std::vector<std::span<const Bits>> memory;
    for (const auto& worker : workers_)
      memory.push_back(worker->memory());
    oracle_->watch(std::move(memory));
    faults_left_ = network_.below(9);
    sessions_left_ = 1 + network_.below(3);
    away_.resize(job_.workers());
    pace_ = 20 + network_.below(400);
  }

  void run() {
    start_trainer();
    while (!(calm_ && healed())) {
      if (!calm_ && trainer_ && trainer_->done()) {
        if (faults_left_ > 0 && network_.one_in(2))
          strike();
        else
          calm_down();
      }
      one_step();
      if (counts_.events - first_event_ > most_events || network_.now() > longest_job)
        throw Violation(Clause::end, fmt::format("the job does not end: {}", where()));
      if (trainer_ && trainer_->updating_since() != 0 && network_.now() - trainer_->updating_since() > longest_update)
        throw Violation(Clause::end, fmt::format("an update does not end: {}", where()));
    }
    oracle_->all_serve(trainer_->newest());
  }

private:
  std::unique_ptr<Oracle> make_oracle() {
    std::vector<std::vector<std::uint32_t>> reads;
    for (std::uint32_t w = 0; w < job_.workers(); ++w)
      reads.push_back(job_.numbers(job_.reads[w % job_.per_replica]));
    return std::make_unique<Oracle>(job_.elements(), job_.per_replica, std::move(reads));
  }

  // Time
  // -------------------------------------------------------------------------------------------------------------

  void one_step() {
    if (network_.step()) {
      ++counts_.events;
      if (!calm_) {
        if (faults_left_ > 0 && network_.one_in(is_brief() ? 1 + pace_ / 16 : pace_))
          strike();
        if (network_.one_in(100))
          pass(stall / 20);
      }
    } else {
      pass(stall / 10);
    }
    if (trainer_ && trainer_->over())
      end_trainer();
  }

  /// A phase of few events, in which little would strike by chance.
  bool is_brief() const {
    return trainer_ && trainer_->running() &&
           (trainer_->phase() == Phase::committing ||
            std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->unsettled(); }));
  }

  void pass(Nanoseconds time) {
    network_.pass(time);
    if (trainer_ && !trainer_->over())
      trainer_->tick();
  }

  void calm_down() {
    if (sessions_left_ > 1) { // a planned restart, between updates
      end_trainer();
      return;
    }
    calm_ = true;
    network_.calm_down();
    for (std::uint32_t w = 0; w < workers_.size(); ++w) {
      workers_[w]->calm_down();
      if (away_[w])
        connect_soon(w);
      away_[w] = false;
    }
  }

  /// All are back, and the updates after that have ended.
  bool healed() {
    if (!trainer_ || !trainer_->done() || network_.waits())
      return false;
    if (healing_ == trainer_->session())
      return true;
    for (const auto& worker : workers_)
      if (worker->link() == nullptr)
        return false;
    healing_ = trainer_->session();
    trainer_->calm_down(updates_to_heal);
    return false;
  }

  std::string where() const {
    if (!trainer_)
      return "no trainer";
    std::string text =
      fmt::format("session {}, phase {}, updating since {}, now {}", trainer_->session(),
                  phase_names[static_cast<std::size_t>(phase())], trainer_->updating_since(), network_.now());
    for (std::uint32_t w = 0; w < workers_.size(); ++w)
      text += fmt::format("; worker {} {}", w, workers_[w]->link() == nullptr ? "alone" : "connected");
    return text;
  }

  Phase phase() const {
    const Phase said = trainer_ ? trainer_->phase() : Phase::connecting;
    if (said == Phase::connecting)
      return said;
    if (std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) { return worker->unsettled(); }))
      return Phase::in_doubt;
    if (said != Phase::committing)
      return said;
    Phase furthest = Phase::committing;
    for (std::uint32_t first = 0; first < workers_.size(); first += job_.per_replica) {
      std::uint32_t applied = 0, released = 0;
      for (std::uint32_t w = first; w < first + job_.per_replica; ++w) {
        applied += workers_[w]->applied() ? 1 : 0;
        released += trainer_->serves_target(w, oracle_->served(w)) ? 1 : 0;
      }
      if (released > 0 && applied > 0)
        furthest = Phase::partly_released;
      else if (applied == job_.per_replica)
        furthest = std::max(furthest, Phase::all_applied);
      else if (applied > 0)
        furthest = std::max(furthest, Phase::partly_applied);
    }
    return furthest;
  }

  // Sessions
  // -------------------------------------------------------------------------------------------------------------

  void start_trainer() {
    ++counts_.sessions;
    TrainerSettings settings;
    settings.session = ++session_;
    settings.updates = calm_ ? 0 : 1 + network_.below(5);
    settings.may_abort = !calm_ && network_.one_in(2);
    settings.fold = !calm_ && network_.one_in(3);
    settings.rank_local = network_.one_in(2);
    settings.quorum = network_.one_in(3) ? static_cast<std::uint32_t>(1 + network_.below(job_.replicas)) : 0;
    settings.stall = stall;
    settings.timeout = timeout;
    around_.tell("session {} begins", session_);
    oracle_->session_begins(session_);
    std::vector<Worker*> workers;
    for (const auto& worker : workers_)
      workers.push_back(worker.get());
    trainer_ = std::make_unique<Trainer>(job_, around_, settings, std::move(workers));
    // A session begins with all workers: those that left come back for it.
    for (std::uint32_t w = 0; w < workers_.size(); ++w) {
      away_[w] = false;
      connect_soon(w);
    }
  }

  void end_trainer() {
    sessions_left_ -= sessions_left_ > 1 ? 1 : 0;
    for (std::uint32_t w = 0; w < workers_.size(); ++w)
      if (Link* link = workers_[w]->link())
        cut(w, *link, false);
    for (Link& link : links_) { // nobody listens any more
      link.cut = true;
      link.up.clear();
    }
    trainer_.reset();
    network_.at(network_.now() + static_cast<Nanoseconds>(network_.below(2 * stall)), [this] { start_trainer(); });
  }

  // Connections
  // -------------------------------------------------------------------------------------------------------------

  void connect_soon(std::uint32_t w) {
    network_.at(network_.now() + 1 + static_cast<Nanoseconds>(network_.below(stall)), [this, w] { connect(w); });
  }

  void connect(std::uint32_t w) {
    Worker& worker = *workers_[w];
    if (!trainer_ || away_[w] || worker.link() != nullptr)
      return; // the next trainer lets it connect
    Link& link = links_.emplace_back(network_);
    worker.connect(link);
    link.up.post([this, w, &link, trainer = trainer_.get(), incarnation = worker.incarnation()] {
      trainer->hello(w, link, incarnation, workers_[w]->declaration());
      if (link.cut) { // turned away
        workers_[w]->lost(link);
        connect_soon(w);
      }
    });
  }

  /// Part of what is under way still arrives; then either side notices.
  void cut(std::uint32_t w, Link& link, bool root_notices) {
    if (link.cut)
      return;
    link.cut = true;
    link.control.keep(network_.below(link.control.size() + 1));
    link.data.keep(network_.below(link.data.size() + 1));
    link.up.keep(root_notices ? network_.below(link.up.size() + 1) : 0);
    for (Queue* queue : {&link.control, &link.data, &link.up})
      queue->thaw();
    link.control.post([this, w, &link] {
      workers_[w]->lost(link);
      link.data.clear();
      connect_soon(w);
    });
    if (root_notices)
      link.up.post([this, w, &link, trainer = trainer_.get()] { trainer->lost(w, link); });
  }

  // Faults
  // -------------------------------------------------------------------------------------------------------------

  void struck(Fault fault) {
    ++counts_.struck[static_cast<std::size_t>(fault)][static_cast<std::size_t>(phase())];
    around_.tell("struck: {} ({})", fault_names[static_cast<std::size_t>(fault)],
                 phase_names[static_cast<std::size_t>(phase())]);
  }

  /// For a while, now and then for longer than anybody waits.
  Nanoseconds a_while() {
    return network_.now() + static_cast<Nanoseconds>(network_.below(network_.one_in(2) ? stall / 2 : 4 * stall));
  }

  void strike() {
    if (!trainer_)
      return;
    const auto w = static_cast<std::uint32_t>(network_.below(workers_.size()));
    Link* link = workers_[w]->link();
    --faults_left_;
    // Those of the program strike by themselves.
    const auto fault = static_cast<Fault>(network_.below(static_cast<std::uint64_t>(Fault::update_aborted)));
    switch (fault) {
    case Fault::connection_breaks:
      if (link == nullptr || link->cut)
        return;
      struck(fault);
      return cut(w, *link, true);
    case Fault::connection_delays: {
      if (link == nullptr)
        return;
      struck(fault);
      const std::array<Queue*, 3> queues{&link->control, &link->data, &link->up};
      return queues[network_.below(3)]->freeze(a_while());
    }
    case Fault::worker_crashes:
    case Fault::worker_leaves:
      if (away_[w])
        return;
      struck(fault);
      if (link != nullptr)
        cut(w, *link, true);
      workers_[w]->restart();
      away_[w] = fault == Fault::worker_leaves;
      return connect_soon(w);
    case Fault::worker_lags: {
      if (link == nullptr)
        return;
      struck(fault);
      const Nanoseconds until = a_while();
      link->control.freeze(until);
      link->data.freeze(until);
      if (until > network_.now() + stall && network_.one_in(2)) {
        network_.at(network_.now() + stall, [this, w, session = session_] {
          if (trainer_ && session == session_)
            trainer_->silent(w);
        });
        network_.at(until + 1, [this, w, session = session_] {
          if (trainer_ && session == session_)
            trainer_->heard(w);
        });
      }
      return;
    }
    case Fault::engine_fails:
      return workers_[w]->fail_next_pause();
    case Fault::staging_fails:
      return workers_[w]->fail_next_flush();
    case Fault::memory_changes:
      return workers_[w]->change_memory();
    case Fault::frame_repeats:
      return trainer_->repeat_a_frame();
    case Fault::rank_lags:
      struck(fault);
      return trainer_->freeze_rank(a_while());
    case Fault::trainer_crashes:
      struck(fault);
      return end_trainer();
    case Fault::trainer_fails:
      struck(fault);
      return trainer_->fail();
    case Fault::update_aborted:
    case Fault::update_folded:
    case Fault::count:
      return;
    }
  }

  Network network_;
  Counts& counts_;
  Job job_;
  std::unique_ptr<Oracle> oracle_;
  Surroundings around_;
  std::deque<Link> links_; ///< of all sessions
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<bool> away_; ///< by worker
  std::uint64_t session_ = 0, faults_left_ = 0, sessions_left_ = 1, pace_ = 100, first_event_ = counts_.events;
  std::uint64_t healing_ = 0; ///< the session that the last updates are of
  bool calm_ = false;
};

} // namespace

Verdict run_schedule(std::uint64_t schedule, Counts& counts, Planted planted, bool told) {
  ++counts.schedules;
  try {
    World(schedule, counts, planted, told).run();
  } catch (const Violation& violation) {
    return {violation.clause, violation.what()};
  }
  return {};
}

} // namespace deltawire::simulation
