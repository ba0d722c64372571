#include "wire/device_handle.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace deltawire::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "handles are little-endian: swap the bytes on this host");

constexpr std::size_t handle_at = 16;
constexpr std::size_t offset_at = 80;
constexpr std::size_t size_at = 88;

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

} // namespace

std::array<std::byte, device_handle_bytes> encode(const DeviceHandle& handle) {
  std::array<std::byte, device_handle_bytes> bytes{};
  std::memcpy(bytes.data(), handle.device.data(), handle.device.size());
  std::memcpy(bytes.data() + handle_at, handle.handle.data(), handle.handle.size());
  std::memcpy(bytes.data() + offset_at, &handle.offset, sizeof handle.offset);
  std::memcpy(bytes.data() + size_at, &handle.size, sizeof handle.size);
  return bytes;
}

Result<DeviceHandle> decode_device_handle(std::span<const std::byte> bytes) {
  if (bytes.size() != device_handle_bytes)
    return fail(Code::invalid_input, "a device handle of {} bytes: it has {}", bytes.size(), device_handle_bytes);
  DeviceHandle handle;
  std::memcpy(handle.device.data(), bytes.data(), handle.device.size());
  std::memcpy(handle.handle.data(), bytes.data() + handle_at, handle.handle.size());
  std::memcpy(&handle.offset, bytes.data() + offset_at, sizeof handle.offset);
  std::memcpy(&handle.size, bytes.data() + size_at, sizeof handle.size);
  if (is_zero(handle.device))
    return fail(Code::invalid_input, "a device handle of no device: its UUID is zero");
  if (is_zero(handle.handle))
    return fail(Code::invalid_input, "a device handle that was never filled: the driver's part is zero");
  if (handle.size == 0)
    return fail(Code::invalid_input, "a device handle of no memory: its size is 0");
  if (handle.offset > most_device_bytes || handle.size > most_device_bytes - handle.offset)
    return fail(Code::invalid_input, "a device handle of {} bytes at offset {}, past the {} that memory can have",
                handle.size, handle.offset, most_device_bytes);
  return handle;
}

} // namespace deltawire::wire
