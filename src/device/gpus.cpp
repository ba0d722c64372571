#include "device/gpus.hpp"

#include <mutex>
#include <thread>
#include <utility>

namespace deltawire::device {
namespace {

struct Source {
  std::mutex mutex;
  std::shared_ptr<Gpus> set;
};

Source& source() {
  static Source only;
  return only;
}

} // namespace

std::shared_ptr<Gpus> gpus() {
  {
    const std::lock_guard lock(source().mutex);
    if (source().set)
      return source().set;
  }
  static const std::shared_ptr<Gpus> cuda = cuda_gpus();
  return cuda;
}

void set_gpus(std::shared_ptr<Gpus> set) {
  const std::lock_guard lock(source().mutex);
  source().set = std::move(set);
}

std::string name_of(const Identity& gpu) {
  return fmt::format("GPU {} ({})", gpu.index, gpu.name);
}

Result<void> wait_until_idle(Stream& stream, std::chrono::steady_clock::time_point deadline) {
  // A kernel of a chunk takes tens of microseconds, a copy of one milliseconds: first keep asking, then sleep.
  constexpr int eager = 64;
  constexpr std::chrono::microseconds pause{50};
  for (int asked = 0;; ++asked) {
    auto idle = stream.idle();
    if (!idle)
      return pass_on(std::move(idle));
    if (*idle)
      return {};
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(Code::timed_out, "work of a GPU's stream is not done by its deadline");
    if (asked < eager)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(pause);
  }
}

} // namespace deltawire::device
