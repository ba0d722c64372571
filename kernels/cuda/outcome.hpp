// What the CUDA runtime returned, as an Outcome.
#pragma once

#include "kernels/cuda/execution.hpp"

namespace deltawire::kernels::cuda {

/// `error` is a cudaError_t.
Outcome outcome_of(int error, const char* attempt);

} // namespace deltawire::kernels::cuda
