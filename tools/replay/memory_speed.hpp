// How fast this machine's memory is, measured in the run that is judged by it: what no update can beat.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltawire::replay {

/// Bytes that all cores together compare (of each of two equal arrays) and copy in a second; never 0 once measured.
struct MemorySpeed {
  std::uint64_t cores = 0;
  double compare = 0;
  double copy = 0;
  std::uint64_t array_bytes = 0; ///< of each array
};

/// The best of a few passes, by the clock. The arrays have `bytes`, at least 1 MiB and at most 64 MiB: caches help as
/// they help parameters of that size. Takes tens of milliseconds; the threads have ended when it returns.
[[nodiscard]] MemorySpeed measure_memory_speed(std::uint64_t bytes);

} // namespace deltawire::replay
