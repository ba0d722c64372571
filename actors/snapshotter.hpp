// Snapshotter: owns the walk over a rank's chunks, the position logs and the order of captures. Waits for no other
// process.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/rank_work.hpp"
#include "sync/cell_sums.hpp"

#include <deque>
#include <map>
#include <set>

namespace deltawire::actors {

struct SnapshotterSettings {
  std::uint32_t differs = 1;
  std::uint64_t inflight = 0;
  std::uint64_t log_cap = 0;     ///< bytes of position logs; the running capture's own comes on top
  bool fold = false;             ///< update.busy
  std::uint64_t audit_every = 0; ///< versions from one audit to the next; 0: only those that are asked for
};

struct SnapshotterState {
  std::shared_ptr<RankWork> work;
  std::shared_ptr<const Colleagues> colleagues;
  std::unique_ptr<sync::CaptureWalk> walk;
  std::uint64_t log_cap = 0;
  bool fold = false;
  std::deque<CaptureRequest> waiting;
  std::vector<std::uint64_t> first_captured; ///< by chunk: in which version; 0: never
  bool announced = true;                     ///< the running capture's completion was told
  std::unique_ptr<sync::ChunkParts> chunk_parts;
  std::vector<UpdatePart> early;                   ///< of captures that have not begun
  std::shared_ptr<const sync::CaptureParts> parts; ///< what takes part in the rest of the running capture; null: all
  std::size_t next_differ = 0;
  wire::CaptureReport report; ///< of the running capture
  sync::CellSums digest_changes;
  wire::NextUpdate planned;                         ///< the latest plan
  std::set<std::uint64_t> dropped;                  ///< gathers of this capture and later ones that nobody takes
  std::map<std::uint64_t, std::uint64_t> log_bytes; ///< by version
  std::uint64_t keep_logs_after = 0;                ///< for the running capture
  std::shared_ptr<device::Event> after;             ///< of the running capture
  std::size_t out = 0;                              ///< chunks with Differs
  bool failed = false;                              ///< a Differ did not do its work: the session ends

  // audits
  std::uint64_t audit_every = 0;
  sync::CellSums digests; ///< what this rank's snapshot has by its captures
  std::uint64_t audits_due = 0;
  wire::AuditReport audit; ///< of the running one, or the last
  bool auditing = false;
  std::size_t audit_next = 0; ///< chunk
  std::size_t audit_out = 0;  ///< chunks that are being read
  sync::CellSums audited;     ///< what was read so far
};

SnapshotterActor::behavior_type snapshotter(SnapshotterActor::stateful_pointer<SnapshotterState> self,
                                            std::shared_ptr<RankWork> work, const SnapshotterSettings& settings);

} // namespace deltawire::actors
