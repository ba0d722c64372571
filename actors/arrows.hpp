// Numbers of the arrows that a trace draws between spans of two actors: made of what both know of the work that one
// hands to the other.
#pragma once

#include "telemetry/trace.hpp"

#include <cstdint>

namespace deltawire::actors::arrow {

/// Differ to GatherQueue, on one rank.
inline std::uint64_t chunk(std::uint32_t rank, std::uint64_t gather, std::uint32_t chunk) {
  return telemetry::flow_number({1, rank, gather, chunk});
}
/// A rank's GatherQueue to the root's.
inline std::uint64_t share(std::uint32_t rank, std::uint64_t gather, std::uint64_t round) {
  return telemetry::flow_number({2, rank, gather, round});
}
/// The root's GatherQueue to FlushBucket: the same share.
inline std::uint64_t gathered(std::uint32_t rank, std::uint64_t gather, std::uint64_t round) {
  return telemetry::flow_number({3, rank, gather, round});
}
/// FlushBucket to Sender.
inline std::uint64_t flush(std::uint64_t gather, std::uint64_t sequence) {
  return telemetry::flow_number({4, gather, sequence});
}
/// Sender to a worker's Applier.
inline std::uint64_t frame(std::uint64_t delivery, std::uint32_t worker, std::uint64_t sequence) {
  return telemetry::flow_number({5, delivery, worker, sequence});
}

} // namespace deltawire::actors::arrow
