// All cores of this machine at once.
#pragma once

#include <cstddef>
#include <functional>

namespace deltawire::bench {

/// Processors that this process may run on.
[[nodiscard]] std::size_t usable_cores();

/// Calls work(item, thread) for every item < items, each once, on `threads` threads that take the next item as they
/// finish one; returns when all are done. `work` must not throw.
void in_parallel(std::size_t items, std::size_t threads, const std::function<void(std::size_t, std::size_t)>& work);

} // namespace deltawire::bench
