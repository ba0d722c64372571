#include "testing.hpp"

#include "delta/piece.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

namespace deltawire::test {
namespace {

using namespace deltawire::actors;

caf::actor_system_config& configure(caf::actor_system_config& config) {
  config.add_message_types<caf::id_block::deltawire_messages>();
  config.set("scheduler.policy", caf::atom("testing"));
  return config;
}

template <class Message>
auto record(Log& log) {
  return [&log](const Message& message) { log.add(message); };
}

} // namespace

TestSystem::TestSystem()
  : system_(configure(config_)), scheduler_(&dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {}

TestSystem::~TestSystem() {
  for (const caf::actor& actor : spawned_)
    caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  run();
  spawned_.clear();
}

void TestSystem::advance(std::chrono::nanoseconds time) {
  scheduler_->advance_time(time);
  run();
}

std::shared_ptr<Colleagues> probes(TestSystem& system, Log& log) {
  auto colleagues = std::make_shared<Colleagues>();
  colleagues->supervisor = system.spawn([&log]() -> TrainerSupervisorActor::behavior_type {
    return {record<ConnectRequest>(log), record<PublishRequest>(log),  record<CloseRequest>(log),
            record<PortOpened>(log),     record<FrameArrived>(log),    record<PortClosed>(log),
            record<CaptureDone>(log),    record<UpdateAbandoned>(log), record<UpdatePart>(log),
            record<AuditRequest>(log),   record<SnapshotAudited>(log), record<CaptureAborted>(log),
            record<UpdateOver>(log),     record<FailureReport>(log),   record<Tick>(log)};
  });
  colleagues->snapshotter = system.spawn([&log]() -> SnapshotterActor::behavior_type {
    return {
      record<CaptureRequest>(log), record<UpdatePart>(log),  record<CaptureCancel>(log),  record<UpdatePlanned>(log),
      record<GatherDropped>(log),  record<ChunkWorked>(log), record<CreditReturned>(log), record<SnapshotAudit>(log),
      record<Meet>(log),           record<Stop>(log)};
  });
  colleagues->differs.push_back(system.spawn([&log]() -> DifferActor::behavior_type {
    return {record<ChunkTask>(log), record<Meet>(log), record<Stop>(log)};
  }));
  colleagues->gather_queue = system.spawn([&log]() -> GatherQueueActor::behavior_type {
    return {record<ChunkEncoded>(log),  record<CaptureReported>(log),
            record<CatchUpBegun>(log),  record<UpdateAbandoned>(log),
            record<FrameArrived>(log),  record<ShareSent>(log),
            record<GatherBegin>(log),   record<GatherDrop>(log),
            record<RoundConsumed>(log), record<Tick>(log),
            record<Meet>(log),          record<Stop>(log)};
  });
  colleagues->flush_bucket = system.spawn([&log]() -> FlushBucketActor::behavior_type {
    return {record<GatherBegin>(log),
            record<RoundGathered>(log),
            record<WindowGathered>(log),
            record<GatherComplete>(log),
            record<FlushCredit>(log),
            record<Meet>(log),
            record<Stop>(log)};
  });
  colleagues->sender = system.spawn([&log]() -> SenderActor::behavior_type {
    return {record<UpdateBegin>(log),    record<GatherFinished>(log), record<FlushSealed>(log),
            record<DeliverySealed>(log), record<FrameArrived>(log),   record<PortClosed>(log),
            record<WorkersMet>(log),     record<WorkerJoined>(log),   record<WorkerSilent>(log),
            record<DeliveryAbort>(log),  record<UpdateAbandon>(log),  record<UpdateAbort>(log),
            record<CaptureKnown>(log),   record<AuditBegin>(log),     record<SnapshotAudited>(log),
            record<Tick>(log),           record<Meet>(log),           record<Stop>(log)};
  });
  return colleagues;
}

caf::actor failure_probe(TestSystem& system, Log& log) {
  return system.spawn([&log]() -> caf::behavior { return {record<FailureReport>(log), record<PortClosed>(log)}; });
}

Peer::Peer(std::shared_ptr<Routes> routes, wire::Role role, std::uint32_t index, wire::Channel channel)
  : network_(transport::make_inproc_network(wire::framing())) {
  listener_ = network_
                ->listen("actor-test:0",
                         [this](std::shared_ptr<transport::Connection> connection) { far_ = std::move(connection); })
                .value();
  network_->connect(listener_->address(), std::chrono::steady_clock::now() + std::chrono::seconds(5),
                    [&](Result<std::shared_ptr<transport::Connection>> connected) {
                      port_ = std::make_shared<Port>(std::move(connected.value()), std::move(routes));
                    });
  transport::Handlers handlers;
  handlers.on_frame = [this](transport::Incoming&& incoming) {
    frames_.push_back({wire::read_header(std::span<const std::byte, wire::header_bytes>(incoming.header)).value(),
                       std::move(incoming.body)});
  };
  handlers.on_closed = [](const Failure&) {};
  far_->start(std::move(handlers));
  port_->identify(role, index, channel);
  port_->start();
}

Peer::~Peer() {
  network_->shutdown(Failure{Code::call_order, "the test is over"});
}

void Peer::say_data(wire::FrameHeader header, Bytes payload, bool corrupt) {
  header.payload_bytes = payload.size();
  header.payload_checksum = wire::checksum(payload);
  if (corrupt)
    payload.back() ^= std::byte{1};
  const wire::HeaderBytes bytes = wire::write_header(header);
  transport::Outgoing frame;
  frame.header.assign(bytes.begin(), bytes.end());
  frame.body = std::make_shared<const Bytes>(std::move(payload));
  far_->send(std::move(frame));
}

std::vector<Peer::Frame> Peer::take(std::uint16_t type) {
  std::vector<Frame> taken;
  for (Frame& frame : frames_)
    if (frame.header.type == type)
      taken.push_back(std::move(frame));
  std::erase_if(frames_, [type](const Frame& frame) { return frame.header.type == type; });
  return taken;
}

layout::Block flat_block(std::uint32_t id, DType dtype, std::int64_t count, std::int64_t local_offset,
                         std::int64_t local_stride) {
  layout::Block block;
  block.id = block.slot = block.cell = id;
  block.dtype = dtype;
  block.extents = {count};
  block.local_offset = local_offset;
  block.local_strides = {local_stride};
  block.slot_strides = {1};
  return block;
}

delta::Digest digest_of(const std::vector<std::uint16_t>& values) {
  delta::Digest digest = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    digest += delta::mix(i, values[i]);
  return digest;
}

Bytes seed_piece(const layout::Block& block, const std::vector<std::uint16_t>& values) {
  delta::PieceEncoder encoder(1 << 20);
  encoder.add_values(block, 0, values.size(), reinterpret_cast<const std::byte*>(values.data()));
  return encoder.take().bytes;
}

Bytes delta_piece(const layout::Block& block, const std::vector<std::uint16_t>& positions,
                  const std::vector<std::uint16_t>& values) {
  delta::PieceEncoder encoder(1 << 20);
  encoder.start_range(block, 0, static_cast<std::uint64_t>(layout::element_count(block)));
  encoder.add_changes(0, positions, reinterpret_cast<const std::byte*>(values.data()));
  encoder.finish_range();
  return encoder.take().bytes;
}

} // namespace deltawire::test
