// Ranks and workers that are called at the same time: what waits for all others (connect, close) takes a thread each.
#pragma once

#include "replay/exit_status.hpp"
#include "result.hpp"

#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace deltawire::bench {

/// Runs work(index) for every index < count, each on a thread of its own; the first failure counts. What it throws
/// becomes one.
template <class Work>
Result<void> all_at_once(std::size_t count, Work&& work) {
  std::mutex mutex;
  Result<void> all;
  {
    std::vector<std::jthread> threads;
    for (std::size_t index = 0; index < count; ++index)
      threads.emplace_back([&, index] {
        Result<void> one = replay::catching([&]() -> Result<void> {
          work(index);
          return {};
        });
        const std::lock_guard lock(mutex);
        if (!one && all)
          all = std::move(one);
      });
  }
  return all;
}

} // namespace deltawire::bench
