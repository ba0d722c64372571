// Communicator over NCCL, where this deltawire was built with it. The library is opened when it is first asked for, so
// that one executable runs with and without it; where a process has NCCL already (PyTorch brings its own), it is that.
//
// Each one has a stream of its own on its device, and a bounded part of the device's multiprocessors. Calls come from
// one thread. ncclCommAbort may wait for peers, so it runs on a thread of its own, "dw-nccl-abort", which lasts as long
// as it takes; where it does not end, the stream is left to it.
#pragma once

#include "transport/communicator.hpp"

#include <memory>
#include <string>

namespace deltawire::transport {

struct Nccl {
  std::string version;  ///< of the library that was opened: "2.28.9"; empty: none
  std::string why_none; ///< why there is none: not built in, not on this machine, or older than 2.18
};

/// Never fails; opens the library, and starts nothing on a device.
[[nodiscard]] Nccl find_nccl();

struct NcclSettings {
  int device = 0;          ///< as kernels/cuda/device.hpp counts
  std::uint32_t slots = 1; ///< of events
  int most_blocks = 8;     ///< thread blocks of its kernels at a time: the rest of the device is the trainer's
};

/// Fails with Code::unsupported where there is no NCCL, no driver or no such device, and says which.
[[nodiscard]] Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclSettings& settings);

} // namespace deltawire::transport
