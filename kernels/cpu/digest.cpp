// Digest sums: the position is carried along a run by addition; the rest is three dependent multiplications an element.
#include "kernels/digest.hpp"

#include "kernels/cpu/by_size.hpp"

namespace deltawire::kernels {

std::uint64_t digest_run(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                         std::uint64_t slot_first, std::ptrdiff_t slot_stride) noexcept {
  return by_size(size, [&](auto element) {
    using Element = decltype(element);
    std::uint64_t sum = 0;
    std::uint64_t slot = slot_first;
    const std::ptrdiff_t step = stride * static_cast<std::ptrdiff_t>(sizeof(Element));
    for (std::size_t i = 0; i < count; ++i) {
      sum += mix(slot, load<Element>(start + static_cast<std::ptrdiff_t>(i) * step));
      slot += static_cast<std::uint64_t>(slot_stride);
    }
    return sum;
  });
}

std::uint64_t digest_change_at(std::uint64_t slot_first, Stretch slot, std::span<const std::uint16_t> positions,
                               std::size_t size, const std::byte* before, const std::byte* after) noexcept {
  return by_size(size, [&](auto element) {
    using Element = decltype(element);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const std::uint64_t at = slot_first + static_cast<std::uint64_t>((positions[i] - slot.origin) * slot.stride);
      sum += mix(at, load<Element>(after + i * sizeof(Element)));
      sum -= mix(at, load<Element>(before + i * sizeof(Element)));
    }
    return sum;
  });
}

} // namespace deltawire::kernels
