// The GPUs of this process: whose memory a pointer is to, and the one object for each that sessions share.
#pragma once

#include "device/gpu.hpp"

#include <memory>
#include <optional>

namespace deltawire::device {

/// Where GPUs come from. Thread-safe.
class Gpus {
public:
  virtual ~Gpus() = default;

  /// The GPU (its Identity::index) whose memory this is; nothing for what the host reaches itself: its own memory,
  /// pinned or not, and managed memory. Opens and starts nothing.
  [[nodiscard]] virtual std::optional<int> index_of(const void* pointer) = 0;

  /// The same object for the same index while anybody holds it. Code::unsupported where there is none that can be used.
  [[nodiscard]] virtual Result<std::shared_ptr<Gpu>> open(int index) = 0;
};

/// CUDA's: in a build without CUDA it knows whose memory a pointer is to, and opens none.
[[nodiscard]] std::shared_ptr<Gpus> cuda_gpus();

/// What this process's sessions ask: CUDA's, unless set_gpus() said otherwise.
[[nodiscard]] std::shared_ptr<Gpus> gpus();

/// For tests: sessions that are opened from now on ask these; null: CUDA's again.
void set_gpus(std::shared_ptr<Gpus> source);

} // namespace deltawire::device
