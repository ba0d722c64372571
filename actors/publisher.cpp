// Publisher and Ticket over the trainer's supervisor. See include/deltawire/deltawire.hpp for the contract.
#include "deltawire/deltawire.hpp"

#include "actors/observer.hpp"
#include "actors/opening.hpp"
#include "actors/session.hpp"
#include "actors/system.hpp"
#include "actors/trainer_supervisor.hpp"
#include "device/gpus.hpp"
#include "layout/owner.hpp"
#include "sync/update_parts.hpp"

#include "telemetry/log.hpp"

#include <algorithm>

namespace deltawire {
namespace {

using actors::throw_failure;

wire::Span or_empty(const wire::Span& span) {
  return span.begin <= span.end ? span : wire::Span{0, 0};
}

double seconds(const wire::Span& span) {
  const wire::Span valid = or_empty(span);
  return static_cast<double>(valid.end - valid.begin) * 1e-9;
}

Outcome outcome_of(const wire::DeliveryReport& report) {
  Outcome outcome;
  outcome.version = report.version;
  outcome.base = report.base;
  outcome.step = report.step;
  outcome.seed = report.kind == wire::DeliveryKind::seed;
  outcome.committed = report.committed != 0;
  outcome.error = report.error;
  outcome.error_message = report.error_message;
  outcome.slots = report.counts.slots;
  outcome.elements = report.counts.elements;
  outcome.changed = report.counts.changed;
  outcome.wire_bytes = report.counts.wire_bytes;
  outcome.gather_bytes = report.counts.gather_bytes;
  outcome.flushes = report.counts.flushes;
  outcome.rounds = report.counts.rounds;
  outcome.captured_s = static_cast<double>(report.times.captured_ns) * 1e-9;
  outcome.committed_s = static_cast<double>(report.times.committed_ns) * 1e-9;
  outcome.pause_s = static_cast<double>(report.times.pause_ns) * 1e-9;
  outcome.phase_s = {seconds(report.times.diff), seconds(report.times.gather), seconds(report.times.assemble),
                     seconds(report.times.send), seconds(report.times.stage),  seconds(report.times.commit)};
  outcome.high_water = {report.high_water.differ, report.high_water.gather_queue, report.high_water.flush_bucket,
                        report.high_water.applier};
  for (const wire::WorkerReport& worker : report.workers)
    outcome.workers.push_back({worker.index, worker.version, worker.state, worker.bytes, worker.digest_ok != 0,
                               static_cast<double>(worker.pause_ns) * 1e-9, worker.error, worker.flushes, worker.pieces,
                               worker.delivery, worker.matched != 0, worker.audited != 0});
  return outcome;
}

} // namespace

void set_log(std::function<void(std::string_view line)> sink) {
  telemetry::set_log(std::move(sink));
}

std::string_view library_version() noexcept {
  return DELTAWIRE_VERSION;
}

namespace {

/// What the embedding program's rule says of a tensor, in the layout's terms.
std::optional<std::vector<layout::ExportedSlot>> exported_by(const ExportRule& rule,
                                                             const ExportedParameter& parameter) {
  std::optional<std::vector<ExportedSlot>> told;
  try {
    told = rule(parameter);
  } catch (const std::exception& thrown) { // the facade throws Error and nothing else
    throw Error(Code::invalid_argument, fmt::format("rank {}: the export rule threw at parameter '{}': {}",
                                                    parameter.rank, parameter.name, thrown.what()));
  }
  if (!told)
    return std::nullopt;
  std::vector<layout::ExportedSlot> slots;
  for (ExportedSlot& slot : *told) {
    layout::ExportedSlot& made = slots.emplace_back();
    made.name = std::move(slot.name);
    made.shape = std::move(slot.shape);
    made.blocks.reserve(slot.blocks.size());
    for (ExportedBlock& block : slot.blocks)
      made.blocks.push_back({std::move(block.begin), std::move(block.extents), std::move(block.local_strides),
                             block.local_offset, std::move(block.steps)});
  }
  return slots;
}

} // namespace

struct Ticket::State {
  std::shared_ptr<actors::TicketPromise> promise;
};

Ticket::Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}

Version Ticket::version() const noexcept {
  return state_->promise->version;
}

void Ticket::captured() {
  state_->promise->wait_captured();
}

Outcome Ticket::wait() {
  Outcome outcome = outcome_of(state_->promise->wait_report());
  outcome.warnings = state_->promise->warnings();
  return outcome;
}

struct Publisher::Implementation {
  std::shared_ptr<caf::actor_system> system; // first: outlives every handle below
  std::shared_ptr<actors::TrainerSetup> setup;
  std::shared_ptr<actors::RankObserver> observer;
  std::uint32_t metrics_index = 0;
  actors::TrainerSupervisorActor supervisor;
  bool connected = false;
  bool closed = false;
  ExportRule export_rule; ///< until connect()
  Version version = 0;
  std::vector<std::shared_ptr<actors::TicketPromise>> tickets; ///< not known to be over
  std::vector<std::string> names;                              ///< of the parameters, once connected
  std::vector<bool> captured;                                  ///< by parameter: some update was finished with it
  std::shared_ptr<Update::State> open;                         ///< the update in parts that is not finished
  std::unique_ptr<device::Stream> meeting;                     ///< with the caller's streams, from the first on

  void check(std::string_view call) const;
  [[nodiscard]] std::shared_ptr<actors::TicketPromise> start(std::uint64_t step, bool in_parts,
                                                             std::optional<void*> after = {});
  [[nodiscard]] std::shared_ptr<device::Event> met(void* stream);
  [[nodiscard]] std::optional<int> gpu_of(const std::string& call, const layout::LocalTensor& tensor,
                                          const void* data) const;
  [[nodiscard]] std::string owner_of(std::uint32_t slot, std::uint64_t position) const;
};

struct Update::State {
  Publisher::Implementation* publisher = nullptr; ///< null: finished, aborted, or the publisher is closed
  std::shared_ptr<actors::TicketPromise> promise;
  sync::UpdateParts parts;

  [[nodiscard]] Publisher::Implementation& open(std::string_view call) const {
    if (publisher == nullptr)
      throw Error(Code::call_order, fmt::format("{} after the end of the update to version {}: it was finished, or its "
                                                "publisher closed",
                                                call, promise->version));
    publisher->check(call);
    return *publisher;
  }

  void say(actors::UpdatePart::Kind kind, std::vector<std::uint32_t> parameters = {},
           std::shared_ptr<const sync::CaptureParts> captured = nullptr) const {
    caf::anon_send(publisher->supervisor,
                   actors::UpdatePart{promise->version, kind, std::move(parameters), std::move(captured)});
  }

  void end() {
    publisher->open.reset();
    publisher = nullptr;
  }
};

Publisher::Publisher(std::unique_ptr<Implementation> implementation) : implementation_(std::move(implementation)) {}
Publisher::Publisher(Publisher&&) noexcept = default;

Publisher& Publisher::operator=(Publisher&& other) noexcept {
  const Publisher ended(std::move(*this)); // closes what this one had
  implementation_ = std::move(other.implementation_);
  return *this;
}

Publisher::~Publisher() {
  try {
    close();
  } catch (const Error&) { // only a trace file that could not be written: everything is released
  }
}

Publisher Publisher::open(const std::string& topology, TrainerOptions options) {
  auto setup = std::make_shared<actors::TrainerSetup>();
  setup->topology = actors::value_or_throw(config::load(topology, options.overrides));
  setup->side = actors::value_or_throw(layout::Side::compile(setup->topology.trainer, layout::Side::Role::trainer));
  const auto ranks = static_cast<std::uint32_t>(setup->side.mesh().size());
  if (options.rank) {
    setup->rank = *options.rank;
    setup->world = options.world.value_or(ranks);
  } else {
    const config::Seat seat = actors::value_or_throw(config::seat_from_environment(actors::environment()));
    setup->rank = seat.rank;
    setup->world = options.world.value_or(seat.world);
  }
  if (setup->world != ranks)
    throw Error(Code::invalid_argument,
                fmt::format("{}: trainer.mesh has {} ranks, the job has {}", topology, ranks, setup->world));
  if (setup->rank >= ranks)
    throw Error(Code::invalid_argument,
                fmt::format("{}: rank {} of a trainer.mesh of {} ranks", topology, setup->rank, ranks));
  setup->workers = static_cast<std::uint32_t>(setup->topology.worker.mesh.size());
  setup->workers_per_replica = static_cast<std::uint32_t>(setup->topology.workers_per_replica());
  setup->master = actors::master_address(setup->topology);
  setup->listening_socket = options.listening_socket;
  const config::Actors& settings = setup->topology.actors;
  setup->networks = actors::value_or_throw(actors::Networks::make(
    setup->topology,
    {settings.gather_queue.transport, setup->rank == 0 ? settings.sender.transport : settings.gather_queue.transport}));
  setup->status = std::make_shared<actors::SessionStatus>();
  setup->recorder = actors::make_recorder(setup->topology, fmt::format("rank {}", setup->rank));
  setup->metrics = std::make_shared<telemetry::Registry>(telemetry::Labels{{"rank", std::to_string(setup->rank)}});
  auto implementation = std::make_unique<Implementation>();
  implementation->metrics_index = options.metrics_index.value_or(setup->rank);
  implementation->setup = std::move(setup);
  return Publisher(std::move(implementation));
}

std::uint32_t Publisher::rank() const noexcept {
  return implementation_->setup->rank;
}

std::uint32_t Publisher::world() const noexcept {
  return implementation_->setup->world;
}

std::vector<std::int64_t> Publisher::local_shape(const std::string& name,
                                                 const std::vector<std::int64_t>& full_shape) const {
  const std::uint32_t rank = implementation_->setup->rank;
  layout::Shard shard = actors::value_or_throw(implementation_->setup->side.shard(name, full_shape, rank));
  if (!shard.held)
    throw Error(Code::invalid_argument,
                fmt::format("rank {} has no parameter '{}': `on` of its placement leaves the rank out", rank, name));
  return std::move(shard.local_shape);
}

/// The GPU whose memory it is; nothing: the host's. Throws where a session cannot read it.
std::optional<int> Publisher::Implementation::gpu_of(const std::string& call, const layout::LocalTensor& tensor,
                                                     const void* data) const {
  const std::optional<int> gpu = device::gpus()->index_of(data);
  if (!gpu)
    return std::nullopt;
  if (const auto opened = device::gpus()->open(*gpu); !opened)
    throw Error(opened.error().code,
                fmt::format("{}: its memory is of GPU {}: {}", call, *gpu, opened.error().message));
  for (const actors::HeldTensor& held : setup->tensors)
    if (held.gpu && held.gpu != gpu && held.tensor.name != tensor.name)
      throw Error(Code::unsupported, fmt::format("{}: its memory is of GPU {}, and that of '{}' is of GPU {}: a rank's "
                                                 "parameters are on one GPU and on the host",
                                                 call, *gpu, held.tensor.name, *held.gpu));
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(tensor.dtype) != 0)
    throw Error(Code::invalid_argument, fmt::format("{}: GPU memory of {} begins at a multiple of {} bytes", call,
                                                    to_string(tensor.dtype), size_of(tensor.dtype)));
  return gpu;
}

void Publisher::add(Tensor tensor) {
  Implementation& self = *implementation_;
  if (self.connected || self.closed)
    throw Error(Code::call_order, fmt::format("add('{}') after connect(): parameters are agreed once", tensor.name));
  for (const actors::HeldTensor& held : self.setup->tensors)
    if (held.tensor.name == tensor.name)
      throw Error(Code::invalid_argument, fmt::format("add('{}'): added already", tensor.name));
  actors::HeldTensor held;
  held.tensor = {std::move(tensor.name), tensor.dtype, std::move(tensor.full_shape), std::move(tensor.strides), {}};
  if (tensor.flat_begin.has_value() != tensor.flat_end.has_value())
    throw Error(Code::invalid_argument,
                fmt::format("add('{}'): flat_begin and flat_end go together", held.tensor.name));
  if (tensor.flat_begin)
    held.tensor.flat = layout::FlatRange{*tensor.flat_begin, *tensor.flat_end};
  held.gpu = self.gpu_of(fmt::format("add('{}')", held.tensor.name), held.tensor, tensor.data);
  // Only read: the trainer's side has no writer.
  held.data = const_cast<std::byte*>(static_cast<const std::byte*>(tensor.data));
  self.setup->tensors.push_back(std::move(held));
}

void Publisher::export_with(ExportRule rule) {
  Implementation& self = *implementation_;
  if (self.connected || self.closed)
    throw Error(Code::call_order, "export_with() after connect(): parameters are agreed once");
  if (self.export_rule)
    throw Error(Code::call_order, "export_with() twice: one rule answers for all parameters");
  if (!rule)
    throw Error(Code::invalid_argument, "export_with(): the rule is empty");
  self.export_rule = std::move(rule);
}

void Publisher::connect() {
  Implementation& self = *implementation_;
  if (self.connected || self.closed)
    throw Error(Code::call_order, "connect() twice or after close()");
  const config::Actors& settings = self.setup->topology.actors;
  const bool adopted = self.setup->listening_socket >= 0;
  actors::require_port(self.setup->master, settings.gather_queue.transport, adopted);
  if (self.setup->rank == 0)
    actors::require_port(self.setup->master, settings.sender.transport, adopted);
  if (self.export_rule)
    for (actors::HeldTensor& held : self.setup->tensors) {
      layout::LocalTensor& tensor = held.tensor;
      tensor.exported = exported_by(self.export_rule, {tensor.name, tensor.dtype, tensor.shape,
                                                       local_shape(tensor.name, tensor.shape), rank(), world()});
    }
  self.export_rule = nullptr;
  self.connected = true;
  self.observer = std::make_shared<actors::RankObserver>(self.setup->rank, self.setup->metrics);
  actors::throw_failure(self.observer->serve(self.setup->topology.telemetry.prometheus, self.metrics_index));
  self.system = actors::shared_system();
  self.supervisor = actors::spawn_from_outside(*self.system, actors::trainer_supervisor, self.setup);
  throw_failure(actors::ask<actors::ConnectRequest>(self.supervisor));
  self.observer->connected(*self.setup->work, settings);
  for (const actors::HeldTensor& held : self.setup->tensors)
    self.names.push_back(held.tensor.name);
  self.captured.resize(self.names.size());
}

void Publisher::Implementation::check(std::string_view call) const {
  if (!connected || closed)
    throw Error(Code::call_order, fmt::format("{} before connect() or after close()", call));
  if (const auto failure = setup->status->failure())
    throw Error(failure->code, failure->message);
  if (setup->status->ended())
    throw Error(Code::call_order, fmt::format("{} after rank 0 (the root) closed the session", call));
}

/// What a stream of the caller's has been given to do so far, on the rank's GPU; null where that is nothing to us.
std::shared_ptr<device::Event> Publisher::Implementation::met(void* stream) {
  const auto or_throw = [&](const Result<void>& result) {
    if (!result)
      throw Error(result.error().code, fmt::format("publish(): `after`: {}", result.error().message));
  };
  const std::shared_ptr<actors::RankGpu>& gpu = setup->work->gpu;
  if (!gpu) {
    if (setup->work->blocks.empty())
      return nullptr; // nothing will be read
    throw Error(Code::invalid_argument, fmt::format("publish(): `after` is a stream of a GPU, and no parameter of rank "
                                                    "{} is on one: wait for the stream before publish()",
                                                    setup->rank));
  }
  if (!meeting)
    meeting = actors::value_or_throw(gpu->gpu->open_stream());
  std::shared_ptr<device::Event> event = actors::value_or_throw(gpu->gpu->make_event());
  or_throw(meeting->wait_for_foreign(stream));
  or_throw(meeting->record(*event));
  return event;
}

std::shared_ptr<actors::TicketPromise> Publisher::Implementation::start(std::uint64_t step, bool in_parts,
                                                                        std::optional<void*> after) {
  const std::string_view call = in_parts ? "begin()" : "publish()";
  check(call);
  if (open)
    throw Error(Code::call_order, fmt::format("{} while the update to version {} is open: finish() it, or leave the "
                                              "scope of its Update",
                                              call, open->promise->version));
  auto promise = std::make_shared<actors::TicketPromise>();
  if (after)
    promise->after = met(*after);
  promise->version = ++version;
  promise->step = step;
  promise->in_parts = in_parts;
  promise->published_ns = telemetry::now_ns();
  promise->observe = [seen = observer](const wire::DeliveryReport& report) { return seen->update_over(report); };
  tickets.push_back(promise);
  if (tickets.size() > 4)
    tickets.erase(tickets.begin()); // at most two run at a time; older ones are over
  caf::anon_send(supervisor, actors::PublishRequest{promise});
  return promise;
}

Outcome Publisher::audit() {
  Implementation& self = *implementation_;
  self.check("audit()");
  if (self.open)
    throw Error(Code::call_order,
                fmt::format("audit() while the update to version {} is open: finish() it, or leave the "
                            "scope of its Update",
                            self.open->promise->version));
  if (self.version == 0)
    throw Error(Code::call_order, "audit() before the first publish(): there is nothing to compare with");
  for (const auto& ticket : self.tickets)
    (void)ticket->wait_report();
  auto promise = std::make_shared<actors::TicketPromise>();
  promise->version = self.version;
  promise->published_ns = telemetry::now_ns();
  caf::anon_send(self.supervisor, actors::AuditRequest{promise});
  return outcome_of(promise->wait_report());
}

/// In words, for a message.
std::string Publisher::Implementation::owner_of(std::uint32_t slot, std::uint64_t position) const {
  std::vector<layout::LocalTensor> tensors;
  for (const actors::HeldTensor& held : setup->tensors)
    tensors.push_back(held.tensor);
  const auto owner = layout::owner_of(setup->side, tensors, setup->world, setup->work->slots[slot],
                                      static_cast<layout::Index>(position));
  return owner ? fmt::format("rank {}", *owner) : "another rank";
}

Ticket Publisher::publish(std::uint64_t step, PublishOptions options) {
  Implementation& self = *implementation_;
  auto promise = self.start(step, false, options.after);
  self.captured.assign(self.names.size(), true);
  return Ticket(std::make_shared<Ticket::State>(Ticket::State{std::move(promise)}));
}

Update Publisher::begin(std::uint64_t step) {
  Implementation& self = *implementation_;
  auto promise = self.start(step, true);
  const actors::RankWork& work = *self.setup->work;
  sync::UpdateParts parts(promise->version, {self.setup->rank, self.names, work.slots, work.blocks}, self.captured);
  self.open = std::make_shared<Update::State>(Update::State{&self, std::move(promise), std::move(parts)});
  return Update(self.open);
}

Update::Update(std::shared_ptr<State> state) : state_(std::move(state)) {}
Update::Update(Update&&) noexcept = default;

Update& Update::operator=(Update&& other) noexcept {
  if (this != &other) {
    abort();
    state_ = std::move(other.state_);
  }
  return *this;
}

Update::~Update() {
  abort();
}

Version Update::version() const noexcept {
  return state_->promise->version;
}

void Update::send(const std::vector<std::string>& patterns) {
  (void)state_->open("send()");
  state_->say(actors::UpdatePart::Kind::sent, actors::value_or_throw(state_->parts.send(patterns)));
}

void Update::patch(const Patch& patch) {
  const Publisher::Implementation& publisher = state_->open("patch()");
  throw_failure(state_->parts.patch(
    {patch.slot, patch.indices, patch.dtype, patch.values},
    [&](std::uint32_t slot, std::uint64_t position) { return publisher.owner_of(slot, position); }));
}

Ticket Update::finish() {
  Publisher::Implementation& publisher = state_->open("finish()");
  auto captured = std::make_shared<const sync::CaptureParts>(actors::value_or_throw(state_->parts.finish()));
  state_->say(actors::UpdatePart::Kind::finished, {}, std::move(captured));
  publisher.captured = state_->parts.captured();
  state_->end();
  return Ticket(std::make_shared<Ticket::State>(Ticket::State{state_->promise}));
}

void Update::abort() noexcept {
  if (!state_ || state_->publisher == nullptr)
    return;
  state_->say(actors::UpdatePart::Kind::aborted);
  state_->promise->wait_captured();
  state_->end();
}

void Publisher::rebind(const std::string& name, const void* data) {
  Implementation& self = *implementation_;
  std::vector<actors::HeldTensor>& tensors = self.setup->tensors;
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const actors::HeldTensor& held) { return held.tensor.name == name; });
  if (found == tensors.end())
    throw Error(Code::invalid_argument, fmt::format("rebind('{}'): no such tensor was added", name));
  const auto* bytes = static_cast<const std::byte*>(data);
  if (bytes == nullptr && found->data != nullptr)
    throw Error(Code::invalid_argument, fmt::format("rebind('{}'): data is null", name));
  const std::optional<int> gpu = self.gpu_of(fmt::format("rebind('{}')", name), found->tensor, data);
  if (self.connected && bytes != nullptr && found->data != nullptr && gpu != found->gpu) {
    const auto home = [](std::optional<int> index) {
      return index ? fmt::format("GPU {}", *index) : std::string("the host");
    };
    throw Error(Code::unsupported, fmt::format("rebind('{}'): its memory is of {}, and was of {} when the session was "
                                               "agreed: it stays there",
                                               name, home(gpu), home(found->gpu)));
  }
  if (self.open && self.open->parts.sent(static_cast<std::uint32_t>(found - tensors.begin())))
    throw Error(Code::call_order, fmt::format("rebind('{}') after send() of it in the update to version {}: its memory "
                                              "may be read until captured()",
                                              name, self.open->promise->version));
  found->data = const_cast<std::byte*>(bytes);
  if (!self.connected)
    found->gpu = gpu;
  if (self.setup->work)
    self.setup->work->memory.parameters[static_cast<std::size_t>(found - tensors.begin())] = bytes;
}

void Publisher::close() {
  if (!implementation_ || implementation_->closed)
    return;
  Implementation& self = *implementation_;
  if (self.open)
    Update(self.open).abort();
  self.closed = true;
  if (self.supervisor) {
    for (const auto& ticket : self.tickets) {
      ticket->wait_captured();
      (void)ticket->wait_report();
    }
    (void)actors::ask<actors::CloseRequest>(self.supervisor);
    self.supervisor = nullptr;
  }
  self.meeting.reset();
  self.setup->networks->shutdown();
  const auto traced = self.setup->recorder->write(
    telemetry::trace_path(self.setup->topology.telemetry.trace, fmt::format("rank {}", self.setup->rank)));
  self.setup->work.reset();
  self.system.reset();
  if (self.observer)
    self.observer->end();
  throw_failure(traced);
}

} // namespace deltawire
