// Whether a pointer is to memory of a GPU, which a CPU that reads it does not survive. In every build, with CUDA or
// without: a process that has such memory has the driver, and the driver is asked.
#pragma once

#include <optional>

namespace deltawire::kernels::cuda {

/// The GPU whose memory this is, as the driver counts; nothing for what the host reaches itself (its own memory, pinned
/// or not, and managed memory), and where no driver is in this process. Opens and starts nothing: a process that has no
/// context on a device gets none.
[[nodiscard]] std::optional<int> device_of(const void* pointer);

} // namespace deltawire::kernels::cuda
