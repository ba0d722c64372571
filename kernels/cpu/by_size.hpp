// One body for every element size: by_size(2, f) calls f with a std::uint16_t, so that the loop inside f is compiled
// for that width. Elements are moved as unsigned integers of their width: bits, never values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace deltawire::kernels {

static_assert(std::endian::native == std::endian::little, "values travel little-endian and are copied as they lie");

template <class Body>
decltype(auto) by_size(std::size_t size, Body&& body) {
  switch (size) {
  case 1:
    return body(std::uint8_t{});
  case 2:
    return body(std::uint16_t{});
  case 4:
    return body(std::uint32_t{});
  default:
    return body(std::uint64_t{});
  }
}

/// Unaligned load and store.
template <class Element>
Element load(const std::byte* at) noexcept {
  Element element;
  std::memcpy(&element, at, sizeof(Element));
  return element;
}

template <class Element>
void store(std::byte* at, Element element) noexcept {
  std::memcpy(at, &element, sizeof(Element));
}

} // namespace deltawire::kernels
