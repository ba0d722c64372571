#include "kernels/cuda/pointer.hpp"

#include <cstdint>
#include <dlfcn.h>

namespace deltawire::kernels::cuda {
namespace {

// Of the driver's interface (cuda.h), which does not change: a build without the toolkit has it too.
using PointerAttribute = int (*)(void* value, int attribute, std::uintptr_t pointer);
constexpr int success = 0;
constexpr int memory_type = 2;    // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int is_managed = 8;     // CU_POINTER_ATTRIBUTE_IS_MANAGED
constexpr int device_ordinal = 9; // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned on_device = 2; // CU_MEMORYTYPE_DEVICE

} // namespace

std::optional<int> device_of(const void* pointer) {
  // The driver that this process has, not one that it might load.
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr)
    return std::nullopt;
  const auto ask = reinterpret_cast<PointerAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  dlclose(driver); // which only counts down
  if (ask == nullptr)
    return std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  unsigned type = 0;
  if (ask(&type, memory_type, address) != success || type != on_device)
    return std::nullopt;
  unsigned managed = 0;
  if (ask(&managed, is_managed, address) == success && managed != 0)
    return std::nullopt;
  int device = 0;
  return ask(&device, device_ordinal, address) == success ? device : 0;
}

} // namespace deltawire::kernels::cuda
