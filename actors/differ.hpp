// Differ: works on one chunk at a time: compares with the snapshot, refreshes it, logs, encodes. Stateless but for its
// encoder.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/rank_work.hpp"

namespace deltawire::actors {

struct DifferState {
  std::shared_ptr<RankWork> work;
  std::string lane; ///< "differ 0 of rank 2"
  std::unique_ptr<delta::PieceEncoder> encoder;
  std::unique_ptr<delta::GpuRanges> gpu; ///< for ranges on the rank's GPU, from the first on
  bool failed = false;                   ///< the session was told, and nothing more is done
  delta::PositionLog log;                ///< of the range that is worked on
  std::shared_ptr<const Colleagues> colleagues;
};

DifferActor::behavior_type differ(DifferActor::stateful_pointer<DifferState> self, std::shared_ptr<RankWork> work,
                                  std::uint32_t number);

} // namespace deltawire::actors
