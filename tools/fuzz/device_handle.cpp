// Handles of memory on a GPU, from another process.
#include "wire/device_handle.hpp"

#include "target.hpp"

#include <algorithm>

namespace deltawire::fuzz {

bool accepts(std::span<const std::byte> input) {
  const AllocationBound bound(2048);
  const auto handle = wire::decode_device_handle(input);
  if (!handle)
    return false;
  require(handle->size > 0, "there is memory");
  require(handle->offset + handle->size >= handle->size, "its end is a number");
  require(handle->offset + handle->size <= wire::most_device_bytes, "its end can be");
  require(std::ranges::equal(wire::encode(*handle), input), "what was read is written again");
  return true;
}

} // namespace deltawire::fuzz
