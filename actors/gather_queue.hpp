// GatherQueue: owns the way from a rank to the root, on its own thread; on the root also the other end of all of them.
// Thin around sync::GatherRank and sync::GatherRoot.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/port.hpp"
#include "actors/rank_work.hpp"

#include <chrono>
#include <deque>
#include <map>
#include <optional>

namespace deltawire::actors {

/// Where a rank's shares and messages go; on the root: where the other ranks are reached. Ports by rank, [0] unused on
/// the root.
struct GatherPorts {
  std::vector<std::shared_ptr<Port>> control;
  std::vector<std::shared_ptr<Port>> data;
};

struct GatherSettings {
  std::uint32_t ranks = 1;
  std::uint64_t max_round = 0;
  std::chrono::nanoseconds stall{};
  std::chrono::nanoseconds timeout{};
};

struct GatherQueueState {
  std::shared_ptr<RankWork> work;
  GatherPorts ports;
  GatherSettings settings;
  std::string lane;
  std::shared_ptr<const Colleagues> colleagues;
  std::unique_ptr<sync::GatherRank> rank;
  bool share_under_way = false;           ///< one share leaves at a time: its buffer is what max_round allows
  std::deque<wire::Grant> waiting_grants; ///< granted before the last share had left

  // root only
  std::unique_ptr<sync::GatherRoot> root;
  std::map<std::uint64_t, std::uint64_t> arrived;    ///< bytes by gather: ranks may be ahead of the delivery under way
  std::map<std::uint64_t, std::int64_t> captured_ns; ///< by version: when the last report so far came in
  std::uint64_t gathering = 0;                       ///< the gather under way
  std::int64_t begun_ns = 0;
  wire::Span gather;
  std::uint32_t windows_gathered = 0;
  std::vector<std::int64_t> progress_ns; ///< by rank: last sign of life in the gather
  std::map<std::pair<std::uint32_t, std::uint64_t>, telemetry::TimePoint> granted; ///< (rank, round): since when
  std::optional<telemetry::TimePoint> round_begin;
};

GatherQueueActor::behavior_type gather_queue(GatherQueueActor::stateful_pointer<GatherQueueState> self,
                                             std::shared_ptr<RankWork> work, GatherPorts ports,
                                             GatherSettings settings);

} // namespace deltawire::actors
