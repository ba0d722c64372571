// What the pipeline may hold at most above its level at rest, from the caps and the size of an update. Nothing here
// asks the product; every term names whose memory it is.
#pragma once

#include "dense_model.hpp"

#include <algorithm>

namespace deltawire::test {

/// Control messages, mailboxes, and descriptions of staged pieces.
inline constexpr std::uint64_t small_things = 512 * 1024;

/// The caps of this test: each stage's is `cap`.
[[nodiscard]] inline std::vector<std::string> caps_of(std::uint64_t cap) {
  const std::string bytes = cap == ~0ull ? "unlimited" : std::to_string(cap) + "B";
  return {"actors.differ.inflight=" + bytes, "actors.gather_queue.max_round=" + bytes,
          "actors.flush_bucket.cap=" + bytes, "actors.sender.route=broadcast",
          "actors.flush_bucket.values=raw"}; // the more bytes under way, the better; and as many with any cap
}

/// A rank: what its Differs encoded and what it sends or has gathered.
[[nodiscard]] inline std::uint64_t rank_holds(std::uint64_t cap) {
  return 2 * cap;
}

/// The root besides: one flush assembled, one on the wire.
[[nodiscard]] inline std::uint64_t root_holds(std::uint64_t cap) {
  return 2 * cap;
}

/// Position logs of `elements` elements of which `changed` changed: 16 bits a change, in arrays that grow by doubling,
/// of which each tile (4096 elements, or what a chunk of `cap` bytes holds) has two.
[[nodiscard]] inline std::uint64_t logs_hold(std::uint64_t elements, std::uint64_t changed, std::uint64_t cap) {
  constexpr std::uint64_t worst_case = 4; // bytes of an encoded bf16 element, at most
  constexpr std::uint64_t least_block = 32;
  const std::uint64_t chunk = std::min<std::uint64_t>(4096, cap / worst_case);
  return 2 * 2 * changed + elements / chunk * 3 * least_block;
}

/// The stages of all workers of a bf16 model: a position and a value a change, and the description of each part of a
/// tile, in slabs that double in size; kept for the next update.
[[nodiscard]] inline std::uint64_t stages_hold(std::uint64_t elements, std::uint64_t changed, std::uint64_t cap) {
  constexpr std::uint64_t change = 4;
  constexpr std::uint64_t description = 32;
  constexpr std::uint64_t first_slab = 16 * 1024;
  const std::uint64_t parts = elements / std::min<std::uint64_t>(4096, cap / change) + changed * change / cap;
  return 2 * (change * changed + description * parts) + DenseModel::members * first_slab;
}

} // namespace deltawire::test
