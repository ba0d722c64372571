// A stand-in for the NVIDIA driver's library, for device_memory_test.cpp: three addresses, of a device, of managed
// memory and of the host's pinned memory; all others it does not know.
#include <cstdint>

extern "C" int cuPointerGetAttribute(void* value, int attribute, std::uintptr_t pointer) {
  constexpr std::uintptr_t on_device = 0x7000'0000'0010, managed = 0x7000'0000'0020, pinned = 0x7000'0000'0030;
  if (pointer != on_device && pointer != managed && pointer != pinned)
    return 1;
  switch (attribute) {
  case 2:
    *static_cast<unsigned*>(value) = pointer == pinned ? 1 : 2;
    return 0;
  case 8:
    *static_cast<unsigned*>(value) = pointer == managed;
    return 0;
  case 9:
    *static_cast<int*>(value) = 3;
    return 0;
  default:
    return 1;
  }
}
