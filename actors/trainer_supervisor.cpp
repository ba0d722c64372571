#include "actors/trainer_supervisor.hpp"

#include "actors/differ.hpp"
#include "actors/flush_bucket.hpp"
#include "actors/gather_queue.hpp"
#include "actors/metered.hpp"
#include "actors/sender.hpp"
#include "actors/snapshotter.hpp"
#include "device/gpus.hpp"
#include "layout/block_check.hpp"
#include "sync/naming.hpp"
#include "telemetry/catalogue.hpp"
#include "telemetry/log.hpp"
#include "telemetry/updates.hpp"

#include <algorithm>

namespace deltawire::actors {
namespace {

using Self = TrainerSupervisorActor::stateful_pointer<TrainerSupervisorState>;
using Phase = TrainerSupervisorState::Phase;

bool is_root(Self self) {
  return self->state.setup->rank == 0;
}

void send_to_all(Self self, const auto& message) {
  for (const auto& port : self->state.open)
    if (port->identified() && port->channel() == wire::Channel::control)
      port->send(message);
}

/// A report for an update that never got one.
wire::DeliveryReport failed_report(const TicketPromise& ticket, const Failure& failure) {
  wire::DeliveryReport report;
  report.version = ticket.version;
  report.base = ticket.version - 1;
  report.step = ticket.step;
  report.kind = ticket.version == 1 ? wire::DeliveryKind::seed : wire::DeliveryKind::delta;
  report.error = failure.code;
  report.error_message = failure.message;
  return report;
}

void fail_session(Self self, const Failure& failure) {
  TrainerSupervisorState& state = self->state;
  if (state.phase == Phase::failed || state.phase == Phase::closing)
    return;
  const bool connecting = state.phase == Phase::connecting;
  state.phase = Phase::failed;
  state.setup->status->fail(failure);
  if (connecting && !is_root(self))
    send_to_all(self,
                wire::Failed{failure.code, sync::naming(wire::Role::rank, state.setup->rank, failure).message, 0});
  else if (connecting)
    send_to_all(self, wire::Refused{failure.code, failure.message});
  else
    send_to_all(self, wire::Failed{failure.code, failure.message, 0});
  answer(state.connect_answer, tl::make_unexpected(failure));
  // A capture that runs is local and ends by itself; those that have not begun never will.
  for (const auto& ticket : state.queued) {
    ticket->set_captured();
    state.capturing.erase(ticket->version);
  }
  state.queued.clear();
  if (state.colleagues)
    self->send(state.colleagues->snapshotter, CaptureCancel{});
  for (const auto& [version, ticket] : state.tickets)
    ticket->set_report(failed_report(*ticket, failure));
  if (const auto audit = std::exchange(state.audit, nullptr))
    audit->set_report(failed_report(*audit, failure));
}

/// A failure of the trainer's side while an update is under way goes through the Sender, so that workers undo and the
/// outcome names them; the session fails when the delivery is over.
void fail_delivery_or_session(Self self, const Failure& failure) {
  TrainerSupervisorState& state = self->state;
  if (state.delivering == 0 || state.phase != Phase::running)
    return fail_session(self, failure);
  if (!state.fatal)
    state.fatal = failure;
  self->send(state.colleagues->sender, DeliveryAbort{failure});
}

// Folding
// ---------------------------------------------------------------------------------------------------------------

/// Some rank's publish() does not wait for the update to `version` (update.busy = "fold").
void abandon(Self self, std::uint64_t version) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::running || version <= state.deliveries_over)
    return;
  if (!is_root(self)) {
    if (state.abandoned >= version)
      return;
    state.abandoned = version;
    state.ranks.control[0]->send(wire::Abandon{version});
    return;
  }
  if (state.delivering == version)
    self->send(state.colleagues->sender, UpdateAbandon{version});
  else
    state.abandoned = std::max(state.abandoned, version);
}

/// A publish() that must wait for a delivery gives that one up instead, where the file says so. Never a seed, and never
/// two in a row: an update that carries an earlier one's changes goes through.
void abandon_if_busy(Self self) {
  TrainerSupervisorState& state = self->state;
  const std::uint64_t busy = state.deliveries_over + 1;
  if (state.setup->topology.update.busy != config::Busy::fold || state.queued.empty() || busy == 1 ||
      (state.next.version == busy && state.next.catch_up != 0))
    return;
  abandon(self, busy);
}

// Updates left half done
// ----------------------------------------------------------------------------------------------------

/// Root: what a rank has captured of the version comes with the next one; this one never exists.
void capture_aborted(Self self, const CaptureAborted& capture) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::running || capture.version <= state.deliveries_over)
    return;
  const auto [first, is_first] = state.aborted.try_emplace(
    capture.version, Failure{Code::superseded, fmt::format("rank {} aborted the update to version {} (it left the "
                                                           "scope of its Update without finish()): what was captured "
                                                           "of it comes with the next one",
                                                           capture.rank, capture.version)});
  if (is_first && state.delivering == capture.version)
    self->send(state.colleagues->sender, UpdateAbort{capture.version, first->second});
}

// Updates
// ----------------------------------------------------------------------------------------------------------------

void advance(Self self) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::running)
    return;
  if (state.departed && !state.tickets.empty())
    return fail_delivery_or_session(self, *state.departed);
  // One capture may run ahead of the delivery under way; further ones wait for it.
  while (!state.queued.empty() && state.captures_started < state.deliveries_over + 2) {
    const auto ticket = state.queued.front();
    state.queued.pop_front();
    ++state.captures_started;
    self->send(state.colleagues->snapshotter,
               CaptureRequest{ticket->version, ticket->step, ticket->in_parts, ticket->after});
  }
  if (is_root(self) && state.delivering == 0 && state.captures_started > state.deliveries_over) {
    state.delivering = state.deliveries_over + 1;
    UpdateBegin begin{state.delivering, state.tickets.at(state.delivering)->published_ns, std::nullopt,
                      state.abandoned == state.delivering, std::nullopt};
    if (const auto aborted = state.aborted.find(begin.version); aborted != state.aborted.end())
      begin.aborted = aborted->second;
    if (state.next.version == begin.version && state.next.catch_up != 0)
      begin.catch_up = sync::DeliveryPlan{state.next.kind, state.next.base, begin.version};
    self->send(state.colleagues->sender, std::move(begin));
  }
  abandon_if_busy(self);
}

void plan_next(Self self, const wire::NextUpdate& next) {
  self->state.next = next;
  self->send(self->state.colleagues->snapshotter, UpdatePlanned{next});
}

/// An audit that the ranks called for has ended.
void audited(Self self, const wire::DeliveryReport& report) {
  TrainerSupervisorState& state = self->state;
  if (const auto audit = std::exchange(state.audit, nullptr))
    audit->set_report(report);
  if (is_root(self) && state.phase == Phase::running)
    for (std::uint32_t rank = 1; rank < state.setup->world; ++rank)
      state.ranks.control[rank]->send(report);
}

void delivered(Self self, const wire::DeliveryReport& report) {
  TrainerSupervisorState& state = self->state;
  if (report.of_audit != 0)
    return audited(self, report);
  const auto found = state.tickets.find(report.version);
  if (found == state.tickets.end()) {
    if (report.version > state.deliveries_over)
      state.early.emplace(report.version, report);
    return;
  }
  state.deliveries_over = report.version;
  state.aborted.erase(state.aborted.begin(), state.aborted.upper_bound(report.version));
  state.delivering = 0;
  found->second->set_report(report);
  state.tickets.erase(found);
  if (is_root(self))
    for (std::uint32_t rank = 1; rank < state.setup->world; ++rank)
      state.ranks.control[rank]->send(report);
  if (state.fatal)
    return fail_session(self, *state.fatal);
  advance(self);
}

/// Root: an update has ended, and the next one is planned: before any rank may capture the one after that.
void update_over(Self self, const UpdateOver& over) {
  TrainerSupervisorState& state = self->state;
  if (state.phase == Phase::running) {
    for (std::uint32_t rank = 1; rank < state.setup->world; ++rank)
      state.ranks.control[rank]->send(over.next);
    plan_next(self, over.next);
  }
  delivered(self, over.report);
}

/// This rank calls for an audit. Nothing of it is under way: every publish has been reported.
void begin_audit(Self self, const AuditRequest& request) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::running) {
    const auto failure = state.setup->status->failure();
    return request.ticket->set_report(failed_report(
      *request.ticket, failure ? *failure : Failure{Code::call_order, "audit() after the session's end"}));
  }
  state.audit = request.ticket;
  self->send(state.colleagues->snapshotter, SnapshotAudit{});
  if (is_root(self))
    self->send(state.colleagues->sender, AuditBegin{request.ticket->published_ns});
}

/// A rank has read its snapshot again: the root's Sender waits for all of them.
void snapshot_audited(Self self, const SnapshotAudited& audited) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::running)
    return;
  if (is_root(self))
    self->send(state.colleagues->sender, audited);
  else
    state.ranks.control[0]->send(audited.report);
}

// Wiring
// -----------------------------------------------------------------------------------------------------------------

/// What the topology lets encoders choose from.
delta::Encoding encoding_of(const config::FlushBucket& choices) {
  delta::Encoding encoding;
  encoding.ulp = choices.values != config::ValueChoice::raw;
  encoding.compress = choices.compression == config::Compression::zstd;
  switch (choices.positions) {
  case config::PositionChoice::automatic:
    break;
  case config::PositionChoice::u8:
    encoding.positions = delta::PositionCodec::gaps_u8;
    break;
  case config::PositionChoice::u16:
    encoding.positions = delta::PositionCodec::gaps_u16;
    break;
  case config::PositionChoice::rice:
    encoding.positions = delta::PositionCodec::rice;
    break;
  case config::PositionChoice::bitmap:
    encoding.positions = delta::PositionCodec::bitmap;
    break;
  case config::PositionChoice::run:
    encoding.positions = delta::PositionCodec::run;
    break;
  case config::PositionChoice::dense:
    encoding.positions = delta::PositionCodec::dense;
    break;
  }
  return encoding;
}

/// The GPU that holds parameters of this rank, with memory for their snapshots where those go there; null: none does.
Result<std::shared_ptr<RankGpu>> rank_gpu(const TrainerSetup& setup, const std::vector<layout::Block>& blocks,
                                          const std::vector<DType>& dtypes) {
  std::vector<bool> parameters;
  std::optional<int> index;
  for (const HeldTensor& held : setup.tensors) {
    parameters.push_back(held.gpu.has_value());
    index = held.gpu ? held.gpu : index;
  }
  if (!index)
    return nullptr;
  auto opened = device::gpus()->open(*index);
  if (!opened)
    return pass_on(std::move(opened));
  // A stream of the trainer's may have long work before a capture; but before the gather gives up for want of the
  // capture, the GPU is to be named.
  const config::Update& update = setup.topology.update;
  auto gpu = std::make_shared<RankGpu>(std::move(*opened), std::move(parameters), update.timeout - update.stall / 2);
  const std::uint64_t bytes = gpu->snapshot_bytes(blocks, dtypes);
  const config::Tier tier = setup.topology.actors.snapshotter.tier;
  if (tier == config::Tier::host || bytes == 0)
    return gpu;
  const std::string name = device::name_of(gpu->gpu->identity());
  const auto say = [&](const std::string& what) {
    telemetry::log(fmt::format("rank {}: snapshots of its parameters on {} are in {}", setup.rank, name, what));
  };
  if (tier == config::Tier::automatic) {
    const auto free = gpu->gpu->free_memory();
    if (!free)
      return tl::make_unexpected(free.error());
    const std::uint64_t reserve = gpu_reserve + setup.topology.actors.differ.count * gpu->buffer_bytes();
    if (*free < reserve || *free - reserve < bytes) {
      say(fmt::format("the host's memory: they take {}, and of the GPU's {} are free, of which {} stay free "
                      "(actors.snapshotter.tier = \"device\" takes them)",
                      telemetry::bytes_text(bytes), telemetry::bytes_text(*free), telemetry::bytes_text(reserve)));
      return gpu;
    }
  }
  if (auto held = gpu->hold_snapshots(bytes); !held)
    return fail(held.error().code,
                "snapshots of the parameters on {} take {} of its memory: {}; use "
                "actors.snapshotter.tier = \"host\"",
                name, telemetry::bytes_text(bytes), held.error().message);
  say(fmt::format("its memory: {}", telemetry::bytes_text(bytes)));
  return gpu;
}

/// Spawns the rank's actors around its blocks; `routes` on the root.
Result<void> spawn_actors(Self self, const std::vector<layout::SlotSpec>& slots, const std::vector<layout::Cell>& cells,
                          std::uint32_t windows, std::vector<layout::Block> blocks,
                          std::shared_ptr<const sync::RouteTable> routes) {
  TrainerSupervisorState& state = self->state;
  TrainerSetup& setup = *state.setup;
  const config::Actors& actors = setup.topology.actors;
  const auto limit =
    sync::piece_limit(actors.differ.inflight, actors.gather_queue.max_round, actors.flush_bucket.cap,
                      sync::largest_element(slots), actors.flush_bucket.compression == config::Compression::zstd);
  if (!limit)
    return fail(limit.error().code, "{}", limit.error().message);
  std::vector<const std::byte*> bases;
  std::vector<DType> dtypes;
  for (const HeldTensor& held : setup.tensors) {
    bases.push_back(held.data);
    dtypes.push_back(held.tensor.dtype);
  }
  for (const layout::Block& block : blocks)
    if (bases[block.parameter] == nullptr)
      return fail(Code::invalid_argument, "tensor '{}': data is null and its shard is not empty",
                  setup.tensors[block.parameter].tensor.name);
  auto gpu = rank_gpu(setup, blocks, dtypes);
  if (!gpu)
    return pass_on(std::move(gpu));
  setup.work = RankWork::make(setup.rank, std::move(blocks), windows, actors.differ.chunk, actors.differ.inflight,
                              *limit, std::move(bases), std::move(dtypes), std::move(*gpu));
  setup.work->recorder = setup.recorder;
  setup.work->slots = slots;
  setup.work->metrics = setup.metrics;
  setup.work->encoding = encoding_of(actors.flush_bucket);

  auto colleagues = std::make_shared<Colleagues>();
  colleagues->supervisor = TrainerSupervisorActor{self};
  const config::Update& update = setup.topology.update;
  const GatherSettings gather{setup.world, actors.gather_queue.max_round, update.stall, update.timeout};
  colleagues->gather_queue = self->spawn<caf::detached>(gather_queue, setup.work, state.ranks, gather);
  colleagues->snapshotter =
    self->spawn(snapshotter, setup.work,
                SnapshotterSettings{actors.differ.count, actors.differ.inflight, actors.snapshotter.log,
                                    update.busy == config::Busy::fold, update.audit_every});
  for (std::uint32_t number = 0; number < actors.differ.count; ++number)
    colleagues->differs.push_back(actors.differ.thread == config::ThreadKind::detached
                                    ? self->spawn<caf::detached>(differ, setup.work, number)
                                    : self->spawn(differ, setup.work, number));
  if (is_root(self)) {
    // A little later than the gather, which knows the name of the rank that is missing.
    const SenderSettings settings{setup.workers_per_replica,
                                  update.quorum,
                                  update.stall,
                                  update.timeout + update.stall / 4,
                                  update.engine,
                                  cells,
                                  slots.size(),
                                  routes,
                                  setup.topology.telemetry.flushes,
                                  state.session,
                                  setup.world,
                                  update.verify == config::Verify::digest,
                                  update.audit_every,
                                  update.seed == config::Seed::if_different};
    colleagues->flush_bucket = self->spawn(
      flush_bucket, setup.work, routes,
      actors.flush_bucket.cap == config::unlimited ? config::unlimited : actors.flush_bucket.cap - wire::header_bytes);
    colleagues->sender =
      self->spawn<caf::detached>(sender, setup.work, WorkerPorts{state.worker_control, state.worker_data}, settings);
    state.routes->set_delivery(caf::actor_cast<caf::actor>(colleagues->sender));
  }
  state.routes->set_gather(caf::actor_cast<caf::actor>(colleagues->gather_queue));
  state.colleagues = colleagues;
  const Meet meet{colleagues};
  const auto introduce = [&](const auto& actor) {
    self->send(actor, meet);
    self->monitor(actor);
    ++state.children;
  };
  introduce(colleagues->gather_queue);
  introduce(colleagues->snapshotter);
  for (const DifferActor& each : colleagues->differs)
    introduce(each);
  if (is_root(self)) {
    introduce(colleagues->flush_bucket);
    introduce(colleagues->sender);
  }
  return {};
}

void running(Self self) {
  TrainerSupervisorState& state = self->state;
  state.phase = Phase::running;
  state.life.emplace(state.setup->topology.update);
  answer(state.connect_answer, {});
}

// Agreement, root
// --------------------------------------------------------------------------------------------------------

/// Goes on with the agreement as far as what has come in allows.
void agree(Self self) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::connecting)
    return;
  if (auto catalogue = state.agreement->catalogue()) {
    if (!*catalogue)
      return fail_session(self, catalogue->error());
    state.catalogue = std::move(**catalogue);
    if (auto known = state.setup->side.check_names(state.agreement->rank_parameters(), *state.catalogue); !known)
      return fail_session(self, known.error());
    for (const auto& port : state.worker_control)
      if (port)
        port->send(wire::Catalogue{*state.catalogue});
  }
  if (auto plan = state.agreement->plan()) {
    if (!*plan)
      return fail_session(self, plan->error());
    layout::Plan& made = **plan;
    const auto agreement = [&](std::vector<layout::Block> own) {
      return wire::Agreement{made.slots, made.cells, made.blocks, made.windows, std::move(own)};
    };
    sync::RouteTable routes = state.setup->topology.actors.sender.route == config::Route::broadcast
                                ? sync::broadcast(made.blocks, made.cells.size(), made.workers.size())
                                : sync::rank_local(made.blocks, made.cells.size(), made.workers);
    routes.cells = sync::held_cells(made.cells.size(), made.workers);
    if (auto spawned = spawn_actors(self, made.slots, made.cells, made.windows, std::move(made.ranks[0]),
                                    std::make_shared<const sync::RouteTable>(std::move(routes)));
        !spawned)
      return fail_session(self, spawned.error());
    for (std::uint32_t rank = 1; rank < state.setup->world; ++rank)
      state.ranks.control[rank]->send(agreement(std::move(made.ranks[rank])));
    std::map<std::uint64_t, std::shared_ptr<const Bytes>> alike; // replicas get the same
    for (std::uint32_t worker = 0; worker < state.setup->workers; ++worker) {
      auto encoded = std::make_shared<const Bytes>(wire::encode(agreement(std::move(made.workers[worker]))));
      const auto kept = alike.try_emplace(wire::checksum(*encoded), encoded).first->second;
      state.agreed[worker].agreement = *kept == *encoded ? kept : encoded;
      state.worker_control[worker]->send_encoded(wire::Agreement::type, state.agreed[worker].agreement);
    }
    (void)state.agreement->agreed(wire::Role::rank, 0);
  }
  if (state.agreement->all_agreed()) {
    self->send(state.colleagues->sender,
               WorkersMet{state.agreement->standing(), state.worker_control, state.worker_data});
    send_to_all(self, wire::Connected{});
    running(self);
  }
}

void turn_away(Self self, const std::shared_ptr<Port>& port, const Failure& failure) {
  self->state.refused.note(port->naming(failure).message);
  port->send(wire::Refused{failure.code, failure.message});
  port->close();
}

Failure declares_otherwise(std::uint32_t worker) {
  return {Code::disagreement, fmt::format("worker {} declares other parameters than its predecessor did when the "
                                          "session began: bind the same ones, or restart the session",
                                          worker)};
}

Failure replaced(std::uint32_t worker) {
  return {Code::peer_failed, fmt::format("worker {}: another process has taken its place: it was restarted, or two "
                                         "processes have the same index",
                                         worker)};
}

// Workers that join a running session
// ----------------------------------------------------------------------------------------

void on_late_hello(Self self, const std::shared_ptr<Port>& port, const wire::Hello& hello) {
  TrainerSupervisorState& state = self->state;
  if (const auto welcome = state.agreement->rejoin(hello); !welcome)
    return turn_away(self, port, welcome.error());
  TrainerSupervisorState::Joining& joining = state.joining[hello.index];
  if (joining.incarnation != hello.incarnation) // an attempt that came to nothing
    joining = {hello.incarnation, nullptr, nullptr};
  (hello.channel == wire::Channel::control ? joining.control : joining.data) = port;
  port->identify(hello.role, hello.index, hello.channel);
  port->join_session(state.session);
  port->send(wire::Welcome{state.session});
  if (joining.control && joining.data)
    joining.control->send(wire::Catalogue{*state.catalogue});
}

/// The worker that joins and speaks on this port, if it is one.
TrainerSupervisorState::Joining* joining_on(Self self, const std::shared_ptr<Port>& port) {
  const auto found = self->state.joining.find(port->index());
  const bool joins = port->role() == wire::Role::worker && found != self->state.joining.end() &&
                     (found->second.control == port || found->second.data == port);
  return joins ? &found->second : nullptr;
}

void on_joining_frame(Self self, const FrameArrived& frame, TrainerSupervisorState::Joining& joining) {
  TrainerSupervisorState& state = self->state;
  const std::uint32_t worker = frame.port->index();
  if (frame.header.type == wire::DeclareWorker::type && joining.control == frame.port && joining.data) {
    if (wire::checksum(*frame.body) != state.agreed[worker].declaration)
      return turn_away(self, frame.port, declares_otherwise(worker));
    joining.control->send_encoded(wire::Agreement::type, state.agreed[worker].agreement);
    return;
  }
  if (frame.header.type == wire::Agreed::type && joining.control == frame.port && joining.data) {
    const auto agreed = decode<wire::Agreed>(frame);
    if (!agreed)
      return frame.port->abort(agreed.error());
    // A predecessor whose connections are still open is not there any more.
    for (const auto& port : {state.worker_control[worker], state.worker_data[worker]}) {
      self->send(state.colleagues->sender, PortClosed{port, replaced(worker)});
      port->abort(replaced(worker));
    }
    state.worker_control[worker] = joining.control;
    state.worker_data[worker] = joining.data;
    self->send(state.colleagues->sender, WorkerJoined{worker, joining.control, joining.data, *agreed});
    joining.control->send(wire::Connected{});
    if (state.setup->metrics)
      state.setup->metrics->counter(telemetry::family::worker_joins, {{"worker", std::to_string(worker)}}).add();
    state.joining.erase(worker);
    return;
  }
  if (frame.header.type != wire::Heartbeat::type)
    frame.port->abort(Failure{Code::invalid_input, fmt::format("{} sent {} while it joined", frame.port->name(),
                                                               wire::type_name(frame.header.type))});
}

/// Before the session runs: a worker's process has come in the place of another one, which may be half gone, and may
/// be a second one by mistake: it is told.
void replace(Self self, std::uint32_t worker) {
  TrainerSupervisorState& state = self->state;
  const auto control = std::exchange(state.worker_control[worker], nullptr);
  const auto data = std::exchange(state.worker_data[worker], nullptr);
  turn_away(self, control ? control : data, replaced(worker));
  if (control && data)
    data->abort(replaced(worker));
}

void on_hello(Self self, const FrameArrived& frame) {
  TrainerSupervisorState& state = self->state;
  const auto hello = decode<wire::Hello>(frame);
  if (frame.header.type != wire::Hello::type || !hello)
    return frame.port->abort(
      Failure{Code::invalid_input, fmt::format("{} did not introduce itself", frame.port->name())});
  if (state.phase != Phase::connecting)
    return on_late_hello(self, frame.port, *hello);
  const auto welcome = state.agreement->hello(*hello);
  if (!welcome)
    return turn_away(self, frame.port, welcome.error());
  if (*welcome == sync::AgreementRoot::Welcome::in_place)
    replace(self, hello->index);
  frame.port->identify(hello->role, hello->index, hello->channel);
  const bool control = hello->channel == wire::Channel::control;
  if (hello->role == wire::Role::rank)
    (control ? state.ranks.control : state.ranks.data)[hello->index] = frame.port;
  else
    (control ? state.worker_control : state.worker_data)[hello->index] = frame.port;
  frame.port->join_session(state.session);
  frame.port->send(wire::Welcome{state.session});
  if (hello->role == wire::Role::worker && control && state.catalogue)
    frame.port->send(wire::Catalogue{*state.catalogue});
  agree(self); // the connection may be the last thing that was missing
}

/// Root: a control message that is not the gather's or the Sender's.
void on_root_frame(Self self, const FrameArrived& frame) {
  TrainerSupervisorState& state = self->state;
  const auto declared = [&](auto&& message) {
    if (!message)
      return fail_session(self, message.error());
    // A worker that was lost after the plan was made, and is back: the plan stands.
    const bool worker = frame.port->role() == wire::Role::worker, again = worker && state.agreement->planned();
    if (worker) {
      auto& [declaration, agreement] = state.agreed[frame.port->index()];
      const std::uint64_t declares = wire::checksum(*frame.body);
      if (again && declares != declaration)
        return turn_away(self, frame.port, declares_otherwise(frame.port->index()));
      declaration = declares;
    }
    if (auto taken = state.agreement->declare(frame.port->role(), frame.port->index(), std::move(message->declaration));
        !taken)
      return fail_session(self, taken.error());
    if (again)
      frame.port->send_encoded(wire::Agreement::type, state.agreed[frame.port->index()].agreement);
    agree(self);
  };
  if (auto* joining = joining_on(self, frame.port))
    return on_joining_frame(self, frame, *joining);
  // What was under way when an attempt of a worker came to nothing, or another process took its place, is nobody's
  // word.
  if (frame.port->role() == wire::Role::worker && frame.port != state.worker_control[frame.port->index()])
    return frame.port->abort(
      Failure{Code::peer_failed, fmt::format("{} is not in the session by this connection", frame.port->name())});
  switch (frame.header.type) {
  case wire::DeclareRank::type:
    return declared(decode<wire::DeclareRank>(frame));
  case wire::DeclareWorker::type:
    return declared(decode<wire::DeclareWorker>(frame));
  case wire::Agreed::type: {
    const auto message = decode<wire::Agreed>(frame);
    if (!message)
      return fail_session(self, message.error());
    if (auto agreed = state.agreement->agreed(frame.port->role(), frame.port->index(), *message); !agreed)
      return fail_session(self, agreed.error());
    return agree(self);
  }
  case wire::Failed::type: {
    if (frame.port->role() == wire::Role::worker && state.colleagues)
      return self->send(state.colleagues->sender, frame);
    const auto failed = decode<wire::Failed>(frame);
    return fail_delivery_or_session(self, failed ? Failure{failed->code, failed->message} : failed.error());
  }
  case wire::AuditReport::type: {
    auto audited = decode<wire::AuditReport>(frame);
    if (!audited || frame.port->role() != wire::Role::rank)
      return fail_delivery_or_session(
        self, !audited ? audited.error()
                       : Failure{Code::invalid_input, fmt::format("{} sent AuditReport", frame.port->name())});
    return snapshot_audited(self, {frame.port->index(), std::move(*audited)});
  }
  case wire::Abandon::type: {
    const auto abandoned = decode<wire::Abandon>(frame);
    if (!abandoned)
      return fail_delivery_or_session(self, abandoned.error());
    return abandon(self, abandoned->version);
  }
  case wire::Heartbeat::type:
    return;
  case wire::Goodbye::type:
    // Leaving between updates is no failure: it becomes one with the next update.
    if (frame.port->role() == wire::Role::rank)
      state.departed = Failure{Code::peer_failed, fmt::format("{} has left", frame.port->name())};
    return advance(self);
  default:
    fail_delivery_or_session(self, Failure{Code::invalid_input, fmt::format("{} sent {}", frame.port->name(),
                                                                            wire::type_name(frame.header.type))});
  }
}

// Agreement, other ranks
// -------------------------------------------------------------------------------------------------

void call_root(Self self, wire::Channel channel) {
  TrainerSupervisorState& state = self->state;
  state.call_again = false;
  connect_port(state.setup->networks->of(state.setup->topology.actors.gather_queue.transport), state.setup->master,
               state.connect_deadline, state.routes, channel);
}

void on_rank_frame(Self self, const FrameArrived& frame) {
  TrainerSupervisorState& state = self->state;
  switch (frame.header.type) {
  case wire::Welcome::type: {
    const auto welcome = decode<wire::Welcome>(frame);
    if (!welcome)
      return fail_session(self, welcome.error());
    if (state.session != 0 && state.session != welcome->session)
      return fail_session(self, Failure{Code::disagreement, "the root restarted while this rank was connecting"});
    state.session = welcome->session;
    state.setup->recorder->in_session(state.session);
    frame.port->join_session(state.session);
    // The second connection only now: the first one may lead to somebody else, who holds the address for a moment, and
    // the root must not meet half a rank.
    if (++state.welcomes == 1) {
      // The root is there and knows best who is missing: its time, of the same length, began before its welcome.
      state.connect_deadline = std::chrono::steady_clock::now() + state.setup->topology.update.connect;
      return call_root(self, wire::Channel::data);
    }
    state.ranks.control[0]->send(wire::DeclareRank{state.declaration});
    return;
  }
  case wire::Refused::type: {
    const auto refused = decode<wire::Refused>(frame);
    return fail_session(self, refused ? Failure{refused->code, refused->message} : refused.error());
  }
  case wire::Agreement::type: {
    auto agreement = decode<wire::Agreement>(frame);
    if (!agreement)
      return fail_session(self, agreement.error());
    if (state.phase != Phase::connecting || state.colleagues)
      return fail_session(self, Failure{Code::invalid_input, "the root sent a second agreement"});
    if (auto checked =
          layout::check_blocks(agreement->own, layout::Of::rank, state.declaration.parameters, agreement->slots.size(),
                               agreement->cells.size(), agreement->blocks, agreement->windows);
        !checked)
      return fail_session(self, checked.error());
    if (auto spawned = spawn_actors(self, agreement->slots, agreement->cells, agreement->windows,
                                    std::move(agreement->own), nullptr);
        !spawned)
      return fail_session(self, spawned.error());
    state.ranks.control[0]->send(wire::Agreed{});
    return;
  }
  case wire::Connected::type:
    return running(self);
  case wire::Heartbeat::type:
    return;
  case wire::NextUpdate::type: {
    const auto next = decode<wire::NextUpdate>(frame);
    if (!next)
      return fail_session(self, next.error());
    if (state.phase == Phase::running)
      plan_next(self, *next);
    return;
  }
  case wire::DeliveryReport::type: {
    const auto report = decode<wire::DeliveryReport>(frame);
    if (!report)
      return fail_session(self, report.error());
    return delivered(self, *report);
  }
  case wire::Failed::type: {
    const auto failed = decode<wire::Failed>(frame);
    return fail_session(self, failed ? Failure{failed->code, failed->message} : failed.error());
  }
  case wire::Goodbye::type:
    state.setup->status->end();
    if (!state.tickets.empty())
      fail_session(self, Failure{Code::peer_failed, "the root closed the session while an update was under way"});
    return;
  default:
    fail_session(self,
                 Failure{Code::invalid_input, fmt::format("the root sent {}", wire::type_name(frame.header.type))});
  }
}

// Connecting
// -------------------------------------------------------------------------------------------------------------

void listen(Self self) {
  TrainerSupervisorState& state = self->state;
  TrainerSetup& setup = *state.setup;
  const auto accepted = [supervisor = caf::actor_cast<caf::actor>(TrainerSupervisorActor{self}),
                         routes = state.routes](std::shared_ptr<transport::Connection> connection) {
    caf::anon_send(supervisor, PortOpened{std::make_shared<Port>(std::move(connection), routes), {}});
  };
  const auto refused = [supervisor = caf::actor_cast<caf::actor>(TrainerSupervisorActor{self})](const Failure& why) {
    caf::anon_send(supervisor, PortOpened{nullptr, why});
  };
  using config::TransportKind;
  const auto uses = [&](std::initializer_list<TransportKind> kinds) {
    const config::Actors& actors = setup.topology.actors;
    return std::any_of(kinds.begin(), kinds.end(), [&](TransportKind kind) {
      return actors.gather_queue.transport == kind || actors.sender.transport == kind;
    });
  };
  const auto open = [&](TransportKind kind, std::unique_ptr<transport::Listener>& listener, bool adopts) {
    transport::Network& network = setup.networks->of(kind);
    // Peers look for shared memory under the port of TCP, be it one that the system has chosen.
    const std::string& address = state.tcp_listener ? state.tcp_listener->address() : setup.master;
    auto made = adopts && setup.listening_socket >= 0 ? network.adopt(setup.listening_socket, accepted, refused)
                                                      : network.listen(address, accepted, refused);
    if (!made)
      return fail_session(self, made.error());
    listener = std::move(*made);
  };
  if (uses({TransportKind::inproc}))
    open(TransportKind::inproc, state.inproc_listener, false);
  if (uses({TransportKind::automatic, TransportKind::tcp}))
    open(TransportKind::tcp, state.tcp_listener, true);
  if (uses({TransportKind::shm}) && state.phase == Phase::connecting)
    open(TransportKind::shm, state.shm_listener, !state.tcp_listener);
}

void connect(Self self, const ConnectRequest& request) {
  TrainerSupervisorState& state = self->state;
  TrainerSetup& setup = *state.setup;
  state.connect_answer = request.answer;
  state.phase = Phase::connecting;
  state.incarnation = random_identity();
  state.connect_deadline = std::chrono::steady_clock::now() + setup.topology.update.connect;
  std::vector<layout::LocalTensor> tensors;
  for (const HeldTensor& held : setup.tensors)
    tensors.push_back(held.tensor);
  auto declaration = setup.side.declare_trainer(tensors, setup.rank);
  if (!declaration)
    return fail_session(self, declaration.error());
  state.declaration = std::move(*declaration);
  self->delayed_send(TrainerSupervisorActor{self}, look_around, Tick{});
  state.ranks.control.resize(setup.world);
  state.ranks.data.resize(setup.world);
  if (!is_root(self))
    return call_root(self, wire::Channel::control);
  state.session = random_identity();
  setup.recorder->in_session(state.session);
  state.worker_control.resize(setup.workers);
  state.worker_data.resize(setup.workers);
  state.agreed.resize(setup.workers);
  for (std::uint32_t worker = 0; setup.metrics && worker < setup.workers; ++worker)
    (void)setup.metrics->counter(telemetry::family::worker_joins, {{"worker", std::to_string(worker)}}); // from 0 on
  state.agreement = std::make_unique<sync::AgreementRoot>(setup.world, setup.workers, setup.topology.worker.unused,
                                                          setup.topology.actors.gather_queue.window,
                                                          config::fingerprint(setup.topology));
  (void)state.agreement->declare(wire::Role::rank, 0, state.declaration);
  listen(self);
  if (state.phase == Phase::connecting)
    agree(self);
}

void opened(Self self, const PortOpened& message) {
  TrainerSupervisorState& state = self->state;
  if (!message.port && is_root(self))
    return state.refused.note(message.failure.message);
  if (!message.port)
    return fail_session(self, message.failure);
  if (state.phase == Phase::failed || state.phase == Phase::closing)
    return message.port->abort(Failure{Code::peer_failed, "the session is over"});
  state.open.push_back(message.port);
  message.port->start();
  if (is_root(self))
    return;
  (message.port->channel() == wire::Channel::control ? state.ranks.control : state.ranks.data)[0] = message.port;
  message.port->send(wire::Hello{wire::Role::rank, message.port->channel(), state.setup->rank, state.setup->world,
                                 state.incarnation, config::fingerprint(state.setup->topology)});
}

// The end
// ----------------------------------------------------------------------------------------------------------------

void end_if_done(Self self) {
  TrainerSupervisorState& state = self->state;
  if (state.phase != Phase::closing || state.children != 0 || !state.open.empty())
    return;
  answer(state.close_answer, {});
  state.routes->clear();
  state = {};
  self->quit();
}

void close(Self self, const CloseRequest& request) {
  TrainerSupervisorState& state = self->state;
  state.close_answer = request.answer;
  send_to_all(self, wire::Goodbye{});
  state.phase = Phase::closing;
  state.tcp_listener.reset();
  state.inproc_listener.reset();
  state.shm_listener.reset();
  for (const auto& port : state.open)
    port->close();
  if (state.colleagues) {
    const Colleagues& each = *state.colleagues;
    self->send(each.snapshotter, Stop{});
    for (const DifferActor& one : each.differs)
      self->send(one, Stop{});
    self->send(each.gather_queue, Stop{});
    if (each.flush_bucket)
      self->send(each.flush_bucket, Stop{});
    if (each.sender)
      self->send(each.sender, Stop{});
    state.routes->set_gather(nullptr);
    state.routes->set_delivery(nullptr);
    state.colleagues.reset();
  }
  end_if_done(self);
}

/// Root, before the session runs: a worker may come again, or another process of it, and is waited for like those that
/// were never here. True where its leaving is no failure.
bool worker_may_come_again(Self self, const PortClosed& closed) {
  TrainerSupervisorState& state = self->state;
  const auto& port = closed.port;
  if (!is_root(self) || state.phase != Phase::connecting || port->role() != wire::Role::worker)
    return false;
  const std::uint32_t worker = port->index();
  std::shared_ptr<Port>&control = state.worker_control[worker], &data = state.worker_data[worker];
  if (port != control && port != data)
    return true; // of an attempt that is forgotten
  state.agreement->left(worker);
  state.refused.note_lost(port->naming(closed.reason).message);
  for (const auto& other : {std::exchange(control, nullptr), std::exchange(data, nullptr)})
    if (other && other != port)
      other->abort(Failure{Code::peer_failed, "its other connection is closed"});
  return true;
}

/// Other ranks, before the first welcome: whoever answered hung up without a word. That may have been an earlier root
/// on its way out, or somebody who only had its port for a while: until update.connect has passed, it is tried again.
bool hung_up(Self self, const PortClosed& closed) {
  TrainerSupervisorState& state = self->state;
  if (is_root(self) || state.phase != Phase::connecting || state.welcomes != 0)
    return false;
  state.refused.note_lost(closed.port->naming(closed.reason).message);
  state.ranks.control[0] = nullptr;
  state.call_again = true;
  return true;
}

void port_closed(Self self, const PortClosed& closed) {
  TrainerSupervisorState& state = self->state;
  const bool first_time = std::erase(state.open, closed.port) > 0;
  if (state.phase == Phase::closing)
    return end_if_done(self);
  if (state.phase == Phase::failed || state.setup->status->ended())
    return;
  if (!closed.port->identified()) {
    if (closed.port->frames() == 0 || closed.reason.code != Code::peer_failed) // else turned away, and noted
      state.refused.note(closed.reason.message);
    return;
  }
  if (joining_on(self, closed.port)) {
    state.joining.erase(closed.port->index());
    return;
  }
  // A goodbye travels on the control connection and may be overtaken by the end of the data connection.
  if (first_time && closed.port->channel() == wire::Channel::data)
    return self->delayed_send(TrainerSupervisorActor{self}, goodbye_grace, closed);
  if (worker_may_come_again(self, closed) || hung_up(self, closed))
    return;
  if (state.departed && closed.port->role() == wire::Role::rank)
    return;
  const Failure failure{Code::peer_failed, closed.port->naming(closed.reason).message};
  if (is_root(self) && closed.port->role() == wire::Role::worker && state.phase == Phase::running)
    return self->send(state.colleagues->sender, PortClosed{closed.port, failure});
  fail_delivery_or_session(self, failure);
}

// Signs of life
// ----------------------------------------------------------------------------------------------------------

/// The peer behind a control port, as a number.
std::uint64_t peer_number(wire::Role role, std::uint32_t index) {
  return (std::uint64_t{index} << 1) | (role == wire::Role::worker ? 1 : 0);
}

/// A rank that is silent ends the session: nothing works without it.
void watch_rank(Self self, std::uint32_t rank) {
  TrainerSupervisorState& state = self->state;
  const Port& port = *state.ranks.control[rank];
  if (state.life->look(peer_number(wire::Role::rank, rank), port) == sync::SilenceWatch::News::silent)
    fail_delivery_or_session(
      self, Failure{Code::timed_out, fmt::format("{}: {}", is_root(self) ? port.name() : "rank 0 (the root)",
                                                 state.life->silent_for())});
}

/// A worker that is silent is left out until it is heard again.
void watch_worker(Self self, std::uint32_t worker) {
  TrainerSupervisorState& state = self->state;
  const auto& port = state.worker_control[worker];
  const auto news = state.life->look(peer_number(wire::Role::worker, worker), *port);
  if (news == sync::SilenceWatch::News::none)
    return;
  const bool silent = news == sync::SilenceWatch::News::silent;
  self->send(state.colleagues->sender,
             WorkerSilent{worker, silent,
                          Failure{Code::timed_out, fmt::format("{}: {}", port->name(), state.life->silent_for())}});
}

void watch_and_beat(Self self) {
  TrainerSupervisorState& state = self->state;
  if (state.life->tick(telemetry::now_ns()))
    send_to_all(self, wire::Heartbeat{});
  if (!is_root(self))
    return watch_rank(self, 0);
  for (std::uint32_t rank = 1; rank < state.setup->world && state.phase == Phase::running; ++rank)
    watch_rank(self, rank);
  for (std::uint32_t worker = 0; worker < state.setup->workers; ++worker)
    watch_worker(self, worker);
}

void tick(Self self) {
  TrainerSupervisorState& state = self->state;
  if (state.phase == Phase::closing)
    return;
  const auto now = std::chrono::steady_clock::now();
  if (state.phase == Phase::connecting && state.call_again && now < state.connect_deadline)
    call_root(self, wire::Channel::control);
  if (state.phase == Phase::connecting) {
    // The root's message names who is missing: the others leave it the time to arrive.
    const auto grace = is_root(self) ? std::chrono::nanoseconds(0) : connect_grace(state.setup->topology.update);
    if (now > state.connect_deadline + grace)
      fail_session(
        self, Failure{Code::timed_out,
                      fmt::format("not everyone connected within {:.1f} s (update.connect): {}{}",
                                  std::chrono::duration<double>(state.setup->topology.update.connect).count(),
                                  is_root(self) ? state.agreement->missing() : "no agreement from rank 0 (the root)",
                                  state.refused.text())});
  }
  if (state.phase == Phase::running)
    watch_and_beat(self);
  if (!is_root(self) && !state.tickets.empty() && state.phase == Phase::running) {
    const config::Update& update = state.setup->topology.update;
    const std::int64_t waited = telemetry::now_ns() - state.tickets.begin()->second->published_ns;
    // Audits, and a look at what workers hold, come on top of the delivery.
    const bool more = update.audit_every != 0 || update.seed == config::Seed::if_different;
    if (waited > ((more ? 2 : 1) * update.timeout + 3 * update.stall).count())
      fail_session(self, Failure{Code::timed_out, "rank 0 (the root) did not report the end of an update in time"});
  }
  if (!is_root(self) && state.audit && state.phase == Phase::running) {
    const config::Update& update = state.setup->topology.update;
    if (telemetry::now_ns() - state.audit->published_ns > (2 * update.timeout + 2 * update.stall).count())
      fail_session(self,
                   Failure{Code::timed_out, "rank 0 (the root) did not report the end of an audit in time: has it "
                                            "called audit()?"});
  }
  self->delayed_send(TrainerSupervisorActor{self}, look_around, Tick{});
}

} // namespace

TrainerSupervisorActor::behavior_type trainer_supervisor(Self self, std::shared_ptr<TrainerSetup> setup) {
  TrainerSupervisorState& initial = self->state;
  initial.setup = std::move(setup);
  initial.routes = std::make_shared<Routes>();
  if (initial.setup->metrics)
    initial.routes->set_traffic(std::make_shared<telemetry::Traffic>(initial.setup->metrics));
  initial.routes->set_supervisor(caf::actor_cast<caf::actor>(TrainerSupervisorActor{self}));
  self->set_down_handler([self](caf::down_msg& down) {
    TrainerSupervisorState& state = self->state;
    --state.children;
    if (state.phase == Phase::closing)
      return end_if_done(self);
    fail_session(self, Failure{Code::internal, fmt::format("an actor ended unexpectedly: {}", to_string(down.reason))});
  });
  return Metered{
    self,
    meter_of(*initial.setup, "supervisor"),
    [self](const ConnectRequest& request) { connect(self, request); },
    [self](const PublishRequest& request) {
      TrainerSupervisorState& state = self->state;
      if (state.phase != Phase::running) {
        const auto failure = state.setup->status->failure();
        request.ticket->set_captured();
        return request.ticket->set_report(failed_report(
          *request.ticket, failure ? *failure : Failure{Code::call_order, "publish() after the session's end"}));
      }
      state.tickets.emplace(request.ticket->version, request.ticket);
      state.capturing.emplace(request.ticket->version, request.ticket);
      state.queued.push_back(request.ticket);
      advance(self);
      if (const auto early = state.early.extract(request.ticket->version))
        delivered(self, early.mapped());
    },
    [self](const UpdatePart& part) {
      // Also when the session has failed: a capture that is open waits for its end.
      if (self->state.colleagues)
        self->send(self->state.colleagues->snapshotter, part);
    },
    [self](const CaptureAborted& capture) { capture_aborted(self, capture); },
    [self](const AuditRequest& request) { begin_audit(self, request); },
    [self](const SnapshotAudited& audited) { snapshot_audited(self, audited); },
    [self](const CloseRequest& request) { close(self, request); },
    [self](const PortOpened& message) { opened(self, message); },
    [self](const FrameArrived& frame) {
      TrainerSupervisorState& state = self->state;
      if (state.phase == Phase::closing || state.phase == Phase::failed)
        return;
      if (!is_root(self))
        return on_rank_frame(self, frame);
      if (!frame.port->identified())
        return on_hello(self, frame);
      on_root_frame(self, frame);
    },
    [self](const PortClosed& closed) { port_closed(self, closed); },
    [self](const CaptureDone& done) {
      // A delivery may have failed, and its ticket been reported, before the capture was complete.
      if (const auto captured = self->state.capturing.extract(done.version))
        captured.mapped()->set_captured();
    },
    [self](const UpdateAbandoned& abandoned) { abandon(self, abandoned.version); },
    [self](const UpdateOver& over) { update_over(self, over); },
    [self](const FailureReport& report) { fail_delivery_or_session(self, report.failure); },
    [self](Tick) { tick(self); },
  };
}

} // namespace deltawire::actors
