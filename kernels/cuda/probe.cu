// What meson setup asks nvcc for, to see whether it goes with the host compiler.
#include <cuda_runtime.h>

#include <span>
