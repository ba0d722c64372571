// Subscriber over the worker's supervisor. See include/deltawire/deltawire.hpp for the contract.
#include "deltawire/deltawire.hpp"

#include "actors/applier.hpp"
#include "actors/observer.hpp"
#include "actors/opening.hpp"
#include "actors/session.hpp"
#include "actors/system.hpp"
#include "actors/worker_supervisor.hpp"

namespace deltawire {

namespace {

/// A hook runs on a thread that these calls wait for.
void check_no_hook(const char* call) {
  if (actors::called_by_hook())
    throw Error(Code::call_order, fmt::format("{} in a hook: it would wait for the hook itself to return", call));
}

} // namespace

using actors::throw_failure;

struct Subscriber::Implementation {
  std::shared_ptr<caf::actor_system> system; // first: outlives every handle below
  std::shared_ptr<actors::WorkerSetup> setup;
  std::shared_ptr<telemetry::Endpoint> endpoint;
  std::uint32_t metrics_index = 0;
  actors::WorkerSupervisorActor supervisor;
  bool met = false;
  bool started = false;
  bool closed = false;

  void meet() {
    if (met)
      return;
    actors::require_port(setup->master, setup->topology.actors.sender.transport, false);
    met = true;
    endpoint = actors::value_or_throw(
      actors::serve_metrics(setup->topology.telemetry.prometheus, metrics_index, setup->metrics));
    system = actors::shared_system();
    supervisor = actors::spawn_from_outside(*system, actors::worker_supervisor, setup);
    throw_failure(actors::ask<actors::ConnectRequest>(supervisor));
  }

  void before_start(const std::string& call) const {
    if (started || closed)
      throw Error(Code::call_order, fmt::format("{} after start() or close()", call));
  }

  void for_hooks(std::string_view call) const {
    before_start(std::string(call));
    if (setup->engine)
      throw Error(Code::call_order, fmt::format("{}: this subscriber was opened with WorkerOptions::polled: its engine "
                                                "calls poll() and commit()",
                                                call));
  }

  [[nodiscard]] actors::EngineLoop& engine(std::string_view call) const {
    if (!setup->engine)
      throw Error(Code::call_order, fmt::format("{}: this subscriber commits by its hooks; open it with "
                                                "WorkerOptions::polled",
                                                call));
    if (!started || closed)
      throw Error(Code::call_order, fmt::format("{} before start() or after close()", call));
    return *setup->engine;
  }
};

Subscriber::Subscriber(std::unique_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
Subscriber::Subscriber(Subscriber&&) noexcept = default;

Subscriber& Subscriber::operator=(Subscriber&& other) noexcept {
  const Subscriber ended(std::move(*this)); // closes what this one had
  implementation_ = std::move(other.implementation_);
  return *this;
}

Subscriber::~Subscriber() {
  try {
    close();
  } catch (const Error&) { // only a trace file that could not be written: everything is released
  }
}

Subscriber Subscriber::open(const std::string& topology, WorkerOptions options) {
  auto setup = std::make_shared<actors::WorkerSetup>();
  setup->topology = actors::value_or_throw(config::load(topology, options.overrides));
  setup->side = actors::value_or_throw(layout::Side::compile(setup->topology.worker, layout::Side::Role::worker));
  setup->worker = options.worker;
  setup->workers = static_cast<std::uint32_t>(setup->side.mesh().size());
  if (setup->worker >= setup->workers)
    throw Error(Code::invalid_argument,
                fmt::format("{}: worker {} of a worker.mesh of {} workers", topology, setup->worker, setup->workers));
  setup->master = actors::master_address(setup->topology);
  setup->networks =
    actors::value_or_throw(actors::Networks::make(setup->topology, {setup->topology.actors.sender.transport}));
  setup->status = std::make_shared<actors::SessionStatus>();
  setup->recorder = actors::make_recorder(setup->topology, fmt::format("worker {}", setup->worker));
  if (options.polled)
    setup->engine = std::make_shared<actors::EngineLoop>();
  setup->metrics = std::make_shared<telemetry::Registry>(telemetry::Labels{{"worker", std::to_string(setup->worker)}});
  auto implementation = std::make_unique<Implementation>();
  implementation->metrics_index =
    options.metrics_index.value_or(static_cast<std::uint32_t>(setup->topology.trainer.mesh.size()) + setup->worker);
  implementation->setup = std::move(setup);
  return Subscriber(std::move(implementation));
}

std::vector<ParameterInfo> Subscriber::parameters() {
  Implementation& self = *implementation_;
  if (self.closed)
    throw Error(Code::call_order, "parameters() after close()");
  self.meet();
  if (const auto failure = self.setup->status->failure())
    throw Error(failure->code, failure->message);
  std::vector<ParameterInfo> out;
  for (const layout::ParameterSpec& spec :
       actors::value_or_throw(self.setup->side.worker_parameters(self.setup->catalogue, self.setup->worker)))
    out.push_back({spec.name, spec.dtype, spec.full_shape, spec.local_shape});
  return out;
}

void Subscriber::bind(BoundTensor tensor) {
  Implementation& self = *implementation_;
  self.before_start(fmt::format("bind('{}')", tensor.name));
  for (const actors::HeldTensor& held : self.setup->tensors)
    if (held.tensor.name == tensor.name)
      throw Error(Code::invalid_argument, fmt::format("bind('{}'): bound already", tensor.name));
  actors::require_host_memory(fmt::format("bind('{}')", tensor.name), tensor.data);
  actors::HeldTensor held;
  held.tensor = {std::move(tensor.name), tensor.dtype, std::move(tensor.shape), std::move(tensor.strides)};
  held.data = static_cast<std::byte*>(tensor.data);
  self.setup->tensors.push_back(std::move(held));
}

void Subscriber::on_pause(std::function<void()> hook) {
  implementation_->for_hooks("on_pause()");
  implementation_->setup->on_pause = std::move(hook);
}

void Subscriber::on_commit(std::function<void(Version, std::span<const Change>)> hook) {
  implementation_->for_hooks("on_commit()");
  implementation_->setup->on_commit = std::move(hook);
}

void Subscriber::on_resume(std::function<void(Version)> hook) {
  implementation_->for_hooks("on_resume()");
  implementation_->setup->on_resume = std::move(hook);
}

void Subscriber::start() {
  Implementation& self = *implementation_;
  self.before_start("start()");
  self.meet();
  self.started = true;
  if (self.setup->engine)
    self.setup->on_commit = [engine = self.setup->engine](Version, std::span<const Change> changes) {
      engine->served({changes.begin(), changes.end()});
    };
  self.setup->on_commit = actors::counted(self.setup->metrics, std::move(self.setup->on_commit));
  throw_failure(actors::ask<actors::ConnectRequest>(self.supervisor));
}

std::optional<Version> Subscriber::poll() {
  if (const auto version = implementation_->engine("poll()").poll())
    return version;
  if (const auto failure = implementation_->setup->status->failure())
    throw Error(failure->code, failure->message);
  return std::nullopt;
}

std::vector<Change> Subscriber::commit(Version version) {
  actors::EngineLoop& engine = implementation_->engine(fmt::format("commit({})", version));
  throw_failure(engine.commit(version));
  caf::anon_send(implementation_->supervisor, actors::EngineCommits{});
  return actors::value_or_throw(engine.wait());
}

Version Subscriber::version() const noexcept {
  // The supervisor makes `work` before start() returns; before that there is nothing to serve.
  return implementation_->started && implementation_->setup->work
           ? implementation_->setup->work->version.load(std::memory_order_acquire)
           : 0;
}

WorkerStatus Subscriber::status() const {
  WorkerStatus status;
  const Implementation& self = *implementation_;
  if (!self.started || !self.setup->work)
    return status;
  const actors::Standing::Facts facts = self.setup->work->standing.get();
  status.version = facts.version;
  status.session = facts.session;
  status.state = sync::to_string(facts.state);
  const actors::SessionStatus& session = *self.setup->status;
  const auto failure = session.failure();
  const auto gone = failure ? failure : session.parted();
  if (gone)
    status.disconnected_why = gone->message;
  status.connected = !gone && !session.ended() && !self.closed;
  return status;
}

void Subscriber::wait() {
  check_no_hook("wait()");
  if (!implementation_->started)
    throw Error(Code::call_order, "wait() before start()");
  const actors::SessionStatus& status = *implementation_->setup->status;
  status.wait();
  if (const auto failure = status.failure())
    throw Error(failure->code, failure->message);
}

void Subscriber::close() {
  if (!implementation_ || implementation_->closed)
    return;
  check_no_hook("close()");
  Implementation& self = *implementation_;
  self.closed = true;
  if (self.supervisor) {
    (void)actors::ask<actors::CloseRequest>(self.supervisor);
    self.supervisor = nullptr;
  }
  self.setup->status->end(); // who waits need not any more
  self.setup->networks->shutdown();
  const auto traced = self.setup->recorder->write(
    telemetry::trace_path(self.setup->topology.telemetry.trace, fmt::format("worker {}", self.setup->worker)));
  self.system.reset();
  self.endpoint.reset();
  throw_failure(traced);
}

} // namespace deltawire
