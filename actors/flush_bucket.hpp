// FlushBucket (root): packs gathered pieces into flushes, one assembled while one is on the wire. Thin around
// sync::FlushAssembly.
#pragma once

#include "actors/interfaces.hpp"
#include "actors/rank_work.hpp"
#include "sync/flush_assembly.hpp"

namespace deltawire::actors {

struct FlushBucketState {
  std::shared_ptr<RankWork> work;
  std::shared_ptr<const Colleagues> colleagues;
  std::unique_ptr<sync::FlushAssembly> assembly;
  std::uint64_t gather = 0;  ///< that is packed; what still comes of another one is given back
  bool gathered = false;     ///< the gather is over; waits for the last flush to be handed over
  std::uint64_t counted = 0; ///< bytes that the high-water mark knows of
  wire::Span assemble;
};

/// `cap` = payload bytes of a flush.
FlushBucketActor::behavior_type flush_bucket(FlushBucketActor::stateful_pointer<FlushBucketState> self,
                                             std::shared_ptr<RankWork> work,
                                             std::shared_ptr<const sync::RouteTable> routes, std::uint64_t cap);

} // namespace deltawire::actors
