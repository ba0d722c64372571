// What a process needs to map memory of another process on the same GPU (CUDA IPC): FORMAT.md, "Device handles". Fixed
// size, and no code in it. Nothing sends one yet.
#pragma once

#include "result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::wire {

struct DeviceHandle {
  std::array<std::byte, 16> device{}; ///< the GPU's UUID: an importer opens it on that one or not at all
  std::array<std::byte, 64> handle{}; ///< a cudaIpcMemHandle_t: the driver's, for a whole allocation
  std::uint64_t offset = 0;           ///< in it, to the memory that is meant
  std::uint64_t size = 0;             ///< bytes of that memory

  friend bool operator==(const DeviceHandle&, const DeviceHandle&) = default;
};

inline constexpr std::size_t device_handle_bytes = 96;
/// Where memory ends that is believed to exist: 2^48.
inline constexpr std::uint64_t most_device_bytes = std::uint64_t{1} << 48;

/// Requires what decode_device_handle() checks.
[[nodiscard]] std::array<std::byte, device_handle_bytes> encode(const DeviceHandle& handle);

/// Code::invalid_input where the rules of FORMAT.md do not hold. That the allocation is as large as it says is for who
/// maps it to check, against what the driver then tells of it.
[[nodiscard]] Result<DeviceHandle> decode_device_handle(std::span<const std::byte> bytes);

} // namespace deltawire::wire
