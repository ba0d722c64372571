// A build without CUDA.
#include "device/gpus.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/pointer.hpp"

namespace deltawire::device {
namespace {

class NoGpus : public Gpus {
public:
  std::optional<int> index_of(const void* pointer) override { return kernels::cuda::device_of(pointer); }

  Result<std::shared_ptr<Gpu>> open(int index) override {
    return fail(Code::unsupported, "GPU {} cannot be used: {}", index, kernels::cuda::find_devices().why_none);
  }
};

} // namespace

std::shared_ptr<Gpus> cuda_gpus() {
  return std::make_shared<NoGpus>();
}

} // namespace deltawire::device
