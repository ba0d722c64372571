// Element moves. Stride 1 has loops of its own: they are the common case, and dense runs become memcpy or vector swaps.
#include "kernels/values.hpp"

#include "kernels/cpu/by_size.hpp"

namespace deltawire::kernels {
namespace {

template <class Element>
constexpr auto bytes_of = static_cast<std::ptrdiff_t>(sizeof(Element));

/// Byte offset of a position.
template <class Element>
std::ptrdiff_t offset(Stretch stretch, std::uint16_t position) noexcept {
  return (position - stretch.origin) * stretch.stride * bytes_of<Element>;
}

} // namespace

void prefetch(const std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions,
              std::size_t size) noexcept {
  const std::ptrdiff_t step = stretch.stride * static_cast<std::ptrdiff_t>(size);
  for (const std::uint16_t position : positions)
    __builtin_prefetch(start + (position - stretch.origin) * step);
}

void gather(const std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions, std::size_t size,
            std::byte* out) noexcept {
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < positions.size(); ++i)
      store(out + i * sizeof(Element), load<Element>(start + offset<Element>(stretch, positions[i])));
  });
}

void scatter(std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions, std::size_t size,
             const std::byte* values) noexcept {
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < positions.size(); ++i)
      store(start + offset<Element>(stretch, positions[i]), load<Element>(values + i * sizeof(Element)));
  });
}

void exchange(std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions, std::size_t size,
              std::byte* values) noexcept {
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      std::byte* memory = start + offset<Element>(stretch, positions[i]);
      const auto before = load<Element>(memory);
      store(memory, load<Element>(values + i * sizeof(Element)));
      store(values + i * sizeof(Element), before);
    }
  });
}

void exchange(std::byte* start, std::span<const std::uint32_t> addresses, std::size_t size,
              std::byte* values) noexcept {
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      std::byte* memory = start + std::ptrdiff_t{addresses[i]} * bytes_of<Element>;
      const auto before = load<Element>(memory);
      store(memory, load<Element>(values + i * sizeof(Element)));
      store(values + i * sizeof(Element), before);
    }
  });
}

void pack(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size, std::byte* out) noexcept {
  if (count == 0)
    return;
  if (stride == 1) {
    std::memcpy(out, start, count * size);
    return;
  }
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < count; ++i)
      store(out + i * sizeof(Element),
            load<Element>(start + static_cast<std::ptrdiff_t>(i) * stride * bytes_of<Element>));
  });
}

void unpack(std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
            const std::byte* values) noexcept {
  if (count == 0)
    return;
  if (stride == 1) {
    std::memcpy(start, values, count * size);
    return;
  }
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < count; ++i)
      store(start + static_cast<std::ptrdiff_t>(i) * stride * bytes_of<Element>,
            load<Element>(values + i * sizeof(Element)));
  });
}

void exchange_run(std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                  std::byte* values) noexcept {
  if (stride == 1) {
    std::byte before[1024]; // copies of a known length are the widest moves there are, at any level of optimisation
    const std::size_t bytes = count * size;
    std::size_t at = 0;
    for (; at + sizeof(before) <= bytes; at += sizeof(before)) {
      std::memcpy(before, start + at, sizeof(before));
      std::memcpy(start + at, values + at, sizeof(before));
      std::memcpy(values + at, before, sizeof(before));
    }
    if (at < bytes) {
      std::memcpy(before, start + at, bytes - at);
      std::memcpy(start + at, values + at, bytes - at);
      std::memcpy(values + at, before, bytes - at);
    }
    return;
  }
  by_size(size, [&](auto element) {
    using Element = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* memory = start + static_cast<std::ptrdiff_t>(i) * stride * bytes_of<Element>;
      const auto before = load<Element>(memory);
      store(memory, load<Element>(values + i * sizeof(Element)));
      store(values + i * sizeof(Element), before);
    }
  });
}

} // namespace deltawire::kernels
