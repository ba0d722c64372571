#include "kernels/cuda/device.hpp"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace deltawire::kernels::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Why cudaGetDeviceCount failed, or found nothing.
std::string reason_of(cudaError_t error) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "no NVIDIA driver is installed on this machine, or it is not visible here";
  if (error == cudaErrorInsufficientDriver)
    return "the NVIDIA driver supports CUDA " + version_text(driver) + ", and this deltawire was built with " +
           version_text(CUDART_VERSION) + ": update the driver";
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return "the NVIDIA driver finds no device" +
           (visible == nullptr ? std::string() : " (CUDA_VISIBLE_DEVICES is \"" + std::string(visible) + "\")");
  }
  return "the CUDA runtime finds no device: " + std::string(cudaGetErrorString(error)) + " (" +
         std::to_string(static_cast<int>(error)) + ")";
}

std::string pci_of(const cudaDeviceProp& properties) {
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.0", static_cast<unsigned>(properties.pciDomainID),
                static_cast<unsigned>(properties.pciBusID), static_cast<unsigned>(properties.pciDeviceID));
  return text;
}

std::string uuid_of(const cudaDeviceProp& properties) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof(byte), "%02x", static_cast<unsigned>(properties.uuid.bytes[i]) & 0xFFu);
    text += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    text += byte;
  }
  return text;
}

} // namespace

Devices find_devices() {
  Devices devices;
  devices.libraries = "CUDA " + version_text(CUDART_VERSION) + ", " DELTAWIRE_GPU_ARCHS;
  int count = 0; // stays as it is where the call fails
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    devices.why_none = reason_of(error);
    return devices;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
      devices.found.clear();
      devices.why_none =
        "device " + std::to_string(index) + " does not tell its properties: " + cudaGetErrorString(error);
      return devices;
    }
    devices.found.push_back({index, properties.name, properties.totalGlobalMem, properties.major, properties.minor,
                             properties.multiProcessorCount, pci_of(properties), uuid_of(properties)});
  }
  return devices;
}

} // namespace deltawire::kernels::cuda
