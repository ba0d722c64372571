#include "actors/worker_supervisor.hpp"

#include "actors/metered.hpp"
#include "layout/block_check.hpp"
#include "sync/naming.hpp"
#include "telemetry/catalogue.hpp"

namespace deltawire::actors {
namespace {

using Self = WorkerSupervisorActor::stateful_pointer<WorkerSupervisorState>;
using Phase = WorkerSupervisorState::Phase;

// How attempts to meet the next root follow each other: a trainer takes seconds at least to start, and workers are
// many.
constexpr std::chrono::milliseconds shortest_pause{50};
constexpr std::chrono::milliseconds longest_pause{2000};
/// How long one attempt calls an address where nobody listens, in pauses before it. They grow, so that a connection and
/// its handshake may take longer than the first one has.
constexpr int attempt_in_pauses = 4;
constexpr std::chrono::milliseconds longest_attempt{2000};

/// Tells the root why this worker cannot go on.
void tell_root(WorkerSupervisorState& state, const Failure& failure) {
  const Failure named = sync::naming(wire::Role::worker, state.setup->worker, failure);
  state.control->send(wire::Failed{named.code, named.message, 0});
}

void fail_session(Self self, const Failure& failure) {
  WorkerSupervisorState& state = self->state;
  if (state.phase == Phase::over || state.phase == Phase::closing)
    return;
  // The control connection was welcomed if the catalogue came; the data connection's welcome may be behind.
  if (state.control && (state.welcomes == 2 || state.phase == Phase::met || state.phase == Phase::agreeing))
    tell_root(state, failure);
  const bool ran = state.phase == Phase::running || state.phase == Phase::waiting;
  state.phase = Phase::over;
  const std::shared_ptr<SessionStatus> status = state.setup->status;
  status->part(failure);
  if (state.applier)
    self->send(state.applier, RootLost{failure, true, [status, failure](bool) { status->fail(failure); }});
  else
    status->fail(failure);
  answer(state.connect_answer, tl::make_unexpected(failure));
  if (ran) // the root need not wait for answers that will not come
    for (const auto& port : state.open)
      port->close();
}

/// The root has closed the session. What it left in doubt nobody will settle.
void end_session(Self self) {
  WorkerSupervisorState& state = self->state;
  state.phase = Phase::over;
  const Failure closed{Code::peer_failed, "the trainer closed the session"};
  self->send(state.applier, RootLost{closed, true, [status = state.setup->status](bool in_doubt) {
                                       if (in_doubt)
                                         status->fail({Code::peer_failed,
                                                       "the trainer closed the session and did not say whether this "
                                                       "worker serves what it has applied: it is in doubt"});
                                       else
                                         status->end();
                                     }});
}

/// Meets a root and waits for its catalogue: the first request, and each later attempt.
void meet(Self self, std::chrono::steady_clock::time_point connected_by) {
  WorkerSupervisorState& state = self->state;
  state.phase = Phase::meeting;
  state.incarnation = random_identity(); // a connection that the root believes in still is a predecessor's
  state.opening = 2;
  for (const wire::Channel channel : {wire::Channel::control, wire::Channel::data})
    connect_port(state.setup->networks->of(state.setup->topology.actors.sender.transport), state.setup->master,
                 connected_by, state.routes, channel);
}

/// Both connections are there. Not before: an attempt that gets only half-way must not take a seat at the root.
void introduce(Self self) {
  WorkerSupervisorState& state = self->state;
  for (const auto& port : {state.control, state.data})
    port->send(wire::Hello{wire::Role::worker, port->channel(), state.setup->worker, state.setup->workers,
                           state.incarnation, config::fingerprint(state.setup->topology)});
}

/// Forgets the connections that there are.
void wait_for_next_attempt(Self self, const Failure& failure, bool linger) {
  WorkerSupervisorState& state = self->state;
  state.phase = Phase::waiting;
  state.life.reset();
  state.control.reset();
  state.data.reset();
  state.consented = false;
  state.session = 0;
  state.welcomes = 0;
  for (const auto& port : state.open)
    linger ? port->close() : port->abort(failure);
  state.next_attempt = std::chrono::steady_clock::now() + state.pause;
  state.pause = std::min<std::chrono::milliseconds>(2 * state.pause, longest_pause);
}

/// The root, or an attempt to meet the next one, came to nothing: goes on with what the Applier holds, and tries again.
/// Fails the session where that was never asked for, or cannot be.
void part(Self self, const Failure& failure, bool linger = false) {
  WorkerSupervisorState& state = self->state;
  if (state.phase == Phase::waiting || state.phase == Phase::over || state.phase == Phase::closing)
    return;
  const std::chrono::nanoseconds patience = state.setup->topology.update.reconnect;
  if (patience.count() == 0 || (state.phase != Phase::running && !state.parted))
    return fail_session(self, failure);
  if (!state.parted) {
    state.parted = failure;
    state.patience_ends = std::chrono::steady_clock::now() + patience;
    state.pause = shortest_pause;
    state.setup->status->part(failure);
    self->send(state.applier, RootLost{failure, false});
  } else if (state.phase == Phase::agreeing) {
    self->send(state.applier, RootLost{failure, false}); // it may have met the one that is gone again
  }
  wait_for_next_attempt(self, failure, linger);
}

/// Before the first catalogue: whoever answered hung up without a word. That may have been an earlier trainer on its
/// way out, or somebody who only had its port for a while: until update.connect has passed, it is tried again.
void call_again(Self self, const Failure& failure) {
  WorkerSupervisorState& state = self->state;
  if (!state.hung_up)
    state.pause = shortest_pause;
  state.hung_up = failure;
  wait_for_next_attempt(self, failure, false);
}

/// What a failure of this side comes to: the root is told, then as part().
void part_and_tell(Self self, const Failure& failure) {
  WorkerSupervisorState& state = self->state;
  if (state.parted && state.control && state.welcomes == 2)
    tell_root(state, failure);
  part(self, failure, true);
}

/// Waiting: is it time to try again, or to give up?
void try_again(Self self) {
  WorkerSupervisorState& state = self->state;
  const auto now = std::chrono::steady_clock::now();
  if (!state.parted && now > state.deadline)
    return fail_session(
      self, Failure{state.hung_up->code,
                    fmt::format("{}; nobody who stays answered there within {:.1f} s (update.connect)",
                                state.hung_up->message,
                                std::chrono::duration<double>(state.setup->topology.update.connect).count())});
  if (state.parted && now > state.patience_ends)
    return fail_session(
      self,
      Failure{state.parted->code,
              fmt::format("{}; no trainer came in its place within {:.1f} s (update.reconnect)", state.parted->message,
                          std::chrono::duration<double>(state.setup->topology.update.reconnect).count())});
  // Nothing of the last connections may come behind the first frame of the next ones.
  if (now < state.next_attempt || state.opening != 0 || !state.open.empty())
    return;
  if (!state.parted) // the first root: its deadline stands
    return meet(self, state.deadline);
  state.deadline = now + state.setup->topology.update.connect;
  meet(self, now + std::min<std::chrono::milliseconds>(attempt_in_pauses * state.pause, longest_attempt));
}

/// Declares what is bound and waits for the agreement: the second request, and each later attempt.
void declare(Self self, const std::vector<layout::SlotSpec>& catalogue) {
  WorkerSupervisorState& state = self->state;
  WorkerSetup& setup = *state.setup;
  state.phase = Phase::agreeing;
  std::vector<layout::LocalTensor> tensors;
  for (const HeldTensor& held : setup.tensors)
    tensors.push_back(held.tensor);
  std::vector<std::string> names;
  for (const layout::LocalTensor& tensor : tensors)
    names.push_back(tensor.name);
  auto declaration = setup.side.declare_worker(catalogue, tensors, setup.worker);
  if (!declaration)
    return part_and_tell(self, declaration.error());
  if (auto known = setup.side.check_names(names, catalogue); !known)
    return part_and_tell(self, known.error());
  state.declaration = std::move(*declaration);
  state.control->send(wire::DeclareWorker{state.declaration});
}

/// Whether what was agreed can be done with what is bound.
Result<void> check_agreement(const WorkerSetup& setup, const layout::Declaration& declaration,
                             const wire::Agreement& agreement) {
  if (auto checked =
        layout::check_blocks(agreement.own, layout::Of::worker, declaration.parameters, agreement.slots.size(),
                             agreement.cells.size(), agreement.blocks, agreement.windows);
      !checked)
    return checked;
  for (const layout::Cell& cell : agreement.cells)
    if (cell.slot >= agreement.slots.size())
      return fail(Code::invalid_input, "the agreement has a cell of slot {}, there are {}", cell.slot,
                  agreement.slots.size());
  for (const layout::Block& block : agreement.own)
    if (setup.tensors[block.parameter].data == nullptr)
      return fail(Code::invalid_argument, "tensor '{}': data is null and its shard is not empty",
                  setup.tensors[block.parameter].tensor.name);
  return {};
}

void spawn_applier(Self self, wire::Agreement&& agreement) {
  WorkerSupervisorState& state = self->state;
  WorkerSetup& setup = *state.setup;
  auto work = std::make_shared<WorkerWork>();
  work->worker = setup.worker;
  work->blocks = std::move(agreement.own);
  work->block_ids = agreement.blocks;
  work->slots = std::move(agreement.slots);
  work->cells = std::move(agreement.cells);
  for (const HeldTensor& held : setup.tensors) {
    work->parameters.push_back(held.data);
    work->names.push_back(held.tensor.name);
  }
  work->stage_cap = setup.topology.actors.applier.stage;
  work->verify = setup.topology.update.verify == config::Verify::digest;
  work->on_pause = setup.on_pause;
  work->on_commit = setup.on_commit;
  work->on_resume = setup.on_resume;
  work->engine = setup.engine;
  work->recorder = setup.recorder;
  work->metrics = setup.metrics;
  setup.work = work;
  state.applier =
    self->spawn<caf::detached>(applier, work, state.control, caf::actor_cast<caf::actor>(WorkerSupervisorActor{self}));
  self->monitor(state.applier);
  ++state.children;
  state.routes->set_delivery(caf::actor_cast<caf::actor>(state.applier));
}

void on_frame(Self self, const FrameArrived& frame) {
  WorkerSupervisorState& state = self->state;
  switch (frame.header.type) {
  case wire::Welcome::type: {
    const auto welcome = decode<wire::Welcome>(frame);
    if (!welcome)
      return part(self, welcome.error());
    if (state.session != 0 && state.session != welcome->session)
      return part(self, Failure{Code::disagreement, "the root restarted while this worker was connecting"});
    state.session = welcome->session;
    state.setup->recorder->in_session(state.session);
    frame.port->join_session(state.session);
    // The root is there and knows best who is missing: its time, of the same length, began before its welcome.
    if (++state.welcomes == 1)
      state.deadline = std::chrono::steady_clock::now() + state.setup->topology.update.connect;
    return;
  }
  case wire::Refused::type: {
    const auto refused = decode<wire::Refused>(frame);
    return part(self, refused ? Failure{refused->code, refused->message} : refused.error());
  }
  case wire::Catalogue::type: {
    auto catalogue = decode<wire::Catalogue>(frame);
    if (!catalogue)
      return part(self, catalogue.error());
    if (state.phase != Phase::meeting || !state.control)
      return part(self, Failure{Code::invalid_input, "the root sent a second catalogue"});
    if (state.parted)
      return declare(self, catalogue->slots);
    state.setup->catalogue = std::move(catalogue->slots);
    state.phase = Phase::met;
    return answer(state.connect_answer, {});
  }
  case wire::Agreement::type: {
    auto agreement = decode<wire::Agreement>(frame);
    if (!agreement)
      return part(self, agreement.error());
    if (state.phase != Phase::agreeing || (state.applier && !state.parted) || state.consented)
      return part(self, Failure{Code::invalid_input, "the root sent an agreement that was not due"});
    if (auto checked = check_agreement(*state.setup, state.declaration, *agreement); !checked)
      return part_and_tell(self, checked.error());
    state.consented = true;
    if (state.parted) // the Applier knows how things stand
      return self->send(state.applier, RootMet{state.control, state.session,
                                               std::make_shared<const wire::Agreement>(std::move(*agreement))});
    spawn_applier(self, std::move(*agreement));
    state.control->send(wire::Agreed{});
    return;
  }
  case wire::Connected::type:
    if (!state.consented)
      return part(self, Failure{Code::invalid_input, "the root begins the session before the agreement"});
    state.phase = Phase::running;
    if (state.parted && state.setup->metrics)
      state.setup->metrics->counter(telemetry::family::reconnects).add();
    state.parted.reset();
    state.setup->status->meet();
    state.life.emplace(state.setup->topology.update);
    return answer(state.connect_answer, {});
  case wire::Heartbeat::type:
    return;
  case wire::Failed::type: {
    const auto failed = decode<wire::Failed>(frame);
    return part(self, failed ? Failure{failed->code, failed->message} : failed.error());
  }
  case wire::Goodbye::type:
    if (state.phase != Phase::running)
      return part(self, Failure{Code::peer_failed, "the root closed the session during the agreement"});
    return end_session(self);
  default:
    part(self, Failure{Code::invalid_input, fmt::format("the root sent {}", wire::type_name(frame.header.type))});
  }
}

void watch_and_beat(Self self) {
  WorkerSupervisorState& state = self->state;
  if (state.life->tick(telemetry::now_ns()))
    state.control->send(wire::Heartbeat{});
  if (state.life->look(0, *state.control) == sync::SilenceWatch::News::silent)
    part(self, Failure{Code::timed_out,
                       fmt::format("rank 0 (the root, {}): {}", state.setup->master, state.life->silent_for())});
}

void end_if_done(Self self) {
  WorkerSupervisorState& state = self->state;
  if (state.phase != Phase::closing || state.children != 0 || !state.open.empty())
    return;
  answer(state.close_answer, {});
  state.routes->clear();
  state = {};
  self->quit();
}

} // namespace

WorkerSupervisorActor::behavior_type worker_supervisor(Self self, std::shared_ptr<WorkerSetup> setup) {
  WorkerSupervisorState& initial = self->state;
  initial.setup = std::move(setup);
  initial.routes = std::make_shared<Routes>();
  if (initial.setup->metrics) {
    initial.routes->set_traffic(std::make_shared<telemetry::Traffic>(initial.setup->metrics));
    (void)initial.setup->metrics->counter(telemetry::family::reconnects); // from 0 on
  }
  initial.routes->set_supervisor(caf::actor_cast<caf::actor>(WorkerSupervisorActor{self}));
  self->set_down_handler([self](caf::down_msg& down) {
    WorkerSupervisorState& state = self->state;
    --state.children;
    if (state.phase == Phase::closing)
      return end_if_done(self);
    const Failure failure{Code::internal, fmt::format("the applier ended unexpectedly: {}", to_string(down.reason))};
    // Nobody knows how far it had come.
    state.applier = nullptr;
    state.setup->work->version.store(0, std::memory_order_release);
    state.setup->work->standing.set({0, 0, sync::WorkerState::dirty});
    if (state.setup->engine)
      state.setup->engine->failed(failure);
    fail_session(self, failure);
    state.setup->status->fail(failure); // where it failed before, and the applier was to say so
  });
  return Metered{
    self,
    meter_of(*initial.setup, "supervisor"),
    [self](const ConnectRequest& request) {
      WorkerSupervisorState& state = self->state;
      state.connect_answer = request.answer;
      if (const auto failure = state.setup->status->failure())
        return answer(state.connect_answer, tl::make_unexpected(*failure));
      state.deadline = std::chrono::steady_clock::now() + state.setup->topology.update.connect;
      if (state.phase == Phase::met)
        return declare(self, state.setup->catalogue);
      self->delayed_send(WorkerSupervisorActor{self}, look_around, Tick{});
      meet(self, state.deadline);
    },
    [self](EngineCommits commits) {
      if (self->state.applier)
        self->send(self->state.applier, commits);
    },
    [self](const CloseRequest& request) {
      WorkerSupervisorState& state = self->state;
      state.close_answer = request.answer;
      if (state.control && state.phase != Phase::over)
        state.control->send(wire::Goodbye{});
      state.phase = Phase::closing;
      for (const auto& port : state.open)
        port->close();
      if (state.applier) {
        self->send(state.applier, Stop{});
        state.routes->set_delivery(nullptr);
        state.applier = nullptr;
      }
      end_if_done(self);
    },
    [self](const PortOpened& message) {
      WorkerSupervisorState& state = self->state;
      --state.opening;
      if (!message.port)
        return part(self, message.failure);
      if (state.phase == Phase::waiting) // the other one could not be opened
        return message.port->abort(state.parted ? *state.parted : *state.hung_up);
      if (state.phase == Phase::over || state.phase == Phase::closing)
        return message.port->abort(Failure{Code::peer_failed, "the session is over"});
      state.open.push_back(message.port);
      message.port->start(); // at once: only a port that was started tells when it is closed
      (message.port->channel() == wire::Channel::control ? state.control : state.data) = message.port;
      if (state.opening == 0)
        introduce(self);
    },
    [self](const FrameArrived& frame) {
      const WorkerSupervisorState& state = self->state;
      if (state.phase != Phase::closing && state.phase != Phase::over && state.phase != Phase::waiting)
        on_frame(self, frame);
    },
    [self](const PortClosed& closed) {
      WorkerSupervisorState& state = self->state;
      const bool first_time = std::erase(state.open, closed.port) > 0;
      if (state.phase == Phase::closing)
        return end_if_done(self);
      if (state.phase == Phase::waiting || (!first_time && closed.port != state.data))
        return; // of a root that is lost
      // A goodbye travels on the control connection and may be overtaken by the end of the data connection.
      if (first_time && closed.port->channel() == wire::Channel::data)
        return self->delayed_send(WorkerSupervisorActor{self}, goodbye_grace, closed);
      const Failure failure{Code::peer_failed, closed.port->naming(closed.reason).message};
      if (state.phase == Phase::meeting && !state.parted)
        return call_again(self, failure);
      part(self, failure);
    },
    [self](const FailureReport& report) { part(self, report.failure); },
    [self](Tick) {
      WorkerSupervisorState& state = self->state;
      if (state.phase == Phase::closing || state.phase == Phase::over)
        return;
      if (state.phase == Phase::running)
        watch_and_beat(self);
      if (state.phase == Phase::waiting)
        try_again(self);
      // The root's message names who is missing: it gets the time to arrive.
      if (state.phase != Phase::met && state.phase != Phase::running && state.phase != Phase::waiting &&
          std::chrono::steady_clock::now() > state.deadline + connect_grace(state.setup->topology.update))
        part(self, Failure{Code::timed_out,
                           fmt::format("no {} from rank 0 (the root, {}) within {:.1f} s (update.connect)",
                                       state.phase == Phase::meeting ? "catalogue" : "agreement", state.setup->master,
                                       std::chrono::duration<double>(state.setup->topology.update.connect).count())});
      self->delayed_send(WorkerSupervisorActor{self}, look_around, Tick{});
    },
  };
}

} // namespace deltawire::actors
