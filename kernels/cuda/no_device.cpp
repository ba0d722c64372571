// A build without CUDA.
#include "kernels/cuda/device.hpp"

namespace deltawire::kernels::cuda {

Devices find_devices() {
  return {{}, "this deltawire was built without CUDA (meson setup -Dcuda=enabled)", ""};
}

} // namespace deltawire::kernels::cuda
