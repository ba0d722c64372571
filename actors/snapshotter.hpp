// Snapshotter: owns the walk over a rank's chunks, the position logs and the order of captures. Waits for no other
// process.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/rank_work.hpp"

#include <deque>
#include <map>

namespace deltawire::actors {

struct SnapshotterState {
  std::shared_ptr<RankWork> work;
  std::shared_ptr<const Colleagues> colleagues;
  std::unique_ptr<sync::CaptureWalk> walk;
  std::deque<CaptureRequest> waiting;
  bool seeded = false;
  bool announced = true; ///< the running capture's completion was told
  std::size_t next_differ = 0;
  wire::CaptureReport report; ///< of the running capture
  std::map<std::uint32_t, std::uint64_t> digest_changes;
};

SnapshotterActor::behavior_type snapshotter(SnapshotterActor::stateful_pointer<SnapshotterState> self,
                                            std::shared_ptr<RankWork> work, std::uint32_t differs,
                                            std::uint64_t inflight);

} // namespace deltawire::actors
