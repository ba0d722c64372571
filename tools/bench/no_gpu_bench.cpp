// A build without CUDA.
#include "gpu_bench.hpp"

#include "kernels/cuda/device.hpp"

namespace deltawire::bench {

Result<Report> gpu_bench(const BenchOptions&) {
  return fail(Code::invalid_argument, "bench gpu: no device: {}", kernels::cuda::find_devices().why_none);
}

} // namespace deltawire::bench
