// Values in planes: byte 0 of each, then byte 1 of each, and so on. What is alike in all values (the exponents of
// weights) comes to stand side by side.
// CPU kernels. Any alignment, values of 1, 2, 4 or 8 bytes, no allocation, no failure; reentrant. Input and output do
// not overlap.
#pragma once

#include <cstddef>

namespace deltawire::kernels {

void to_planes(const std::byte* values, std::size_t count, std::size_t size, std::byte* planes) noexcept;

/// The inverse.
void from_planes(const std::byte* planes, std::size_t count, std::size_t size, std::byte* values) noexcept;

} // namespace deltawire::kernels
