// Moving elements between strided memory and dense arrays.
// CPU kernels. Any alignment, elements of 1, 2, 4 or 8 bytes, any stride (elements, also negative), no allocation, no
// failure; reentrant. Dense arrays do not overlap the strided memory. Each element is read once and written once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// A stretch of elements in memory: position p lies at start + (p - origin) * stride * size.
/// An origin below 0 says that the stretch began before position 0.
struct Stretch {
  std::ptrdiff_t stride = 1; ///< elements
  std::ptrdiff_t origin = 0; ///< the position that lies at the start
};

/// Has the processor fetch the elements at these positions, while it works on something else. Changes nothing.
void prefetch(const std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions,
              std::size_t size) noexcept;

/// out[i] = the element at positions[i].
void gather(const std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions, std::size_t size,
            std::byte* out) noexcept;

/// The element at positions[i] = values[i].
void scatter(std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions, std::size_t size,
             const std::byte* values) noexcept;

/// Swaps the element at positions[i] with values[i]. Requires positions without repeats.
void exchange(std::byte* start, Stretch stretch, std::span<const std::uint16_t> positions, std::size_t size,
              std::byte* values) noexcept;

/// The same at listed places: swaps the element at addresses[i] (elements from `start`) with values[i]. Requires
/// addresses without repeats; ascending ones are the fastest.
void exchange(std::byte* start, std::span<const std::uint32_t> addresses, std::size_t size, std::byte* values) noexcept;

/// out[i] = the element at start + i * stride, for i < count.
void pack(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size, std::byte* out) noexcept;

/// The element at start + i * stride = values[i], for i < count.
void unpack(std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
            const std::byte* values) noexcept;

/// Swaps the element at start + i * stride with values[i], for i < count.
void exchange_run(std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                  std::byte* values) noexcept;

} // namespace deltawire::kernels
