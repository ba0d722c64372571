#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <sched.h>

namespace deltawire::bench {

std::size_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return std::max<std::size_t>(1, static_cast<std::size_t>(CPU_COUNT(&set)));
  return std::max(1u, std::thread::hardware_concurrency()); // more processors than a cpu_set_t has bits
}

void in_parallel(std::size_t items, std::size_t threads, const std::function<void(std::size_t, std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&](std::size_t thread) {
    for (std::size_t item = next++; item < items; item = next++)
      work(item, thread);
  };
  std::vector<std::jthread> others;
  for (std::size_t thread = 1; thread < std::min(threads, items); ++thread)
    others.emplace_back(run, thread);
  run(0);
}

} // namespace deltawire::bench
