// Control messages between the processes: plain structs, one frame each. Encoded by cereal into a bounded archive
// (encode.hpp); the direction and the sender are in the comment. Unknown types are an error of the sender.
#pragma once

#include "deltawire/error.hpp"
#include "layout/plan.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::wire {

enum class Role : std::uint8_t { rank = 0, worker = 1 };
enum class Channel : std::uint8_t { control = 0, data = 1 };
/// All values; the changes of one version, onto the version before it; the changes of several versions.
enum class DeliveryKind : std::uint8_t { seed = 0, delta = 1, fold = 2 };

/// First and last moment of a phase, nanoseconds since the epoch; begin > end when it never started.
struct Span {
  std::int64_t begin = 1;
  std::int64_t end = 0;
};

// Connecting
// -----------------------------------------------------------------------------------------------------------

/// peer -> root, first frame of every connection.
struct Hello {
  static constexpr std::uint16_t type = 1;
  Role role = Role::rank;
  Channel channel = Channel::control;
  std::uint32_t index = 0;       ///< rank, or global worker index
  std::uint32_t count = 0;       ///< ranks or workers the sender believes there are
  std::uint64_t incarnation = 0; ///< differs each time the process starts, or tries again
  std::uint64_t fingerprint = 0; ///< of the settings that all must share
};

/// root -> peer: the connection is accepted.
struct Welcome {
  static constexpr std::uint16_t type = 2;
  std::uint64_t session = 0;
};

/// root -> peer: not accepted, or the agreement failed; the connection closes.
struct Refused {
  static constexpr std::uint16_t type = 3;
  Code code = Code::disagreement;
  std::string message;
};

// Agreement
// ------------------------------------------------------------------------------------------------------------

/// rank -> root.
struct DeclareRank {
  static constexpr std::uint16_t type = 10;
  layout::Declaration declaration;
};

/// root -> worker, once every rank has declared.
struct Catalogue {
  static constexpr std::uint16_t type = 11;
  std::vector<layout::SlotSpec> slots;
};

/// worker -> root.
struct DeclareWorker {
  static constexpr std::uint16_t type = 12;
  layout::Declaration declaration;
};

/// root -> rank or worker: what was compiled for it.
struct Agreement {
  static constexpr std::uint16_t type = 13;
  std::vector<layout::SlotSpec> slots;
  std::vector<layout::Cell> cells;
  std::uint32_t blocks = 0;
  std::uint32_t windows = 0;
  std::vector<layout::Block> own; ///< Plan::ranks[index] or Plan::workers[index]
};

/// rank or worker -> root: ready for updates. The fields are a worker's: what it brings along from an earlier
/// connection, maybe to another trainer.
struct Agreed {
  static constexpr std::uint16_t type = 14;
  std::uint64_t session = 0;  ///< the one that counted the versions below; 0: nothing whole
  std::uint64_t version = 0;  ///< what it serves; in doubt: what an undo leads back to; 0: nothing
  std::uint64_t delivery = 0; ///< in doubt: applied, and neither released nor undone; else 0
  std::uint64_t target = 0;   ///< of that delivery

  friend bool operator==(const Agreed&, const Agreed&) = default;
};

/// root -> all: everyone has agreed, updates may begin.
struct Connected {
  static constexpr std::uint16_t type = 15;
};

// Gather (root <-> rank)
// -----------------------------------------------------------------------------------------------

/// rank -> root: the capture of a version is complete.
struct CaptureReport {
  static constexpr std::uint16_t type = 20;
  std::uint64_t version = 0;
  std::uint64_t step = 0; ///< the user's label; all ranks must agree
  DeliveryKind kind = DeliveryKind::delta;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  Span diff;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digest_changes; ///< (cell, change of the digest), non-zero only
  std::uint64_t differ_peak = 0; ///< high-water bytes of this rank's stages so far
  std::uint64_t gather_queue_peak = 0;
  std::uint8_t aborted = 0; ///< 0 or 1: the capture was left half done, so that the version never exists
};

/// rank -> root: pieces that are ready to be gathered, in walk order. Only ranks with something to say send it.
struct Offer {
  static constexpr std::uint16_t type = 21;
  std::uint64_t gather = 0; ///< 2 * version: the version's own changes; one more: its catch-up (sync/gather.hpp)
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pieces; ///< (window, bytes)
  std::uint32_t windows_complete = 0;                          ///< windows below this one have no further pieces
};

/// root -> rank: its cut of a round: the next `pieces` of what it offered, `bytes` in all, in one data frame.
struct Grant {
  static constexpr std::uint16_t type = 22;
  std::uint64_t gather = 0;
  std::uint64_t round = 0;
  std::uint32_t pieces = 0;
  std::uint64_t bytes = 0;
};

struct UpdateCounts {
  std::uint64_t slots = 0;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t wire_bytes = 0;
  std::uint64_t gather_bytes = 0;
  std::uint64_t flushes = 0;
  std::uint64_t rounds = 0;
};

struct UpdateTimes {
  std::int64_t captured_ns = 0;  ///< from publish() on the root to the last rank's capture
  std::int64_t committed_ns = 0; ///< from publish() on the root to the last release
  std::int64_t pause_ns = 0;     ///< the longest of any worker
  Span diff, gather, assemble, send, stage, commit;
};

struct HighWaterBytes {
  std::uint64_t differ = 0;
  std::uint64_t gather_queue = 0;
  std::uint64_t flush_bucket = 0;
  std::uint64_t applier = 0;
};

struct WorkerReport {
  std::uint32_t index = 0;
  std::uint64_t version = 0;
  std::string state;
  std::string delivery; ///< the kind that brought it to `version` in this update; empty: none did
  std::uint64_t bytes = 0;
  std::uint64_t flushes = 0;  ///< frames with pieces that were sent to it
  std::uint64_t pieces = 0;   ///< in these frames
  std::uint8_t digest_ok = 0; ///< 0 or 1
  std::uint8_t matched = 0;   ///< 0 or 1: what its memory held already was taken for a version
  std::uint8_t audited = 0;   ///< 0 or 1: all of its memory was read again, and is right
  std::int64_t pause_ns = 0;
  std::string error;
};

/// root -> rank: how the update to a version ended, or an audit that the ranks asked for.
struct DeliveryReport {
  static constexpr std::uint16_t type = 23;
  std::uint8_t of_audit = 0; ///< 0 or 1
  std::uint64_t version = 0;
  std::uint64_t base = 0;
  std::uint64_t step = 0;
  DeliveryKind kind = DeliveryKind::delta;
  std::uint8_t committed = 0;  ///< 0 or 1
  Code error = Code::internal; ///< meaningful when error_message is not empty
  std::string error_message;
  UpdateCounts counts;
  UpdateTimes times;
  HighWaterBytes high_water;
  std::vector<WorkerReport> workers;
};

/// root -> rank: nothing more of a gather will be taken: forget its pieces. A share that was granted and is not on its
/// way yet is answered by an empty round.
struct Drop {
  static constexpr std::uint16_t type = 24;
  std::uint64_t gather = 0;
};

/// root -> rank, before the report of version - 1: what the update to `version` brings beside its own changes, and
/// which logs may still be needed.
struct NextUpdate {
  static constexpr std::uint16_t type = 25;
  std::uint64_t version = 0;
  std::uint8_t catch_up = 0;              ///< 0 or 1: a second gather, for workers that are behind
  DeliveryKind kind = DeliveryKind::fold; ///< fold from `base`, or seed
  std::uint64_t base = 0;                 ///< the oldest version that is brought up
  std::uint64_t keep_logs_after = 0;      ///< logs of this version and older ones are needed no more
};

/// rank -> root: publish() was called again: give up the update to `version`, the next one brings its changes too
/// (update.busy = "fold").
struct Abandon {
  static constexpr std::uint16_t type = 26;
  std::uint64_t version = 0;
};

/// rank -> root: the whole snapshot was read again and compared with the digests that captures have added up.
struct AuditReport {
  static constexpr std::uint16_t type = 27;
  std::uint64_t audit = 0;   ///< counts from 1; every rank has the same ones
  std::uint64_t version = 0; ///< of the snapshot
  std::string error;         ///< which rank, slot and cell is wrong; empty: none
};

// Delivery (root <-> worker)
// -------------------------------------------------------------------------------------------

/// root -> worker.
struct Begin {
  static constexpr std::uint16_t type = 30;
  std::uint64_t delivery = 0;
  DeliveryKind kind = DeliveryKind::seed;
  std::uint64_t base = 0; ///< version the worker must have (0 for a seed; a fold: this one or a later one)
  std::uint64_t target = 0;
};

/// worker -> root: ready for the delivery's frames.
struct Ready {
  static constexpr std::uint16_t type = 31;
  std::uint64_t delivery = 0;
  std::uint64_t version = 0; ///< what it serves
};

/// worker -> root: the credit of a flush: checked, staged, its buffer free on the wire's side.
struct FlushStaged {
  static constexpr std::uint16_t type = 32;
  std::uint64_t delivery = 0;
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0; ///< payload bytes received
};

/// root -> worker: the final manifest: everything was sent.
struct Seal {
  static constexpr std::uint16_t type = 33;
  std::uint64_t delivery = 0;
  std::uint64_t flushes = 0;
  std::uint64_t bytes = 0; ///< payload bytes of all flushes
  std::vector<std::pair<std::uint32_t, std::uint64_t>>
    digests; ///< (cell, digest at target) of the cells that changed; all for a seed
};

/// worker -> root: everything is here and its cells will have the right digests.
struct Staged {
  static constexpr std::uint16_t type = 34;
  std::uint64_t delivery = 0;
  std::uint64_t bytes = 0;
};

/// root -> worker: the version is committed.
struct Commit {
  static constexpr std::uint16_t type = 35;
  std::uint64_t delivery = 0;
};

/// worker -> root: memory holds the version; digests read back are right.
struct Applied {
  static constexpr std::uint16_t type = 36;
  std::uint64_t delivery = 0;
  std::uint64_t version = 0;
  std::uint64_t elements = 0; ///< written in bound memory
  /// (cell, digest) as read back from memory, of the manifest's cells, ascending; a cell once for each place that has
  /// it
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digests;
  Span stage;
  Span commit;
  std::uint64_t applier_peak = 0;
};

/// root -> worker: the whole replica has applied: serve.
struct Release {
  static constexpr std::uint16_t type = 37;
  std::uint64_t delivery = 0;
};

/// worker -> root: serving.
struct Released {
  static constexpr std::uint16_t type = 38;
  std::uint64_t delivery = 0;
  std::uint64_t version = 0;
  std::int64_t pause_ns = 0; ///< from on_pause to serving again
};

/// root -> worker: give the delivery up; undo it if it was applied. Answered by Undone.
struct Undo {
  static constexpr std::uint16_t type = 39;
  std::uint64_t delivery = 0;
  std::string reason;
};

/// worker -> root.
struct Undone {
  static constexpr std::uint16_t type = 40;
  std::uint64_t delivery = 0;
  std::uint64_t version = 0; ///< what it serves now
};

/// root -> worker in doubt, before anything else: what becomes of the delivery that a lost root left applied. Not
/// answered.
struct Settle {
  static constexpr std::uint16_t type = 41;
  std::uint64_t session = 0; ///< of the delivery, as the worker said
  std::uint64_t delivery = 0;
  std::uint8_t release = 0; ///< 1: serve its target; 0: undo it
};

/// root -> worker, between deliveries: read all bound memory again and compare. One that serves the version and is
/// wrong serves nothing from here on; one that serves nothing, or another session's version, stays as it is. Answered
/// by Audited.
struct Audit {
  static constexpr std::uint16_t type = 42;
  std::uint64_t audit = 0;                                      ///< never reused
  std::uint64_t version = 0;                                    ///< whose digests they are
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digests; ///< (cell, digest) of every cell that the worker holds
};

/// worker -> root.
struct Audited {
  static constexpr std::uint16_t type = 43;
  std::uint64_t audit = 0;
  std::uint64_t version = 0;                                    ///< what it serves now
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digests; ///< of its memory, as in Applied, of all of its cells
  std::string error; ///< which parameter, slot and cell is wrong first; empty: none
};

/// root -> worker that serves nothing of this session: its memory, as it was audited just now, is the version: serve
/// it. Answered by an
/// Audited of the same audit, without digests.
struct Adopt {
  static constexpr std::uint16_t type = 44;
  std::uint64_t audit = 0;
  std::uint64_t version = 0;
};

// Failure
// --------------------------------------------------------------------------------------------------------------

/// either way, at any time: what went wrong with whom. From the root: the session is over.
struct Failed {
  static constexpr std::uint16_t type = 50;
  Code code = Code::internal;
  std::string message;
  std::uint64_t delivery = 0; ///< 0: not about a delivery
};

/// either way: the sender is done and closes.
struct Goodbye {
  static constexpr std::uint16_t type = 51;
};

/// either way, whenever nothing else was sent for a while: the sender is alive.
struct Heartbeat {
  static constexpr std::uint16_t type = 52;
};

} // namespace deltawire::wire
