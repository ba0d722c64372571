// The vocabulary of the actors: every message and every typed interface, one comment a handler.
//
// Messages are plain structs that stay inside the process. Payloads travel as shared_ptr with one owner at a time: who
// receives one may change it. Nobody's message aliases tensor memory: chunks and blocks are named by number, and the
// memory behind a number is touched only by the actor that holds it just now.
#pragma once

#include "actors/caf.hpp"

#include "deltawire/error.hpp"
#include "device/gpu.hpp"
#include "result.hpp"
#include "sync/capture_walk.hpp"
#include "sync/gather.hpp"
#include "sync/root_delivery.hpp"
#include "sync/update_parts.hpp"
#include "transport/transport.hpp"
#include "wire/frame.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace deltawire::actors {

class Port;
struct TicketPromise;
using Bytes = transport::Buffer;
using SharedBytes = std::shared_ptr<Bytes>;

// Messages
// ---------------------------------------------------------------------------------------------------------------

/// A frame from a peer. Control payloads are checked already, data payloads are not (the receiver's thread does it).
struct FrameArrived {
  std::shared_ptr<Port> port;
  wire::FrameHeader header;
  SharedBytes body;
};

/// A connection was made (to the root) or accepted (by the root), or could not be made, or was turned away (by the
/// root).
struct PortOpened {
  std::shared_ptr<Port> port;
  Failure failure; ///< with port == nullptr
};

struct PortClosed {
  std::shared_ptr<Port> port;
  Failure reason;
};

/// Something this actor cannot go on with; names whom it is about.
struct FailureReport {
  Failure failure;
};

struct Colleagues;
/// The first message of every trainer actor: who works with whom.
struct Meet {
  std::shared_ptr<const Colleagues> colleagues;
};
/// Ends the actor. The last message that it handles.
struct Stop {};
/// Time to look at deadlines.
struct Tick {};

// trainer: capture
struct CaptureRequest {
  std::uint64_t version = 0;
  std::uint64_t step = 0;
  bool in_parts = false;                  ///< of what UpdatePart says, which may come before
  std::shared_ptr<device::Event> after{}; ///< weights are read once the rank's GPU has reached it; null: at once
};
/// What the caller does with an update in parts.
struct UpdatePart {
  enum class Kind : std::uint8_t { sent, finished, aborted };
  std::uint64_t version = 0;
  Kind kind = Kind::sent;
  std::vector<std::uint32_t> parameters;              ///< sent: these are final
  std::shared_ptr<const sync::CaptureParts> captured; ///< finished: all that the update holds
};
/// Captures that have not started will not: the session is over.
struct CaptureCancel {};
struct CaptureDone {
  std::uint64_t version = 0;
};
/// Read the whole snapshot again, once nothing else needs it.
struct SnapshotAudit {};
/// Which is done. On the root to the Sender, by the supervisor.
struct SnapshotAudited {
  std::uint32_t rank = 0;
  wire::AuditReport report;
};
/// What an update must bring beside its own changes. Comes before the request of the capture after it.
struct UpdatePlanned {
  wire::NextUpdate next;
};
/// A capture began while the last one was still being read (update.busy = "fold"): nothing more of that one's update
/// comes from this rank, its changes come with the next.
struct UpdateAbandoned {
  std::uint64_t version = 0;
};
struct ChunkTask {
  std::uint64_t version = 0;
  sync::CaptureWalk::HandOut hand_out;
  bool all = false;                                  ///< all values, not the changes
  bool audit = false;                                ///< no work but to read the snapshot and tell its digests
  std::uint64_t keep_logs_after = 0;                 ///< capture: older logs of the chunk go
  std::uint64_t base = 0;                            ///< catch-up: of the logs after this version
  std::shared_ptr<const sync::CaptureParts> parts{}; ///< capture: what of the chunk takes part; null: all of it
  std::shared_ptr<device::Event> after{};            ///< capture: memory is read once the rank's GPU has reached it
};
struct ChunkWorked {
  std::uint64_t version = 0;
  sync::CaptureWalk::HandOut hand_out;
  std::uint64_t changed = 0;
  std::uint64_t encoded = 0;   ///< bytes on their way to GatherQueue
  std::uint64_t log_bytes = 0; ///< of the capture's log
  bool audit = false;          ///< the chunk's digest changes are the digests of the snapshot
  bool failed = false;         ///< nothing was done, and the session was told: no more will be
  std::int64_t begin_ns = 0, end_ns = 0;
};
struct ChunkEncoded {
  std::shared_ptr<sync::EncodedChunk> chunk; ///< empty bytes when nothing changed
};
struct CreditReturned {
  std::uint64_t bytes = 0;
};
struct CaptureReported {
  wire::CaptureReport report;
};

/// A catch-up gather begins on this rank.
struct CatchUpBegun {
  std::uint64_t gather = 0;
};
/// Nobody takes the gather: what of it is not encoded yet need not be.
struct GatherDropped {
  std::uint64_t gather = 0;
};

// trainer: gather, assembly, delivery (root)
/// An update: its own changes for the workers that are up to date, then its catch-up for those that are not.
struct UpdateBegin {
  std::uint64_t version = 0;
  std::int64_t published_ns = 0;              ///< when the root's publish() was called
  std::optional<sync::DeliveryPlan> catch_up; ///< as it was planned when the last update ended
  bool abandoned = false;                     ///< a rank has folded it into the next one already
  std::optional<Failure> aborted{};           ///< a rank has left it half done: no delivery of it may begin
};
struct GatherBegin {
  std::uint64_t gather = 0;
  bool held = false; ///< to GatherQueue: for now only CaptureKnown is wanted; the gather is begun again, or dropped
};
/// Every rank has reported the version of a held gather. Its GatherFinished does not tell that again.
struct CaptureKnown {
  sync::GatherTotals totals;
  std::int64_t captured_ns = 0;
};
struct GatherDrop {
  std::uint64_t gather = 0;
};
/// A rank's share left this process.
struct ShareSent {
  std::uint64_t bytes = 0;
};
struct RoundGathered {
  std::uint64_t gather = 0;
  SharedBytes pieces;
  std::uint64_t arrow = 0; ///< of the trace; 0: none
};
struct WindowGathered {
  std::uint64_t gather = 0;
  std::uint32_t window = 0;
};
struct RoundConsumed {
  std::uint64_t bytes = 0;
};
/// To FlushBucket: every piece of the gather was handed over.
struct GatherComplete {
  std::uint64_t gather = 0;
};
/// To Sender, before the above: what was gathered, and what the ranks reported. Never lost with a delivery that failed:
/// the digests of the next one build on it.
struct GatherFinished {
  sync::GatherTotals totals;
  std::uint64_t gather_bytes = 0;
  std::int64_t captured_ns = 0; ///< when the last rank's report came in
  wire::Span gather;
};
struct FlushSealed {
  std::uint64_t gather = 0;
  std::uint64_t sequence = 0;
  struct Part {
    std::uint32_t route = 0;
    std::shared_ptr<const Bytes> payload;
    std::uint64_t pieces = 0;
  };
  std::vector<Part> parts;
};
struct FlushCredit {
  std::uint64_t gather = 0;
};
struct DeliverySealed {
  std::uint64_t gather = 0;
  std::uint64_t flushes = 0;
  wire::Span assemble;
  std::uint64_t flush_bucket_peak = 0;
};
/// The trainer's side cannot go on.
struct DeliveryAbort {
  Failure reason;
};
/// The update is folded into the next one, unless it is committed already.
struct UpdateAbandon {
  std::uint64_t version = 0;
};
/// A rank has left its capture half done. To the supervisor, which tells the Sender that the version must not exist.
struct CaptureAborted {
  std::uint64_t version = 0;
  std::uint32_t rank = 0;
};
struct UpdateAbort {
  std::uint64_t version = 0;
  Failure reason;
};
/// The ranks ask that workers and ranks read all of their memory again. Between updates only.
struct AuditBegin {
  std::int64_t asked_ns = 0; ///< when the root's audit() was called
};
/// Nothing is heard of a worker, or again.
struct WorkerSilent {
  std::uint32_t worker = 0;
  bool silent = true;
  Failure reason;
};
/// All workers have agreed: what they bring along, by worker.
struct WorkersMet {
  std::vector<wire::Agreed> standing;
  std::vector<std::shared_ptr<Port>> control, data; ///< by worker: one may have come anew since the Sender was spawned
};
/// A worker that was lost, or a new process of it, has agreed.
struct WorkerJoined {
  std::uint32_t worker = 0;
  std::shared_ptr<Port> control, data;
  wire::Agreed standing;
};
struct UpdateOver {
  wire::DeliveryReport report;
  wire::NextUpdate next;
};

// worker
/// The root is gone: nothing more comes from it, and nothing can be said to it.
struct RootLost {
  Failure why;
  bool last = false; ///< no other one will be met
  /// Called once version and status are what memory holds. `in_doubt`: what is applied was not released.
  std::function<void(bool in_doubt)> then{};
};
/// A root is there again, the same or the next one, and has sent its agreement: consent, and go on with it.
struct RootMet {
  std::shared_ptr<Port> control;
  std::uint64_t session = 0;
  std::shared_ptr<const wire::Agreement> agreement;
};
/// An engine that commits in its own loop has let go of memory for the version that waited for it.
struct EngineCommits {};

// facade to supervisor
using Answer = std::function<void(Result<void>)>;
struct ConnectRequest {
  std::shared_ptr<Answer> answer;
};
struct PublishRequest {
  std::shared_ptr<TicketPromise> ticket;
};
/// After every publish of this rank has been reported.
struct AuditRequest {
  std::shared_ptr<TicketPromise> ticket;
};
struct CloseRequest {
  std::shared_ptr<Answer> answer;
};

} // namespace deltawire::actors

CAF_BEGIN_TYPE_ID_BLOCK(deltawire_messages, first_custom_type_id)
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::FrameArrived))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::PortOpened))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::PortClosed))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::FailureReport))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::Meet))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::Stop))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::Tick))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CaptureRequest))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CaptureCancel))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CaptureDone))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::ChunkTask))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::ChunkWorked))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::ChunkEncoded))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CreditReturned))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CaptureReported))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdateBegin))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::ShareSent))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::RoundGathered))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::WindowGathered))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::RoundConsumed))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::GatherComplete))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::GatherFinished))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::FlushSealed))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::FlushCredit))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::DeliverySealed))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::DeliveryAbort))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdatePlanned))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdateAbandoned))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CatchUpBegun))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::GatherDropped))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::GatherBegin))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::GatherDrop))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdateAbandon))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::WorkerSilent))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::WorkersMet))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::WorkerJoined))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::RootLost))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::RootMet))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::EngineCommits))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdateOver))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::ConnectRequest))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::PublishRequest))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CloseRequest))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdatePart))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CaptureAborted))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::UpdateAbort))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::SnapshotAudit))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::SnapshotAudited))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::CaptureKnown))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::AuditBegin))
CAF_ADD_TYPE_ID(deltawire_messages, (deltawire::actors::AuditRequest))
CAF_END_TYPE_ID_BLOCK(deltawire_messages)

DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::FrameArrived)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::PortOpened)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::PortClosed)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::FailureReport)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::Meet)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::Stop)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::Tick)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CaptureRequest)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CaptureCancel)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CaptureDone)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::ChunkTask)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::ChunkWorked)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::ChunkEncoded)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CreditReturned)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CaptureReported)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdateBegin)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::ShareSent)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::RoundGathered)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::WindowGathered)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::RoundConsumed)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::GatherComplete)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::GatherFinished)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::FlushSealed)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::FlushCredit)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::DeliverySealed)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::DeliveryAbort)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdatePlanned)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdateAbandoned)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CatchUpBegun)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::GatherDropped)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::GatherBegin)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::GatherDrop)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdateAbandon)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::WorkerSilent)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::WorkersMet)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::WorkerJoined)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::RootLost)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::RootMet)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::EngineCommits)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdateOver)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::ConnectRequest)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::PublishRequest)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CloseRequest)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdatePart)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CaptureAborted)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::UpdateAbort)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::SnapshotAudit)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::SnapshotAudited)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::CaptureKnown)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::AuditBegin)
DELTAWIRE_LOCAL_MESSAGE(deltawire::actors::AuditRequest)

namespace deltawire::actors {

// Interfaces
// -------------------------------------------------------------------------------------------------------------

/// Compares, refreshes, encodes: one chunk a message, on its own thread or the pool's.
using DifferActor =
  caf::typed_actor<caf::reacts_to<ChunkTask>, ///< work on the chunk; answers ChunkWorked and ChunkEncoded
                   caf::reacts_to<Meet>, caf::reacts_to<Stop>>;

/// Owns snapshot and position logs; walks the chunks.
using SnapshotterActor =
  caf::typed_actor<caf::reacts_to<CaptureRequest>, ///< capture as soon as the last capture is read out of the snapshot
                   caf::reacts_to<UpdatePart>,     ///< of a capture that runs, or of a later one
                   caf::reacts_to<CaptureCancel>,  ///< forget captures that have not started, end one that is open
                   caf::reacts_to<SnapshotAudit>,  ///< read all of it again; audits of updates need no asking
                   caf::reacts_to<UpdatePlanned>,  ///< a catch-up, and which logs are needed no more
                   caf::reacts_to<GatherDropped>,  ///< encode no more of it
                   caf::reacts_to<ChunkWorked>,    ///< a Differ is done with a chunk
                   caf::reacts_to<CreditReturned>, ///< encoded bytes have left the rank
                   caf::reacts_to<Meet>, caf::reacts_to<Stop>>;

/// Owns the way from this rank to the root; on the root also the other half of it.
using GatherQueueActor =
  caf::typed_actor<caf::reacts_to<ChunkEncoded>,    ///< pieces of this rank are ready
                   caf::reacts_to<CaptureReported>, ///< this rank's capture is complete
                   caf::reacts_to<CatchUpBegun>,    ///< this rank encodes for workers that are behind
                   caf::reacts_to<UpdateAbandoned>, ///< this rank takes back what it has queued for an update
                   caf::reacts_to<FrameArrived>,    ///< Offer, CaptureReport, round (root); Grant, Drop (others)
                   caf::reacts_to<ShareSent>,       ///< a granted share has left
                   caf::reacts_to<GatherBegin>,     ///< root: gather now
                   caf::reacts_to<GatherDrop>,      ///< root: nobody takes it any more
                   caf::reacts_to<RoundConsumed>,   ///< root: FlushBucket has copied gathered bytes
                   caf::reacts_to<Tick>,            ///< root: who makes no progress?
                   caf::reacts_to<Meet>, caf::reacts_to<Stop>>;

/// Root: packs pieces into flushes.
using FlushBucketActor = caf::typed_actor<caf::reacts_to<GatherBegin>,    ///< start over, for this gather
                                          caf::reacts_to<RoundGathered>,  ///< pieces to pack
                                          caf::reacts_to<WindowGathered>, ///< no more of a window
                                          caf::reacts_to<GatherComplete>, ///< no more at all
                                          caf::reacts_to<FlushCredit>,    ///< the flush on the wire is done
                                          caf::reacts_to<Meet>, caf::reacts_to<Stop>>;

/// Root: delivers flushes to the workers, keeps the record of each.
using SenderActor =
  caf::typed_actor<caf::reacts_to<UpdateBegin>,     ///< deliver an update, to whom it fits
                   caf::reacts_to<CaptureKnown>,    ///< the digests of a version whose values nobody was sent yet
                   caf::reacts_to<AuditBegin>,      ///< have all memory read again
                   caf::reacts_to<SnapshotAudited>, ///< a rank has
                   caf::reacts_to<GatherFinished>,  ///< what the ranks reported
                   caf::reacts_to<FlushSealed>,     ///< send it once the workers are ready
                   caf::reacts_to<DeliverySealed>,  ///< the final manifest
                   caf::reacts_to<FrameArrived>,    ///< what workers answer
                   caf::reacts_to<PortClosed>,      ///< a worker is gone
                   caf::reacts_to<WorkersMet>,      ///< once, before the first update: settle what is in doubt
                   caf::reacts_to<WorkerJoined>,    ///< a worker is back, or its new process in place of the old
                   caf::reacts_to<WorkerSilent>,    ///< a worker is not heard of, or again
                   caf::reacts_to<DeliveryAbort>,   ///< the trainer cannot go on
                   caf::reacts_to<UpdateAbandon>,   ///< fold it into the next one
                   caf::reacts_to<UpdateAbort>,     ///< a rank has left it half done
                   caf::reacts_to<Tick>,            ///< deadlines
                   caf::reacts_to<Meet>, caf::reacts_to<Stop>>;

/// Worker: verifies, stages, commits into the bound memory.
using ApplierActor = caf::typed_actor<caf::reacts_to<FrameArrived>,  ///< delivery messages and flushes
                                      caf::reacts_to<RootLost>,      ///< serve on; what is applied stays in doubt
                                      caf::reacts_to<RootMet>,       ///< tell the next root how things stand
                                      caf::reacts_to<EngineCommits>, ///< go on with what waited for the engine
                                      caf::reacts_to<Stop>>;

/// Trainer rank: meets the others, wires and watches the actors above, turns failures into outcomes.
using TrainerSupervisorActor =
  caf::typed_actor<caf::reacts_to<ConnectRequest>,  ///< meet everyone and agree
                   caf::reacts_to<PublishRequest>,  ///< an update
                   caf::reacts_to<UpdatePart>,      ///< for the Snapshotter, after the update that it is a part of
                   caf::reacts_to<AuditRequest>,    ///< an audit
                   caf::reacts_to<SnapshotAudited>, ///< for the Sender, wherever that is
                   caf::reacts_to<CaptureAborted>,  ///< root: a rank has left an update half done
                   caf::reacts_to<CloseRequest>,    ///< say goodbye, stop everything
                   caf::reacts_to<PortOpened>, caf::reacts_to<FrameArrived>, caf::reacts_to<PortClosed>,
                   caf::reacts_to<CaptureDone>, caf::reacts_to<UpdateAbandoned>, caf::reacts_to<UpdateOver>,
                   caf::reacts_to<FailureReport>, caf::reacts_to<Tick>>;

/// Worker: the same on its side.
using WorkerSupervisorActor =
  caf::typed_actor<caf::reacts_to<ConnectRequest>, ///< meet the root, get the catalogue
                   caf::reacts_to<EngineCommits>,  ///< for the Applier
                   caf::reacts_to<CloseRequest>, caf::reacts_to<PortOpened>, caf::reacts_to<FrameArrived>,
                   caf::reacts_to<PortClosed>, caf::reacts_to<FailureReport>, caf::reacts_to<Tick>>;

/// The actors of one trainer rank. The root has all of them, the others neither flush_bucket nor sender.
struct Colleagues {
  TrainerSupervisorActor supervisor;
  SnapshotterActor snapshotter;
  std::vector<DifferActor> differs;
  GatherQueueActor gather_queue;
  FlushBucketActor flush_bucket;
  SenderActor sender;
};

} // namespace deltawire::actors
