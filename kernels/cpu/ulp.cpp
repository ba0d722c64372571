// Differences by blocks of 64 elements, one word of signs each: first without branches for all, then the exceptions.
#include "kernels/ulp.hpp"

#include "kernels/cpu/by_size.hpp"

#include <algorithm>

namespace deltawire::kernels {
namespace {

template <class Element>
constexpr unsigned top_bit = 8 * sizeof(Element) - 1;

template <UlpOrder order, class Element>
Element to_order(Element bits) noexcept {
  if constexpr (order == UlpOrder::plain)
    return bits;
  const auto negative = static_cast<Element>(0 - (bits >> top_bit<Element>)); // all ones or none
  return static_cast<Element>(bits ^ (negative | Element{1} << top_bit<Element>));
}

template <UlpOrder order, class Element>
Element from_order(Element place) noexcept {
  if constexpr (order == UlpOrder::plain)
    return place;
  const auto negative = static_cast<Element>((place >> top_bit<Element>)-Element{1});
  return static_cast<Element>(place ^ (negative | Element{1} << top_bit<Element>));
}

/// Body called with the element type and the order as types, so that its loop is compiled for both.
template <class Body>
decltype(auto) by_size_and_order(std::size_t size, UlpOrder order, Body&& body) {
  return by_size(size, [&](auto element) {
    return order == UlpOrder::plain ? body(element, std::integral_constant<UlpOrder, UlpOrder::plain>{})
                                    : body(element, std::integral_constant<UlpOrder, UlpOrder::sign_magnitude>{});
  });
}

} // namespace

std::size_t split_differences(const std::byte* before, const std::byte* after, std::size_t count, std::size_t size,
                              UlpOrder ulp_order, std::uint64_t* signs, std::uint16_t* exceptions,
                              std::uint16_t* magnitudes) noexcept {
  return by_size_and_order(size, ulp_order, [&](auto element, auto order) {
    using Element = decltype(element);
    std::size_t found = 0;
    for (std::size_t first = 0; first < count; first += 64) {
      const std::size_t length = std::min<std::size_t>(64, count - first);
      std::uint8_t negative[64];
      std::uint16_t magnitude[64];
      for (std::size_t i = 0; i < length; ++i) {
        const auto old = to_order<order()>(load<Element>(before + (first + i) * sizeof(Element)));
        const auto now = to_order<order()>(load<Element>(after + (first + i) * sizeof(Element)));
        const auto difference = static_cast<Element>(now - old);
        const auto sign = static_cast<Element>(difference >> top_bit<Element>);
        negative[i] = static_cast<std::uint8_t>(sign);
        const auto absolute = static_cast<Element>(sign != 0 ? Element{0} - difference : difference);
        magnitude[i] = static_cast<std::uint16_t>(std::min<std::uint64_t>(absolute, 0xFFFF));
      }
      std::uint64_t word = 0;
      for (std::size_t i = 0; i < length; ++i) {
        word |= std::uint64_t{negative[i]} << i;
        exceptions[found] = static_cast<std::uint16_t>(first + i);
        magnitudes[found] = magnitude[i];
        found += magnitude[i] != 1;
      }
      signs[first / 64] = word;
    }
    return found;
  });
}

void add_differences(std::byte* values, std::size_t count, std::size_t size, UlpOrder ulp_order,
                     const std::uint64_t* signs, std::span<const std::uint16_t> exceptions,
                     const std::uint16_t* magnitudes) noexcept {
  by_size_and_order(size, ulp_order, [&](auto element, auto order) {
    using Element = decltype(element);
    // An exception is moved by one with the others; so what is missing is its magnitude less 1.
    for (std::size_t first = 0; first < count; first += 64) {
      const std::size_t length = std::min<std::size_t>(64, count - first);
      const std::uint64_t word = signs[first / 64];
      std::byte* at = values + first * sizeof(Element);
      for (std::size_t i = 0; i < length; ++i) {
        const auto step = static_cast<Element>(1 - 2 * static_cast<std::int64_t>(word >> i & 1));
        const auto place = to_order<order()>(load<Element>(at + i * sizeof(Element)));
        store(at + i * sizeof(Element), from_order<order()>(static_cast<Element>(place + step)));
      }
    }
    for (std::size_t i = 0; i < exceptions.size(); ++i) {
      const std::size_t index = exceptions[i];
      std::byte* at = values + index * sizeof(Element);
      const auto more = static_cast<Element>(magnitudes[i] - 1);
      const bool negative = (signs[index / 64] >> (index % 64) & 1) != 0;
      const auto place = to_order<order()>(load<Element>(at));
      store(at, from_order<order()>(static_cast<Element>(negative ? place - more : place + more)));
    }
  });
}

} // namespace deltawire::kernels
