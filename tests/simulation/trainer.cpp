#include "trainer.hpp"

#include "delta/patch.hpp"

#include <cstring>

namespace deltawire::simulation {

using Kind = wire::DeliveryKind;

Trainer::Trainer(const Job& job, Surroundings surroundings, const TrainerSettings& settings,
                 std::vector<Worker*> workers)
  : job_(job), around_(surroundings), network_(surroundings.network), settings_(settings), workers_(std::move(workers)),
    agreement_(1, 1, {}, 0, 0), links_(job.workers()), started_(network_.now()), flush_bucket_(network_),
    sender_(network_) {
  const std::vector<std::vector<Piece>> cut = job.cut(network_.random());
  const std::uint64_t least = delta::least_piece_limit(2);
  const auto cap = [&](std::uint64_t smallest) {
    return network_.one_in(3) ? smallest : smallest + network_.below(network_.one_in(2) ? 60 : 2000);
  };
  inflight_ = cap(std::max<std::uint64_t>(least, delta::worst_case_bytes(1, 2, least)));
  max_round_ = cap(least);
  cap_ = cap(least);
  const auto limit = sync::piece_limit(inflight_, max_round_, cap_ + wire::header_bytes, 2);
  need(limit);
  piece_limit_ = *limit;
  chunk_bytes_ = 2 + network_.below(40);
  log_cap_ = network_.one_in(3) ? network_.below(400) : UINT64_MAX;
  const std::uint64_t window_bytes = network_.one_in(2) ? 2 + network_.below(20) : UINT64_MAX;
  agreement_ = sync::AgreementRoot(static_cast<std::uint32_t>(cut.size()), job.workers(), {}, window_bytes, 1);
  for (std::uint32_t r = 0; r < cut.size(); ++r) {
    ranks_.push_back(std::make_unique<Rank>(network_));
    Rank& rank = *ranks_.back();
    const layout::Declaration declaration = job.declare(cut[r]);
    rank.numbers = job.numbers(cut[r]);
    rank.memory.resize(rank.numbers.size());
    for (Bits& bits : rank.memory)
      bits = static_cast<Bits>(network_.below(1 << 16));
    std::size_t offset = 0;
    for (const layout::ParameterSpec& parameter : declaration.parameters) {
      rank.names.push_back(parameter.name);
      rank.offsets.push_back(offset);
      offset += static_cast<std::size_t>(parameter.local_shape.front());
    }
    rank.ever_captured.resize(rank.names.size());
    rank.sent.resize(rank.names.size());
    if (r == 0)
      need(agreement_.declare(wire::Role::rank, 0, declaration));
    else
      rank.control_up.post([this, r, declaration] { rank_declares(r, declaration); });
  }
}

// The agreement
// ---------------------------------------------------------------------------------------------------------------

void Trainer::rank_declares(std::uint32_t r, const layout::Declaration& declaration) {
  const auto count = static_cast<std::uint32_t>(ranks_.size());
  for (const wire::Channel channel : {wire::Channel::control, wire::Channel::data})
    need(agreement_.hello({wire::Role::rank, channel, r, count, r + 1, 1}));
  need(agreement_.declare(wire::Role::rank, r, declaration));
  agree();
}

void Trainer::hello(std::uint32_t worker, Link& link, std::uint64_t incarnation,
                    const layout::Declaration& declaration) {
  link.to_root = [this, worker, &link](const Answer& answer) { on_answer(worker, link, answer); };
  if (running_) {
    need(agreement_.rejoin({wire::Role::worker, wire::Channel::control, worker, job_.workers(), incarnation, 1}));
    return send_compiled(worker, link);
  }
  for (const wire::Channel channel : {wire::Channel::control, wire::Channel::data}) {
    const auto welcome = agreement_.hello({wire::Role::worker, channel, worker, job_.workers(), incarnation, 1});
    need(welcome);
    if (*welcome == sync::AgreementRoot::Welcome::in_place && links_[worker] != nullptr)
      links_[worker]->cut = true; // its predecessor seems to be there still
  }
  links_[worker] = &link;
  const bool again = agreement_.planned();
  need(agreement_.declare(wire::Role::worker, worker, declaration));
  if (again)
    send_compiled(worker, link);
  agree();
}

void Trainer::send_compiled(std::uint32_t worker, Link& link) {
  if (!link.cut)
    link.control.post([to = workers_[worker], &link, compiled = compiled_[worker], session = settings_.session] {
      to->agree(link, session, compiled);
    });
}

void Trainer::agree() {
  if (running_ || over_)
    return;
  if (const auto catalogue = agreement_.catalogue())
    need(*catalogue);
  if (auto plan = agreement_.plan()) {
    need(*plan);
    compile(**plan);
    need(agreement_.agreed(wire::Role::rank, 0));
    for (std::uint32_t r = 1; r < ranks_.size(); ++r)
      ranks_[r]->control_down.post([this, r] {
        ranks_[r]->control_up.post([this, r] {
          need(agreement_.agreed(wire::Role::rank, r));
          agree();
        });
      });
    for (std::uint32_t w = 0; w < workers_.size(); ++w)
      send_compiled(w, *links_[w]);
  }
  if (!compiled_all_ || !agreement_.all_agreed())
    return;
  running_ = true;
  sender_.post([this] { carry_out(delivery_->met(agreement_.standing())); });
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    captured(r, 0);
}

void Trainer::compile(layout::Plan& plan) {
  compiled_all_ = true;
  slots_ = plan.slots;
  windows_ = plan.windows;
  for (std::vector<layout::Block>& own : plan.workers)
    compiled_.push_back(std::make_shared<Compiled>(Compiled{plan.blocks, own}));
  routes_ = std::make_shared<const sync::RouteTable>(
    settings_.rank_local ? sync::rank_local(plan.blocks, plan.cells.size(), plan.workers)
                         : sync::broadcast(plan.blocks, plan.cells.size(), plan.workers.size()));
  const auto differs = static_cast<std::uint32_t>(1 + network_.below(2));
  for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = *ranks_[r];
    rank.blocks = std::move(plan.ranks[r]);
    sync::Chunks cut = sync::cut_chunks(rank.blocks, chunk_bytes_, inflight_, piece_limit_);
    rank.chunks = std::move(cut.chunks);
    rank.snapshot_offsets = std::move(cut.snapshot_offsets);
    rank.snapshot.resize(cut.snapshot_bytes);
    rank.logs.resize(rank.chunks.size());
    rank.first_captured.resize(rank.chunks.size());
    rank.encoder = std::make_unique<delta::PieceEncoder>(piece_limit_);
    std::vector<std::uint32_t> windows;
    std::vector<std::uint64_t> worst;
    for (const sync::Chunk& chunk : rank.chunks) {
      windows.push_back(chunk.window);
      worst.push_back(chunk.worst_case);
    }
    rank.walk.emplace(std::move(worst), inflight_, 2 * differs);
    rank.chunk_parts.emplace(rank.chunks, rank.blocks);
    rank.gather.emplace(std::move(windows), windows_);
    for (std::uint32_t d = 0; d < differs; ++d)
      rank.differs.emplace_back(network_);
  }
  gather_root_.emplace(static_cast<std::uint32_t>(ranks_.size()), windows_, max_round_);
  assembly_.emplace(cap_, routes_);
  delivery_.emplace(sync::DeliverySettings{.workers = job_.workers(),
                                           .workers_per_replica = job_.per_replica,
                                           .quorum = settings_.quorum,
                                           .stall = settings_.stall,
                                           .timeout = settings_.timeout,
                                           .engine = 2 * settings_.stall,
                                           .session = settings_.session});
}

void Trainer::on_answer(std::uint32_t worker, Link& link, const Answer& answer) {
  around_.tell("root hears worker {}: {}", worker, describe(answer));
  if (const auto* standing = std::get_if<wire::Agreed>(&answer))
    return agreed(worker, link, *standing);
  if (&link != links_[worker] || !delivery_)
    return; // of a process that was replaced
  const Nanoseconds now = network_.now();
  std::visit(
    [&]<class Message>(Message message) {
      if constexpr (std::is_same_v<Message, wire::Undone>)
        if (planted(Planted::delta_to_anybody) && message.version != 0)
          message.version = updating_version_;
      if constexpr (!std::is_same_v<Message, wire::Agreed>)
        carry_out(delivery_->on(worker, message, now));
    },
    answer);
  if (planted(Planted::releases_alone) && std::holds_alternative<wire::Applied>(answer))
    send(worker, wire::Release{std::get<wire::Applied>(answer).delivery});
  if (planted(Planted::commits_alone) && std::holds_alternative<wire::Staged>(answer))
    send(worker, wire::Commit{std::get<wire::Staged>(answer).delivery});
}

void Trainer::agreed(std::uint32_t worker, Link& link, const wire::Agreed& standing) {
  if (!running_) {
    if (&link != links_[worker])
      return; // of a process that was replaced
    need(agreement_.agreed(wire::Role::worker, worker, standing));
    return agree();
  }
  // A predecessor whose connections are still open is not there any more.
  carry_out(delivery_->lost(worker, Failure{Code::peer_failed, "another process has taken its place"}, network_.now()));
  if (links_[worker] != nullptr)
    links_[worker]->cut = true;
  links_[worker] = &link;
  ++around_.counts.joined;
  carry_out(delivery_->joined(worker, standing));
}

void Trainer::lost(std::uint32_t worker, Link& link) {
  if (links_[worker] != &link)
    return;
  around_.tell("root loses worker {}", worker);
  if (running_)
    return carry_out(
      delivery_->lost(worker, Failure{Code::peer_failed, fmt::format("worker {} is gone", worker)}, network_.now()));
  links_[worker] = nullptr;
  agreement_.left(worker);
}

// A rank's program
// ---------------------------------------------------------------------------------------------------------------

std::pair<std::size_t, std::size_t> Trainer::range_of(const Rank& rank, std::uint32_t parameter) const {
  return {rank.offsets[parameter],
          parameter + 1 < rank.offsets.size() ? rank.offsets[parameter + 1] : rank.memory.size()};
}

void Trainer::change(Rank& rank, std::uint32_t parameter) {
  const auto [begin, end] = range_of(rank, parameter);
  const std::uint64_t rarely = 1 + network_.below(6);
  for (std::size_t i = begin; i < end; ++i)
    if (network_.one_in(rarely)) // a step in ulp order, or anything
      rank.memory[i] = static_cast<Bits>(network_.one_in(2) ? rank.memory[i] + 1 : network_.below(1 << 16));
}

/// The program may change its weights again: nothing will be read for the version, or has been.
void Trainer::captured(std::uint32_t r, std::uint64_t version) {
  if (version != ranks_[r]->published)
    return; // said before
  ranks_[r]->waits = true;
  ranks_[r]->user.post([this, r] { publish_next(r); });
}

void Trainer::publish_next(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  if (!rank.waits || rank.published >= settings_.updates)
    return;
  rank.waits = false;
  const std::uint64_t version = ++rank.published;
  ++around_.counts.published;
  for (std::uint32_t p = 0; p < rank.names.size(); ++p)
    change(rank, p);
  if (network_.one_in(3)) {
    ++around_.counts.in_parts;
    rank.open.emplace(version, sync::PartsOf{r, rank.names, slots_, rank.blocks}, rank.ever_captured);
    rank.sent.assign(rank.names.size(), false);
    rank.patched.clear();
    rank.supervisor.post([this, r, version] { publish(r, {version, true}); });
    rank.user.post([this, r] { part_step(r); });
    return;
  }
  for (std::size_t i = 0; i < rank.memory.size(); ++i)
    around_.oracle.published(rank.numbers[i], rank.memory[i]);
  rank.ever_captured.assign(rank.names.size(), true);
  newest_ = std::max(newest_, left_.contains(version) ? 0 : version);
  rank.supervisor.post([this, r, version] { publish(r, {version, false}); });
  if (planted(Planted::captured_too_early))
    rank.user.post([this, r] {
      for (std::uint32_t p = 0; p < ranks_[r]->names.size(); ++p)
        change(*ranks_[r], p);
    });
}

void Trainer::part_step(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  switch (network_.below(settings_.may_abort ? 8 : 7)) {
  case 0:
  case 1:
    send_parts(r, false);
    break;
  case 2:
    patch_some(r);
    break;
  case 3:
    for (std::uint32_t p = 0; p < rank.names.size(); ++p)
      if (!rank.sent[p])
        change(rank, p);
    break;
  case 7:
    return abort_parts(r);
  default:
    return finish_parts(r);
  }
  rank.user.post([this, r] { part_step(r); });
}

/// `all_first`: those that were never captured, all of them.
void Trainer::send_parts(std::uint32_t r, bool all_first) {
  Rank& rank = *ranks_[r];
  std::vector<std::string> names;
  for (std::uint32_t p = 0; p < rank.names.size(); ++p) {
    const bool is_patched = std::any_of(rank.patched.begin(), rank.patched.end(), [&](const auto& patch) {
      const auto [begin, end] = range_of(rank, p);
      return std::find(rank.numbers.begin() + static_cast<std::ptrdiff_t>(begin),
                       rank.numbers.begin() + static_cast<std::ptrdiff_t>(end),
                       patch.first) != rank.numbers.begin() + static_cast<std::ptrdiff_t>(end);
    });
    if (rank.sent[p] || is_patched || (all_first ? rank.ever_captured[p] : network_.one_in(2)))
      continue;
    names.push_back(rank.names[p]);
    rank.sent[p] = true;
  }
  if (names.empty())
    return;
  const auto sent = rank.open->send(names);
  need(sent);
  rank.supervisor.post([this, r, part = Part{rank.published, Part::Kind::sent, *sent, nullptr}] {
    ranks_[r]->snapshotter.post([this, r, part] { part_said(r, part); });
  });
}

void Trainer::patch_some(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  if (rank.names.empty())
    return;
  const auto p = static_cast<std::uint32_t>(network_.below(rank.names.size()));
  if (rank.sent[p] || !rank.ever_captured[p])
    return;
  const auto [begin, end] = range_of(rank, p);
  const std::uint32_t slot = static_cast<std::uint32_t>(std::stoul(rank.names[p].substr(1)));
  const auto first = static_cast<std::uint64_t>(std::stoul(rank.names[p].substr(rank.names[p].find('.') + 1)));
  std::vector<std::uint64_t> indices;
  std::vector<Bits> values;
  for (std::size_t i = begin; i < end; ++i) {
    const auto known = std::find_if(rank.patched.begin(), rank.patched.end(),
                                    [&](const auto& patch) { return patch.first == rank.numbers[i]; });
    if (known != rank.patched.end() || !network_.one_in(3))
      continue;
    indices.push_back(first + (i - begin));
    values.push_back(static_cast<Bits>(network_.below(1 << 16)));
    rank.patched.emplace_back(rank.numbers[i], values.back());
  }
  if (indices.empty())
    return;
  ++around_.counts.patched;
  const std::string name = fmt::format("p{}", slot);
  need(rank.open->patch({name, indices, DType::bf16, std::as_bytes(std::span(values))},
                        [](std::uint32_t, std::uint64_t) { return std::string("another rank"); }));
}

void Trainer::finish_parts(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  send_parts(r, true);
  const auto parts = rank.open->finish();
  need(parts);
  for (std::uint32_t p = 0; p < rank.names.size(); ++p)
    if (rank.sent[p])
      for (auto [i, end] = range_of(rank, p); i < end; ++i)
        around_.oracle.published(rank.numbers[i], rank.memory[i]);
  for (const auto& [element, bits] : rank.patched)
    around_.oracle.published(element, bits);
  rank.ever_captured = rank.open->captured();
  rank.open.reset();
  newest_ = std::max(newest_, left_.contains(rank.published) ? 0 : rank.published);
  rank.supervisor.post(
    [this, r,
     part = Part{rank.published, Part::Kind::finished, {}, std::make_shared<const sync::CaptureParts>(*parts)}] {
      ranks_[r]->snapshotter.post([this, r, part] { part_said(r, part); });
    });
}

void Trainer::abort_parts(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  around_.struck(Fault::update_aborted);
  for (std::uint32_t p = 0; p < rank.names.size(); ++p)
    if (rank.sent[p])
      for (auto [i, end] = range_of(rank, p); i < end; ++i)
        around_.oracle.left(rank.numbers[i]);
  around_.oracle.aborted(rank.published);
  left_.insert(rank.published);
  while (newest_ > 0 && left_.contains(newest_))
    --newest_;
  rank.open.reset();
  rank.supervisor.post([this, r, part = Part{rank.published, Part::Kind::aborted, {}, nullptr}] {
    ranks_[r]->snapshotter.post([this, r, part] { part_said(r, part); });
  });
}

void Trainer::calm_down(std::uint64_t more) {
  settings_.may_abort = settings_.fold = false;
  settings_.updates += more;
  if (running_)
    for (std::uint32_t r = 0; r < ranks_.size(); ++r)
      ranks_[r]->user.post([this, r] { publish_next(r); });
}

void Trainer::freeze_rank(Nanoseconds until) {
  Rank& rank = *ranks_[network_.below(ranks_.size())];
  for (Queue* queue : {&rank.user, &rank.supervisor, &rank.snapshotter, &rank.gather_queue, &rank.leaving,
                       &rank.control_up, &rank.data_up, &rank.control_down})
    queue->freeze(until);
  for (Queue& queue : rank.differs)
    queue.freeze(until);
}

bool Trainer::done() const {
  return running_ && !updating_ && std::all_of(ranks_.begin(), ranks_.end(), [this](const auto& rank) {
           return rank->deliveries_over == settings_.updates && rank->walk->idle() && rank->announced;
         });
}

// Supervisors
// ---------------------------------------------------------------------------------------------------------------

void Trainer::publish(std::uint32_t r, const Request& request) {
  Rank& rank = *ranks_[r];
  rank.tickets.insert(request.version);
  rank.queued.push_back(request);
  advance_supervisor(r);
  if (rank.early.erase(request.version) > 0)
    delivered(r, request.version);
}

void Trainer::advance_supervisor(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  while (!rank.queued.empty() && rank.captures_started < rank.deliveries_over + 2) {
    const Request request = rank.queued.front();
    rank.queued.pop_front();
    ++rank.captures_started;
    rank.snapshotter.post([this, r, request] { capture_requested(r, request); });
  }
  if (r == 0 && delivering_ == 0 && rank.captures_started > rank.deliveries_over) {
    delivering_ = rank.deliveries_over + 1;
    std::optional<Plan> catch_up;
    if (rank.next.version == delivering_ && rank.next.catch_up != 0)
      catch_up = Plan{rank.next.kind, rank.next.base, delivering_};
    sender_.post([this, version = delivering_, catch_up, abandoned = rank.abandoned == delivering_,
                  aborted = aborted_.contains(delivering_)] { begin_update(version, catch_up, abandoned, aborted); });
  }
  const std::uint64_t busy = rank.deliveries_over + 1;
  if (settings_.fold && !rank.queued.empty() && busy != 1 && !(rank.next.version == busy && rank.next.catch_up != 0))
    abandon(r, busy);
}

void Trainer::abandon(std::uint32_t r, std::uint64_t version) {
  Rank& rank = *ranks_[r];
  if (version <= rank.deliveries_over)
    return;
  if (r != 0) {
    if (rank.abandoned >= version)
      return;
    rank.abandoned = version;
    rank.control_up.post([this, version] { ranks_[0]->supervisor.post([this, version] { abandon(0, version); }); });
    return;
  }
  around_.struck(Fault::update_folded);
  if (delivering_ == version)
    sender_.post([this, version] {
      if (updating_ && version == updating_version_ && !carries_catch_up_)
        carry_out(delivery_->abandon(Failure{Code::superseded, "folded"}, network_.now()));
    });
  else
    rank.abandoned = std::max(rank.abandoned, version);
}

void Trainer::plan_next(std::uint32_t r, const wire::NextUpdate& next) {
  ranks_[r]->next = next;
  ranks_[r]->snapshotter.post([this, r, next] {
    ranks_[r]->planned = next;
    if (catches_up(*ranks_[r]))
      begin_catch_up_capture(r);
    advance_snapshotter(r);
  });
}

void Trainer::delivered(std::uint32_t r, std::uint64_t version) {
  Rank& rank = *ranks_[r];
  if (rank.tickets.erase(version) == 0) {
    if (version > rank.deliveries_over)
      rank.early.insert(version);
    return;
  }
  rank.deliveries_over = version;
  if (r == 0) {
    aborted_.erase(aborted_.begin(), aborted_.upper_bound(version));
    delivering_ = 0;
    for (std::uint32_t other = 1; other < ranks_.size(); ++other)
      ranks_[other]->control_down.post([this, other, version] {
        ranks_[other]->supervisor.post([this, other, version] { delivered(other, version); });
      });
    if (fatal_) {
      over_ = true;
      return;
    }
  }
  advance_supervisor(r);
}

void Trainer::update_over(const wire::NextUpdate& next) {
  for (std::uint32_t r = 1; r < ranks_.size(); ++r)
    ranks_[r]->control_down.post(
      [this, r, next] { ranks_[r]->supervisor.post([this, r, next] { plan_next(r, next); }); });
  plan_next(0, next);
  delivered(0, next.version - 1);
}

/// Root: what a rank has captured of the version comes with the next one.
void Trainer::capture_aborted(std::uint64_t version) {
  if (version <= ranks_[0]->deliveries_over || !aborted_.insert(version).second || delivering_ != version)
    return;
  sender_.post([this, version] {
    if (!updating_ || version != updating_version_)
      return;
    left_half_done_ = true;
    carry_out(delivery_->abandon(Failure{Code::superseded, "left half done"}, network_.now()));
  });
}

// Snapshotters and Differs
// ---------------------------------------------------------------------------------------------------------------

bool Trainer::catches_up(const Rank& rank) const {
  return rank.planned.version == rank.report.version && rank.planned.catch_up != 0;
}

void Trainer::begin_catch_up_capture(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  const std::uint64_t gather = sync::catch_up_gather_of(rank.report.version);
  if (rank.dropped.contains(gather))
    return;
  rank.walk->add_catch_up();
  rank.gather_queue.post([this, r, gather] {
    if (ranks_[r]->chunks.empty())
      offer(r, ranks_[r]->gather->nothing(gather));
  });
}

void Trainer::take_part(std::uint32_t r, const Part& part) {
  Rank& rank = *ranks_[r];
  if (!rank.walk->open())
    return;
  switch (part.kind) {
  case Part::Kind::sent:
    for (const std::uint32_t chunk : rank.chunk_parts->sent(part.parameters))
      rank.walk->ready(chunk);
    return;
  case Part::Kind::finished:
    rank.parts = part.captured;
    return rank.walk->finish(rank.chunk_parts->patched(*part.captured));
  case Part::Kind::aborted:
    rank.report.aborted = 1;
    rank.parts = std::make_shared<sync::CaptureParts>();
    rank.walk->drop_changes();
    rank.walk->drop_catch_up();
    rank.dropped.insert(sync::gather_of(part.version));
    rank.dropped.insert(sync::catch_up_gather_of(part.version));
    rank.walk->finish({});
    rank.gather_queue.post([this, r, version = part.version] { drop_own(r, sync::gather_of(version)); });
    if (planted(Planted::forgets_aborted_changes))
      for (auto& logs : rank.logs)
        if (!logs.empty() && logs.back().version == part.version)
          for (delta::PositionLog& log : logs.back().ranges)
            log = {};
    return;
  }
}

void Trainer::part_said(std::uint32_t r, const Part& part) {
  Rank& rank = *ranks_[r];
  if (part.version > rank.report.version) {
    rank.early_parts.push_back(part);
    if (part.kind == Part::Kind::aborted)
      rank.supervisor.post([this, r, version = part.version] { captured(r, version); });
    return;
  }
  if (part.version == rank.report.version)
    take_part(r, part);
  advance_snapshotter(r);
}

void Trainer::begin_capture(std::uint32_t r, const Request& request) {
  Rank& rank = *ranks_[r];
  rank.report = {};
  rank.report.version = rank.report.step = request.version;
  rank.report.kind = request.version == 1 ? Kind::seed : Kind::delta;
  const bool first = std::any_of(rank.first_captured.begin(), rank.first_captured.end(),
                                 [](std::uint64_t version) { return version == 0; });
  if (request.in_parts)
    rank.walk->start_in_parts(first);
  else
    rank.walk->start(first);
  rank.chunk_parts->start();
  rank.parts.reset();
  rank.announced = false;
  std::erase_if(rank.log_bytes, [&](const auto& entry) { return entry.first <= rank.planned.keep_logs_after; });
  std::erase_if(rank.dropped, [&](std::uint64_t gather) { return gather < sync::gather_of(request.version); });
  if (rank.dropped.contains(sync::gather_of(request.version)))
    rank.walk->drop_changes();
  if (catches_up(rank))
    begin_catch_up_capture(r);
  for (const Part& part : rank.early_parts)
    if (part.version == request.version)
      take_part(r, part);
  std::erase_if(rank.early_parts, [&](const Part& part) { return part.version <= request.version; });
}

void Trainer::capture_requested(std::uint32_t r, const Request& request) {
  Rank& rank = *ranks_[r];
  rank.waiting.push_back(request);
  if (settings_.fold && rank.announced && !rank.walk->idle() && rank.report.kind != Kind::seed && !catches_up(rank)) {
    rank.walk->drop_changes();
    rank.gather_queue.post([this, r, gather = sync::gather_of(rank.report.version)] { drop_own(r, gather); });
    rank.supervisor.post([this, r, version = rank.report.version] { abandon(r, version); });
  }
  advance_snapshotter(r);
}

void Trainer::hand_out(std::uint32_t r, const sync::CaptureWalk::HandOut& hand_out) {
  Rank& rank = *ranks_[r];
  Task task;
  task.version = rank.report.version;
  task.hand_out = hand_out;
  std::uint64_t& first = rank.first_captured[hand_out.chunk];
  if (hand_out.work == Work::catch_up) {
    task.all = rank.planned.kind == Kind::seed;
    ++around_.counts.caught_up;
  } else {
    task.all = first == 0 || first == task.version;
    task.parts = rank.parts;
    if (first == 0 && rank.report.aborted == 0)
      first = task.version;
  }
  around_.counts.deferred += hand_out.work == Work::encode ? 1 : 0;
  task.keep_logs_after = rank.keep_logs_after;
  task.base = rank.planned.base + (planted(Planted::folds_too_little) ? 1 : 0);
  rank.differs[rank.next_differ].post([this, r, task] { work_on(r, task); });
  rank.next_differ = (rank.next_differ + 1) % rank.differs.size();
}

void Trainer::advance_snapshotter(std::uint32_t r) {
  Rank& rank = *ranks_[r];
  for (;;) {
    if (rank.announced && rank.walk->idle() && !rank.waiting.empty()) {
      const Request request = rank.waiting.front();
      rank.waiting.pop_front();
      rank.keep_logs_after = rank.planned.keep_logs_after;
      std::uint64_t bytes = 0;
      for (auto entry = rank.log_bytes.rbegin(); entry != rank.log_bytes.rend() && bytes <= log_cap_; ++entry) {
        bytes += entry->second;
        if (bytes > log_cap_)
          rank.keep_logs_after = std::max(entry->first, rank.planned.keep_logs_after);
      }
      begin_capture(r, request);
    }
    while (const auto next = rank.walk->next())
      hand_out(r, *next);
    if (rank.announced || !rank.walk->captured())
      return;
    rank.announced = true;
    around_.oracle.capture_over(r, rank.report.version, rank.numbers);
    wire::CaptureReport report = rank.report;
    if (planted(Planted::hides_abort))
      report.aborted = 0;
    rank.gather_queue.post([this, r, report] { report_capture(r, report); });
    rank.supervisor.post([this, r, version = rank.report.version] { captured(r, version); });
  }
}

std::uint64_t Trainer::capture_range(Rank& rank, const Task& task, std::size_t index) {
  const sync::ChunkRange& range = rank.chunks[task.hand_out.chunk].ranges[index];
  const layout::Block& block = rank.blocks[range.block];
  const std::size_t base = rank.offsets[block.parameter];
  const delta::OwnedBlock owned{&block, reinterpret_cast<const std::byte*>(rank.memory.data() + base),
                                rank.snapshot.data() + rank.snapshot_offsets[range.block]};
  const auto place_of = [&](std::uint64_t element) {
    return base + static_cast<std::size_t>(block.local_offset +
                                           static_cast<layout::Index>(element) * block.local_strides.front());
  };
  const bool whole = !task.parts || task.parts->has(block.parameter);
  if (whole)
    for (std::uint64_t e = range.first; e < range.first + range.count; ++e)
      around_.oracle.captured(task.version, rank.numbers[place_of(e)], rank.memory[place_of(e)]);
  if (task.all)
    return whole ? delta::capture_all(owned, range.first, range.count).changed : 0;
  delta::PositionLog lost;
  delta::PositionLog& log =
    planted(Planted::captures_without_log) ? lost : rank.logs[task.hand_out.chunk].back().ranges[index];
  if (whole)
    return delta::capture_changes(owned, range.first, range.count,
                                  task.hand_out.work == Work::capture_and_encode ? rank.encoder.get() : nullptr, log)
      .changed;
  const auto patch = task.parts->patches.find(range.block);
  if (patch == task.parts->patches.end())
    return 0;
  for (std::size_t i = 0; i < patch->second.elements.size(); ++i) {
    const std::uint64_t element = patch->second.elements[i];
    if (element < range.first || element >= range.first + range.count)
      continue;
    Bits bits = 0;
    std::memcpy(&bits, patch->second.values.data() + 2 * i, 2);
    around_.oracle.captured(task.version, rank.numbers[place_of(element)], bits);
  }
  return delta::capture_patch(owned, range.first, range.count, patch->second, log).changed;
}

void Trainer::encode_range(Rank& rank, const Task& task, std::size_t index) {
  const sync::ChunkRange& range = rank.chunks[task.hand_out.chunk].ranges[index];
  const layout::Block& block = rank.blocks[range.block];
  const std::byte* snapshot = rank.snapshot.data() + rank.snapshot_offsets[range.block];
  const std::vector<CaptureLog>& logs = rank.logs[task.hand_out.chunk];
  const bool catch_up = task.hand_out.work == Work::catch_up;
  const bool reach_back = !logs.empty() && logs.front().version <= task.base + 1;
  if (task.all || (catch_up && !reach_back))
    return delta::encode_all(block, snapshot, range.first, range.count, *rank.encoder);
  if (!catch_up)
    return delta::encode_logged(block, snapshot, range.first, range.count, logs.back().ranges[index], *rank.encoder);
  if (planted(Planted::catch_up_skips_a_chunk) && task.hand_out.chunk == 0)
    return;
  delta::PositionLog united;
  for (const CaptureLog& log : logs)
    if (log.version > task.base)
      united.merge(log.ranges[index]);
  delta::encode_logged(block, snapshot, range.first, range.count, united, *rank.encoder);
}

void Trainer::work_on(std::uint32_t r, const Task& task) {
  Rank& rank = *ranks_[r];
  const Work work = task.hand_out.work;
  const std::size_t ranges = rank.chunks[task.hand_out.chunk].ranges.size();
  const bool captures = work == Work::capture || work == Work::capture_and_encode;
  std::vector<CaptureLog>& logs = rank.logs[task.hand_out.chunk];
  if (!task.all && captures) {
    std::erase_if(logs, [&](const CaptureLog& log) { return log.version <= task.keep_logs_after; });
    logs.push_back({task.version, std::vector<delta::PositionLog>(ranges)});
  }
  std::uint64_t changed = 0, log_bytes = 0;
  for (std::size_t i = 0; i < ranges; ++i) {
    if (captures)
      changed += capture_range(rank, task, i);
    else if (work != Work::skip)
      encode_range(rank, task, i);
    if (captures && !task.all)
      log_bytes += sizeof(delta::PositionLog) + logs.back().ranges[i].bytes();
  }
  delta::EncodedPieces pieces = rank.encoder->take();
  const std::uint64_t bytes = pieces.bytes.size();
  if (work != Work::capture)
    rank.gather_queue.post([this, r,
                            chunk = sync::EncodedChunk{work == Work::catch_up ? sync::catch_up_gather_of(task.version)
                                                                              : sync::gather_of(task.version),
                                                       task.hand_out.chunk, std::move(pieces.bytes),
                                                       std::move(pieces.ends)}]() { chunk_encoded(r, chunk); });
  rank.snapshotter.post([this, r, task, captures, changed, bytes, log_bytes] {
    Rank& its = *ranks_[r];
    its.walk->done(task.hand_out, changed, bytes);
    if (captures)
      its.log_bytes[its.report.version] += log_bytes;
    advance_snapshotter(r);
  });
}

// Gather queues
// ---------------------------------------------------------------------------------------------------------------

/// What another rank's gather queue says to the root's.
template <class Event>
void Trainer::tell_root(std::uint32_t r, Event event) {
  if (r == 0)
    return event();
  ranks_[r]->control_up.post([this, event] { ranks_[0]->gather_queue.post(event); });
}

void Trainer::offer(std::uint32_t r, const wire::Offer& offer) {
  tell_root(r, [this, r, offer] {
    need(gather_root_->on_offer(r, offer));
    advance_gather();
  });
}

void Trainer::report_capture(std::uint32_t r, const wire::CaptureReport& report) {
  if (ranks_[r]->chunks.empty())
    offer(r, ranks_[r]->gather->nothing(sync::gather_of(report.version)));
  tell_root(r, [this, r, report] {
    need(gather_root_->on_report(r, report));
    if (report.aborted != 0)
      ranks_[0]->supervisor.post([this, version = report.version] { capture_aborted(version); });
    advance_gather();
  });
}

void Trainer::chunk_encoded(std::uint32_t r, sync::EncodedChunk chunk) {
  Rank& rank = *ranks_[r];
  if (rank.gather->dropped(chunk.gather))
    return give_back(r, chunk.bytes.size());
  if (const auto ready = rank.gather->add(std::move(chunk)))
    offer(r, *ready);
}

void Trainer::give_back(std::uint32_t r, std::uint64_t bytes) {
  if (bytes > 0)
    ranks_[r]->snapshotter.post([this, r, bytes] {
      ranks_[r]->walk->returned(bytes);
      advance_snapshotter(r);
    });
}

void Trainer::drop_own(std::uint32_t r, std::uint64_t gather) {
  give_back(r, ranks_[r]->gather->drop(gather));
}

void Trainer::dropped(std::uint32_t r, std::uint64_t gather) {
  drop_own(r, gather);
  ranks_[r]->snapshotter.post([this, r, gather] {
    Rank& rank = *ranks_[r];
    rank.dropped.insert(gather);
    if (gather == sync::gather_of(rank.report.version))
      rank.walk->drop_changes();
    if (gather == sync::catch_up_gather_of(rank.report.version))
      rank.walk->drop_catch_up();
    advance_snapshotter(r);
  });
}

void Trainer::granted(std::uint32_t r, const wire::Grant& grant) {
  Rank& rank = *ranks_[r];
  auto share = rank.gather->cut(grant);
  need(share);
  if (r == 0) {
    give_back(0, share->size());
    return share_arrived(0, grant, std::move(*share));
  }
  rank.share_under_way = true;
  rank.data_up.post([this, r, grant, bytes = std::move(*share)] {
    ranks_[0]->gather_queue.post([this, r, grant, bytes] {
      share_arrived(r, grant, bytes);
      advance_gather();
    });
    ranks_[r]->leaving.post(
      [this, r, size = bytes.size()] { ranks_[r]->gather_queue.post([this, r, size] { share_left(r, size); }); });
  });
}

void Trainer::share_left(std::uint32_t r, std::uint64_t bytes) {
  Rank& rank = *ranks_[r];
  give_back(r, bytes);
  rank.share_under_way = false;
  if (rank.waiting_grants.empty())
    return;
  const wire::Grant next = rank.waiting_grants.front();
  rank.waiting_grants.pop_front();
  granted(r, next);
}

void Trainer::share_arrived(std::uint32_t r, const wire::Grant& grant, Bytes bytes) {
  const auto wanted = gather_root_->on_share(r, grant.gather, grant.round, bytes.size());
  need(wanted);
  if (!*wanted)
    return;
  flush_bucket_.post([this, gather = grant.gather, bytes = std::move(bytes)] {
    if (gather != flush_gather_)
      return consumed(bytes.size());
    assembly_->add_round(bytes);
    advance_flush_bucket();
  });
}

void Trainer::grant_rounds() {
  for (auto round = gather_root_->next_round(); !round.empty(); round = gather_root_->next_round())
    for (const auto& [rank, grant] : round) {
      if (rank == 0)
        granted(0, grant);
      else
        ranks_[rank]->control_down.post([this, r = rank, grant = grant] {
          ranks_[r]->gather_queue.post([this, r, grant] {
            if (ranks_[r]->share_under_way)
              ranks_[r]->waiting_grants.push_back(grant);
            else
              granted(r, grant);
          });
        });
    }
}

void Trainer::advance_gather() {
  grant_rounds();
  while (gather_root_->window_ended()) {
    flush_bucket_.post([this, gather = gathering_] {
      if (gather != flush_gather_)
        return;
      assembly_->window_ended();
      advance_flush_bucket();
    });
    grant_rounds();
  }
  if (const auto totals = gather_root_->finished())
    flush_bucket_.post([this, gather = totals->gather] {
      if (gather != flush_gather_)
        return;
      gathered_ = true;
      assembly_->finish();
      advance_flush_bucket();
    });
}

void Trainer::drop_gather(std::uint64_t gather) {
  ranks_[0]->gather_queue.post([this, gather] {
    gather_root_->drop(gather);
    for (std::uint32_t r = 1; r < ranks_.size(); ++r)
      ranks_[r]->control_down.post(
        [this, r, gather] { ranks_[r]->gather_queue.post([this, r, gather] { dropped(r, gather); }); });
    dropped(0, gather);
  });
}

// Flush bucket
// ---------------------------------------------------------------------------------------------------------------

void Trainer::consumed(std::uint64_t bytes) {
  if (bytes > 0)
    ranks_[0]->gather_queue.post([this, bytes] {
      gather_root_->consumed(bytes);
      advance_gather();
    });
}

void Trainer::advance_flush_bucket() {
  for (;;) {
    auto step = assembly_->advance();
    need(step);
    consumed(step->consumed);
    if (!step->flush)
      break;
    sender_.post([this, gather = flush_gather_, flush = std::move(*step->flush)] {
      if (!delivery_->running() || gather != gather_)
        return; // given up meanwhile
      if (may_send_)
        send_flush(flush);
      else
        flush_waits_ = flush;
    });
  }
  if (gathered_ && assembly_->finished()) {
    gathered_ = false;
    sender_.post([this, gather = flush_gather_] {
      if (!delivery_->running() || gather != gather_)
        return;
      sealed_ = true;
      send_what_waits();
    });
  }
}

// Sender
// ---------------------------------------------------------------------------------------------------------------

void Trainer::begin_update(std::uint64_t version, std::optional<Plan> catch_up, bool abandoned, bool aborted) {
  around_.tell("update to version {} begins{}{}", version, abandoned ? ", folded" : "", aborted ? ", aborted" : "");
  updating_ = true;
  began_ = network_.now();
  updating_version_ = version;
  catch_up_ = catch_up;
  carries_catch_up_ = catch_up.has_value();
  committed_ = false;
  audits_ = network_.one_in(2) ? 2 : 0;
  delivery_->begin_update();
  left_half_done_ = aborted;
  if (abandoned || aborted) {
    drop_gather(sync::gather_of(version));
    return begin_catch_up();
  }
  if (!begin_delivery(sync::gather_of(version), {version == 1 ? Kind::seed : Kind::delta, version - 1, version}))
    begin_catch_up();
}

bool Trainer::begin_delivery(std::uint64_t gather, const Plan& plan) {
  if (!delivery_->anyone_for(plan)) {
    drop_gather(gather);
    return false;
  }
  ++around_.counts.deliveries;
  (plan.kind == Kind::seed    ? around_.counts.seeds
   : plan.kind == Kind::delta ? around_.counts.deltas
                              : around_.counts.folds) += 1;
  gather_ = gather;
  plan_ = plan;
  may_send_ = sealed_ = manifest_sent_ = commit_sent_ = false;
  flush_waits_.reset();
  flush_bucket_.post([this, gather] {
    flush_gather_ = gather;
    consumed(assembly_->begin());
    gathered_ = false;
  });
  ranks_[0]->gather_queue.post([this, gather] {
    gathering_ = gather;
    gather_root_->begin(gather);
    advance_gather();
  });
  if (planted(Planted::reuses_delivery) && next_delivery_ > 2)
    --next_delivery_;
  carry_out(delivery_->begin(next_delivery_++, plan, network_.now()));
  return true;
}

void Trainer::begin_catch_up() {
  const auto plan = std::exchange(catch_up_, std::nullopt);
  if (!plan)
    return finish_update();
  const std::uint64_t gather = sync::catch_up_gather_of(updating_version_);
  if (aborted_all_ || left_half_done_) {
    drop_gather(gather);
    return finish_update();
  }
  if (!begin_delivery(gather, *plan))
    finish_update();
}

void Trainer::delivery_over() {
  if (!sealed_)
    drop_gather(gather_);
  committed_ = committed_ || !delivery_->failure();
  flush_waits_.reset();
  sealed_ = false;
  begin_catch_up();
}

sync::Digests Trainer::digests_at(std::uint32_t w, std::uint64_t version) const {
  std::vector<Bits> memory = around_.oracle.memory_at(w, {settings_.session, version});
  return digests_of(*compiled_[w], workers_[w]->offsets(), memory);
}

void Trainer::finish_update() {
  while (audits_ > 0) {
    const sync::AuditPlan plan{next_audit_, updating_version_, --audits_ == 0};
    if (!committed_ || aborted_all_ || !delivery_->anyone_for(plan))
      continue;
    ++next_audit_;
    ++around_.counts.audited;
    auditing_ = true;
    gather_ = 0; // what is behind a delivery that was given up is for nobody
    return carry_out(delivery_->audit(
      plan, [&](std::uint32_t w) { return digests_at(w, plan.version); }, network_.now()));
  }
  updating_ = false;
  ++around_.counts.updates;
  around_.counts.committed += committed_ ? 1 : 0;
  around_.tell("update to version {} ends, {}committed", updating_version_, committed_ ? "" : "not ");
  wire::NextUpdate next;
  next.version = updating_version_ + 1;
  next.keep_logs_after = delivery_->oldest_version(updating_version_);
  if (const auto plan = delivery_->catch_up(updating_version_)) {
    next.catch_up = 1;
    next.kind = plan->kind;
    next.base = plan->base;
  }
  ranks_[0]->supervisor.post([this, next] { update_over(next); });
}

void Trainer::send_flush(const sync::FlushAssembly::Flush& flush) {
  const std::uint64_t delivery = next_delivery_ - 1;
  for (const auto& [route, bytes, pieces] : flush.parts) {
    const auto payload = std::make_shared<const Bytes>(bytes);
    for (const std::uint32_t w : routes_->workers[route]) {
      if (!delivery_->takes_part(w))
        continue;
      const std::uint64_t sequence = delivery_->frame_sent(w, bytes.size());
      around_.oracle.sends(delivery, w, sequence);
      Link* link = links_[w];
      if (link == nullptr || link->cut)
        continue;
      const bool twice = std::exchange(repeats_, false);
      if (twice)
        around_.struck(Fault::frame_repeats);
      for (int copies = twice ? 2 : 1; copies > 0; --copies)
        link->data.post(
          [to = workers_[w], link, delivery, sequence, payload] { to->flush(*link, delivery, sequence, payload); });
    }
  }
  carry_out(delivery_->flush_sent(network_.now()));
}

void Trainer::send_what_waits() {
  if (!may_send_ || !delivery_->running())
    return;
  if (const auto flush = std::exchange(flush_waits_, std::nullopt))
    send_flush(*flush);
  if (sealed_ && !manifest_sent_ && delivery_->running()) {
    manifest_sent_ = true;
    carry_out(delivery_->seal([](std::uint32_t) { return sync::RootDelivery::Digests{}; }, network_.now()));
  }
}

void Trainer::send(std::uint32_t w, sync::RootDelivery::Message message) {
  Oracle& oracle = around_.oracle;
  if (auto* begin = std::get_if<wire::Begin>(&message)) {
    oracle.begins(begin->delivery, w);
    if (planted(Planted::delta_to_anybody) && begin->kind == Kind::delta)
      begin->base = workers_[w]->version();
  }
  if (const auto* commit = std::get_if<wire::Commit>(&message)) {
    oracle.commits(commit->delivery, plan_.target, w);
    commit_sent_ = true;
  }
  if (const auto* release = std::get_if<wire::Release>(&message))
    oracle.releases(release->delivery, w);
  if (auto* settle = std::get_if<wire::Settle>(&message)) {
    if (planted(Planted::settles_by_undoing))
      settle->release = 0;
    if (planted(Planted::settles_by_serving))
      settle->release = 1;
  }
  if (planted(Planted::undo_is_lost) && std::holds_alternative<wire::Undo>(message))
    return;
  around_.tell("root tells worker {}: {}", w, describe(message));
  Link* link = links_[w];
  if (link == nullptr || link->cut)
    return;
  link->control.post([to = workers_[w], link, message = std::move(message)] { to->receive(*link, message); });
}

void Trainer::carry_out(const sync::RootDelivery::Actions& actions) {
  for (const auto& [w, message] : actions.send)
    send(w, message);
  may_send_ = may_send_ || actions.may_send_flushes;
  if (actions.flush_credit)
    flush_bucket_.post([this, gather = gather_] {
      if (gather != flush_gather_)
        return;
      assembly_->wire_free();
      advance_flush_bucket();
    });
  if (actions.over)
    return std::exchange(auditing_, false) ? finish_update() : delivery_over();
  send_what_waits();
}

void Trainer::tick() {
  if (!running_ && network_.now() - started_ > settings_.timeout)
    over_ = true; // update.connect: not everyone came
  if (delivery_)
    carry_out(delivery_->tick(network_.now()));
}

void Trainer::silent(std::uint32_t worker) {
  if (running_)
    carry_out(delivery_->silent(worker, Failure{Code::timed_out, "nothing was heard of it"}, network_.now()));
}

void Trainer::heard(std::uint32_t worker) {
  if (running_)
    delivery_->heard(worker);
}

void Trainer::fail() {
  if (!running_ || delivering_ == 0) {
    over_ = true;
    return;
  }
  fatal_ = true;
  sender_.post([this] {
    aborted_all_ = true;
    carry_out(delivery_->abort(Failure{Code::peer_failed, "a rank cannot go on"}, network_.now()));
  });
}

Phase Trainer::phase() const {
  if (!running_)
    return Phase::connecting;
  if (!delivery_->running() || auditing_)
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->deliveries_over == rank->published; })
             ? Phase::idle
             : Phase::capturing;
  if (!may_send_)
    return Phase::beginning;
  if (commit_sent_)
    return Phase::committing;
  if (manifest_sent_)
    return Phase::sealing;
  return plan_.kind == Kind::seed ? Phase::seeding : Phase::sending;
}

} // namespace deltawire::simulation
