// Which devices there are, asked at run time: a build with CUDA runs where there is no driver, and a build without it
// says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::kernels::cuda {

struct Device {
  int index = 0; ///< as the CUDA runtime counts them, after CUDA_VISIBLE_DEVICES
  std::string name;
  std::uint64_t memory = 0; ///< bytes
  int capability_major = 0;
  int capability_minor = 0;
  int multiprocessors = 0;
  std::string pci;  ///< "0000:17:00.0"
  std::string uuid; ///< "GPU-...", as nvidia-smi prints it: the same device has the same in every process
};

struct Devices {
  std::vector<Device> found;
  std::string why_none;  ///< why `found` is empty: not built in, no driver, no device, or what the runtime said
  std::string libraries; ///< "CUDA 13.0, sm_80 sm_90 sm_100"; empty where CUDA is not built in
};

/// Asks anew at each call. Never fails and starts nothing on a device.
[[nodiscard]] Devices find_devices();

} // namespace deltawire::kernels::cuda
