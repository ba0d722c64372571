#include "actors/worker_supervisor.hpp"

#include "actors/metered.hpp"
#include "layout/block_check.hpp"
#include "sync/agreement.hpp"

namespace deltawire::actors {
namespace {

using Self = WorkerSupervisorActor::stateful_pointer<WorkerSupervisorState>;
using Phase = WorkerSupervisorState::Phase;

void fail_session(Self self, const Failure& failure) {
  WorkerSupervisorState& state = self->state;
  if (state.phase == Phase::over || state.phase == Phase::closing)
    return;
  // The control connection was welcomed if the catalogue came; the data connection's welcome may be behind.
  if (state.control && (state.welcomes == 2 || state.phase == Phase::met || state.phase == Phase::agreeing))
    state.control->send(
      wire::Failed{failure.code, fmt::format("worker {}: {}", state.setup->worker, failure.message), 0});
  state.phase = Phase::over;
  state.setup->status->fail(failure);
  answer(state.connect_answer, tl::make_unexpected(failure));
}

/// First request: meet the root and wait for its catalogue.
void meet(Self self) {
  WorkerSupervisorState& state = self->state;
  state.phase = Phase::meeting;
  state.incarnation = random_identity();
  connect_ports(state.setup->networks->of(state.setup->topology.actors.sender.transport), state.setup->master,
                state.deadline, state.routes);
}

/// Second request: declare what is bound and wait for the agreement.
void declare(Self self) {
  WorkerSupervisorState& state = self->state;
  WorkerSetup& setup = *state.setup;
  state.phase = Phase::agreeing;
  std::vector<layout::LocalTensor> tensors;
  for (const HeldTensor& held : setup.tensors)
    tensors.push_back(held.tensor);
  std::vector<std::string> names;
  for (const layout::LocalTensor& tensor : tensors)
    names.push_back(tensor.name);
  auto declaration = setup.side.declare_worker(setup.catalogue, tensors, setup.worker);
  if (!declaration)
    return fail_session(self, declaration.error());
  if (auto known = setup.side.check_names(names, setup.catalogue); !known)
    return fail_session(self, known.error());
  state.declaration = std::move(*declaration);
  state.control->send(wire::DeclareWorker{state.declaration});
}

Result<void> spawn_applier(Self self, wire::Agreement&& agreement) {
  WorkerSupervisorState& state = self->state;
  WorkerSetup& setup = *state.setup;
  auto work = std::make_shared<WorkerWork>();
  work->worker = setup.worker;
  work->blocks = std::move(agreement.own);
  work->block_ids = agreement.blocks;
  work->slots = std::move(agreement.slots);
  work->cells = std::move(agreement.cells);
  for (const layout::Cell& cell : work->cells)
    if (cell.slot >= work->slots.size())
      return fail(Code::invalid_input, "the agreement has a cell of slot {}, there are {}", cell.slot,
                  work->slots.size());
  for (const HeldTensor& held : setup.tensors) {
    work->parameters.push_back(held.data);
    work->names.push_back(held.tensor.name);
  }
  for (const layout::Block& block : work->blocks)
    if (work->parameters[block.parameter] == nullptr)
      return fail(Code::invalid_argument, "tensor '{}': data is null and its shard is not empty",
                  work->names[block.parameter]);
  work->stage_cap = setup.topology.actors.applier.stage;
  work->on_pause = setup.on_pause;
  work->on_commit = setup.on_commit;
  work->recorder = setup.recorder;
  work->metrics = setup.metrics;
  setup.work = work;
  state.applier =
    self->spawn<caf::detached>(applier, work, state.control, caf::actor_cast<caf::actor>(WorkerSupervisorActor{self}));
  self->monitor(state.applier);
  ++state.children;
  state.routes->set_delivery(caf::actor_cast<caf::actor>(state.applier));
  return {};
}

void on_frame(Self self, const FrameArrived& frame) {
  WorkerSupervisorState& state = self->state;
  switch (frame.header.type) {
  case wire::Welcome::type: {
    const auto welcome = decode<wire::Welcome>(frame);
    if (!welcome)
      return fail_session(self, welcome.error());
    if (state.session != 0 && state.session != welcome->session)
      return fail_session(self, Failure{Code::disagreement, "the root restarted while this worker was connecting"});
    state.session = welcome->session;
    frame.port->join_session(state.session);
    ++state.welcomes;
    return;
  }
  case wire::Refused::type: {
    const auto refused = decode<wire::Refused>(frame);
    return fail_session(self, refused ? Failure{refused->code, refused->message} : refused.error());
  }
  case wire::Catalogue::type: {
    auto catalogue = decode<wire::Catalogue>(frame);
    if (!catalogue)
      return fail_session(self, catalogue.error());
    if (state.phase != Phase::meeting)
      return fail_session(self, Failure{Code::invalid_input, "the root sent a second catalogue"});
    state.setup->catalogue = std::move(catalogue->slots);
    state.phase = Phase::met;
    return answer(state.connect_answer, {});
  }
  case wire::Agreement::type: {
    auto agreement = decode<wire::Agreement>(frame);
    if (!agreement)
      return fail_session(self, agreement.error());
    if (state.phase != Phase::agreeing || state.applier)
      return fail_session(self, Failure{Code::invalid_input, "the root sent an agreement that was not due"});
    if (auto checked = layout::check_blocks(agreement->own, state.declaration.parameters, agreement->slots.size(),
                                            agreement->cells.size(), agreement->blocks, agreement->windows);
        !checked)
      return fail_session(self, checked.error());
    if (auto spawned = spawn_applier(self, std::move(*agreement)); !spawned)
      return fail_session(self, spawned.error());
    state.control->send(wire::Agreed{});
    return;
  }
  case wire::Connected::type:
    state.phase = Phase::running;
    state.life.emplace(state.setup->topology.update);
    return answer(state.connect_answer, {});
  case wire::Heartbeat::type:
    return;
  case wire::Failed::type: {
    const auto failed = decode<wire::Failed>(frame);
    return fail_session(self, failed ? Failure{failed->code, failed->message} : failed.error());
  }
  case wire::Goodbye::type:
    if (state.phase != Phase::running)
      return fail_session(self, Failure{Code::peer_failed, "the root closed the session during the agreement"});
    state.phase = Phase::over;
    return state.setup->status->end();
  default:
    fail_session(self,
                 Failure{Code::invalid_input, fmt::format("the root sent {}", wire::type_name(frame.header.type))});
  }
}

void watch_and_beat(Self self) {
  WorkerSupervisorState& state = self->state;
  if (state.life->tick(telemetry::now_ns()))
    state.control->send(wire::Heartbeat{});
  if (state.life->look(0, *state.control) == sync::SilenceWatch::News::silent)
    fail_session(self, Failure{Code::timed_out, fmt::format("rank 0 (the root, {}): {}", state.setup->master,
                                                            state.life->silent_for())});
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
  if (initial.setup->metrics)
    initial.routes->set_traffic(std::make_shared<telemetry::Traffic>(initial.setup->metrics));
  initial.routes->set_supervisor(caf::actor_cast<caf::actor>(WorkerSupervisorActor{self}));
  self->set_down_handler([self](caf::down_msg& down) {
    WorkerSupervisorState& state = self->state;
    --state.children;
    if (state.phase == Phase::closing)
      return end_if_done(self);
    fail_session(self,
                 Failure{Code::internal, fmt::format("the applier ended unexpectedly: {}", to_string(down.reason))});
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
        return declare(self);
      self->delayed_send(WorkerSupervisorActor{self}, look_around, Tick{});
      meet(self);
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
      if (!message.port)
        return fail_session(self, message.failure);
      if (state.phase == Phase::over || state.phase == Phase::closing)
        return message.port->abort(Failure{Code::peer_failed, "the session is over"});
      state.open.push_back(message.port);
      if (message.port->channel() == wire::Channel::control)
        state.control = message.port;
      message.port->start();
      message.port->send(wire::Hello{wire::Role::worker, message.port->channel(), state.setup->worker,
                                     state.setup->workers, state.incarnation,
                                     config::fingerprint(state.setup->topology)});
    },
    [self](const FrameArrived& frame) {
      const Phase phase = self->state.phase;
      if (phase != Phase::closing && phase != Phase::over)
        on_frame(self, frame);
    },
    [self](const PortClosed& closed) {
      WorkerSupervisorState& state = self->state;
      const bool first_time = std::erase(state.open, closed.port) > 0;
      if (state.phase == Phase::closing)
        return end_if_done(self);
      // A goodbye travels on the control connection and may be overtaken by the end of the data connection.
      if (first_time && closed.port->channel() == wire::Channel::data)
        return self->delayed_send(WorkerSupervisorActor{self}, goodbye_grace, closed);
      fail_session(self, Failure{Code::peer_failed, fmt::format("{}: {}", closed.port->name(), closed.reason.message)});
    },
    [self](const FailureReport& report) { fail_session(self, report.failure); },
    [self](Tick) {
      WorkerSupervisorState& state = self->state;
      if (state.phase == Phase::closing || state.phase == Phase::over)
        return;
      if (state.phase == Phase::running)
        watch_and_beat(self);
      // The root's message names who is missing: it gets the time to arrive.
      if (state.phase != Phase::met && state.phase != Phase::running &&
          std::chrono::steady_clock::now() > state.deadline + connect_grace(state.setup->topology.update))
        return fail_session(
          self, Failure{Code::timed_out,
                        fmt::format("no {} from rank 0 (the root, {}) within {:.1f} s (update.connect)",
                                    state.phase == Phase::meeting ? "catalogue" : "agreement", state.setup->master,
                                    std::chrono::duration<double>(state.setup->topology.update.connect).count())});
      self->delayed_send(WorkerSupervisorActor{self}, look_around, Tick{});
    },
  };
}

} // namespace deltawire::actors
