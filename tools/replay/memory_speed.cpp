#include "memory_speed.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <sched.h>

namespace deltawire::replay {

namespace {

constexpr std::uint64_t least = 1u << 20, most = 64u << 20;
constexpr int passes = 4;

std::size_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return static_cast<std::size_t>(std::max(1, count));
}

/// Seconds until all threads have worked through their parts of `bytes` as often as comes to `most` bytes.
template <class Work>
double seconds_of(std::size_t bytes, std::size_t threads, const Work& work) {
  const std::size_t times = most / bytes;
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 0; thread < threads; ++thread)
      others.emplace_back([&, thread] {
        const std::size_t first = bytes * thread / threads, count = bytes * (thread + 1) / threads - first;
        for (std::size_t time = 0; time < times; ++time)
          work(first, count);
      });
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / static_cast<double>(times);
}

} // namespace

MemorySpeed measure_memory_speed(std::uint64_t bytes) {
  const auto size = static_cast<std::size_t>(std::clamp(bytes, least, most));
  const auto a = std::make_unique_for_overwrite<std::byte[]>(size);
  const auto b = std::make_unique_for_overwrite<std::byte[]>(size);
  std::memset(a.get(), 1, size);
  std::memset(b.get(), 1, size);
  std::atomic<int> differences = 0; // read by nobody, but the compiler does not know
  MemorySpeed speed;
  speed.cores = usable_cores();
  speed.array_bytes = size;
  for (int pass = 0; pass < passes; ++pass) {
    const double compared = seconds_of(size, speed.cores, [&](std::size_t first, std::size_t count) {
      differences += std::memcmp(a.get() + first, b.get() + first, count);
    });
    const double copied = seconds_of(size, speed.cores, [&](std::size_t first, std::size_t count) {
      std::memcpy(b.get() + first, a.get() + first, count);
      differences += static_cast<int>(b[first]);
    });
    speed.compare = std::max(speed.compare, static_cast<double>(size) / compared);
    speed.copy = std::max(speed.copy, static_cast<double>(size) / copied);
  }
  return speed;
}

} // namespace deltawire::replay
