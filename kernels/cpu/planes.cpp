// The size is known in each loop, so that compilers turn them into vector code.
#include "kernels/planes.hpp"

#include "kernels/cpu/by_size.hpp"

namespace deltawire::kernels {

void to_planes(const std::byte* values, std::size_t count, std::size_t size, std::byte* planes) noexcept {
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t plane = 0; plane < sizeof(Element); ++plane)
      for (std::size_t i = 0; i < count; ++i)
        planes[plane * count + i] = static_cast<std::byte>(load<Element>(values + i * sizeof(Element)) >> (8 * plane));
  });
}

void from_planes(const std::byte* planes, std::size_t count, std::size_t size, std::byte* values) noexcept {
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      Element value = 0;
      for (std::size_t plane = 0; plane < sizeof(Element); ++plane)
        value = static_cast<Element>(value | std::to_integer<Element>(planes[plane * count + i]) << (8 * plane));
      store(values + i * sizeof(Element), value);
    }
  });
}

} // namespace deltawire::kernels
