// Sender (root): delivers flushes to the workers on its own thread, collects what they answer, keeps each one's record
// and the digests that the manifests carry. Thin around sync::RootDelivery.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/port.hpp"
#include "actors/rank_work.hpp"
#include "sync/audit.hpp"
#include "sync/root_delivery.hpp"
#include "sync/route_table.hpp"

#include <chrono>
#include <optional>

namespace deltawire::actors {

struct WorkerPorts {
  std::vector<std::shared_ptr<Port>> control; ///< by worker
  std::vector<std::shared_ptr<Port>> data;
};

struct SenderSettings {
  std::uint32_t workers_per_replica = 1;
  std::uint32_t quorum = 0; ///< as sync::DeliverySettings
  std::chrono::nanoseconds stall{};
  std::chrono::nanoseconds timeout{};
  std::chrono::nanoseconds engine{};
  std::vector<layout::Cell> cells;
  std::uint64_t slots = 0;
  std::shared_ptr<const sync::RouteTable> routes;
  std::string keep_flushes; ///< folder for a file a part of a flush; empty: none
  std::uint64_t session = 0;
  std::uint32_t ranks = 1;
  bool verify = true;            ///< update.verify is not "off"
  std::uint64_t audit_every = 0; ///< as SnapshotterSettings'
  bool match = false;            ///< look at what workers hold before values are sent (update.seed = "if-different")
};

struct SenderState {
  std::shared_ptr<RankWork> work;
  WorkerPorts ports;
  SenderSettings settings;
  std::shared_ptr<const Colleagues> colleagues;
  std::unique_ptr<sync::RootDelivery> delivery;
  std::vector<std::uint64_t> digests; ///< by cell, at digests_version
  std::uint64_t digests_version = 0;  ///< the newest that was gathered, or known, as a whole; committed or not
  std::uint64_t next_delivery = 1;

  // of the update under way: at most two deliveries, its own changes and the catch-up
  UpdateBegin begun;
  bool updating = false;
  bool carries_catch_up = false;
  bool left_half_done = false; ///< by a rank, or given up before its first delivery: no further one of it begins
  wire::DeliveryReport report;
  std::optional<Failure> failed; ///< why the first delivery that counts failed
  bool committed = false;
  std::uint64_t committed_version = 0; ///< the newest
  std::uint64_t last_update = 0;
  std::vector<std::uint32_t> changed_cells;

  // audits: each of all memory is an audit of the ranks too; of those that look for matches they know nothing
  enum class Asking : std::uint8_t { nobody, for_the_capture, for_matches, for_audit };
  Asking asking = Asking::nobody; ///< what the update, or the audit between updates, waits for beside deliveries
  bool audit_only = false;        ///< the ranks have asked for it
  std::uint64_t next_audit = 1;   ///< of workers
  std::uint64_t rank_audits = 0;  ///< begun
  std::unique_ptr<sync::RankAudits> ranks;
  std::int64_t audit_begun_ns = 0;
  std::optional<Failure> snapshot_wrong; ///< a rank's: the session is about to end

  // of the running delivery
  std::uint64_t gather = 0;
  sync::DeliveryPlan plan;
  bool may_send = false;
  std::optional<FlushSealed> waiting;   ///< sealed before the workers were ready
  std::optional<DeliverySealed> sealed; ///< the end, once known
  bool manifest_sent = false;
  std::vector<std::uint64_t> bytes_sent;   ///< by worker, framing included
  std::vector<std::uint64_t> flushes_sent; ///< by worker: frames with pieces
  std::vector<std::uint64_t> pieces_sent;  ///< by worker
  wire::Span send;
  telemetry::TimePoint flush_begin;
  std::uint64_t flush_sequence = 0; ///< of the flush on the wire

  bool aborted = false; ///< the session is about to end: no further delivery begins
};

SenderActor::behavior_type sender(SenderActor::stateful_pointer<SenderState> self, std::shared_ptr<RankWork> work,
                                  WorkerPorts ports, SenderSettings settings);

} // namespace deltawire::actors
