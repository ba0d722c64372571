// Differences by groups of 64 elements, one word of signs each: first without branches for all, in loops that compilers
// turn into vector code, then the few exceptions.
#include "kernels/ulp.hpp"

#include "kernels/cpu/by_size.hpp"

#include <array>
#include <bit>
#include <type_traits>

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

constexpr std::size_t group = 64;

/// Bit i of the result is bit 0 of byte i; the bytes are 0 or 1.
std::uint64_t pack_bits(const std::uint8_t* bytes) noexcept {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < group / 8; ++i)
    word |= ((load<std::uint64_t>(reinterpret_cast<const std::byte*>(bytes) + 8 * i) * 0x0102040810204080ull) >> 56)
            << (8 * i);
  return word;
}

/// For each byte of signs, 8 steps of a byte each: -1 where the bit is set, else 1.
constexpr auto steps_of = [] {
  std::array<std::uint64_t, 256> table{};
  for (unsigned bits = 0; bits < 256; ++bits)
    for (unsigned i = 0; i < 8; ++i)
      table[bits] |= std::uint64_t{(bits >> i & 1) != 0 ? 0xFFu : 0x01u} << (8 * i);
  return table;
}();

} // namespace

std::size_t split_differences(const std::byte* before, const std::byte* after, std::size_t count, std::size_t size,
                              UlpOrder ulp_order, std::uint64_t* signs, std::uint16_t* exceptions,
                              std::uint16_t* magnitudes) noexcept {
  return by_size_and_order(size, ulp_order, [&](auto element, auto order) {
    using Element = decltype(element);
    std::size_t found = 0;
    const auto split_group = [&](const std::byte* old_at, const std::byte* now_at, std::size_t first,
                                 std::uint64_t known) {
      std::uint8_t negative[group];
      std::uint8_t exception[group];
      std::uint16_t magnitude[group];
      for (std::size_t i = 0; i < group; ++i) {
        const auto old = to_order<order()>(load<Element>(old_at + i * sizeof(Element)));
        const auto now = to_order<order()>(load<Element>(now_at + i * sizeof(Element)));
        const auto difference = static_cast<Element>(now - old);
        const auto sign = static_cast<Element>(difference >> top_bit<Element>);
        const auto absolute = static_cast<Element>((difference ^ static_cast<Element>(0 - sign)) + sign);
        negative[i] = static_cast<std::uint8_t>(sign);
        if constexpr (sizeof(Element) <= 2)
          magnitude[i] = absolute;
        else
          magnitude[i] = static_cast<std::uint16_t>(absolute > 0xFFFF ? Element{0xFFFF} : absolute);
        exception[i] = static_cast<std::uint8_t>(magnitude[i] != 1);
      }
      signs[first / group] = pack_bits(negative) & known;
      for (std::uint64_t word = pack_bits(exception) & known; word != 0; word &= word - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(word));
        exceptions[found] = static_cast<std::uint16_t>(first + i);
        magnitudes[found] = magnitude[i];
        ++found;
      }
    };
    std::size_t first = 0;
    for (; first + group <= count; first += group)
      split_group(before + first * sizeof(Element), after + first * sizeof(Element), first, ~std::uint64_t{0});
    if (const std::size_t rest = count - first; rest != 0) {
      std::byte old_rest[group * sizeof(Element)] = {};
      std::byte now_rest[group * sizeof(Element)] = {};
      std::memcpy(old_rest, before + first * sizeof(Element), rest * sizeof(Element));
      std::memcpy(now_rest, after + first * sizeof(Element), rest * sizeof(Element));
      split_group(old_rest, now_rest, first, (std::uint64_t{1} << rest) - 1);
    }
    return found;
  });
}

void add_differences(std::byte* values, std::size_t count, std::size_t size, UlpOrder ulp_order,
                     const std::uint64_t* signs, std::span<const std::uint16_t> exceptions,
                     const std::uint16_t* magnitudes) noexcept {
  by_size_and_order(size, ulp_order, [&](auto element, auto order) {
    using Element = decltype(element);
    const auto step_group = [&](std::byte* at, std::uint64_t word) {
      std::uint64_t packed[group / 8];
      for (std::size_t i = 0; i < group / 8; ++i)
        packed[i] = steps_of[word >> (8 * i) & 0xFF];
      std::int8_t steps[group];
      std::memcpy(steps, packed, sizeof(steps));
      for (std::size_t i = 0; i < group; ++i) {
        const auto place = to_order<order()>(load<Element>(at + i * sizeof(Element)));
        store(at + i * sizeof(Element),
              from_order<order()>(static_cast<Element>(place + static_cast<Element>(steps[i]))));
      }
    };
    std::size_t first = 0;
    for (; first + group <= count; first += group)
      step_group(values + first * sizeof(Element), signs[first / group]);
    if (const std::size_t rest = count - first; rest != 0) {
      std::byte padded[group * sizeof(Element)] = {};
      std::memcpy(padded, values + first * sizeof(Element), rest * sizeof(Element));
      step_group(padded, signs[first / group]);
      std::memcpy(values + first * sizeof(Element), padded, rest * sizeof(Element));
    }
    // An exception was moved by one with the others: what is missing is its magnitude less 1.
    for (std::size_t i = 0; i < exceptions.size(); ++i) {
      const std::size_t index = exceptions[i];
      std::byte* at = values + index * sizeof(Element);
      const auto more = static_cast<Element>(magnitudes[i] - 1);
      const bool negative = (signs[index / group] >> (index % group) & 1) != 0;
      const auto place = to_order<order()>(load<Element>(at));
      store(at, from_order<order()>(static_cast<Element>(negative ? place - more : place + more)));
    }
  });
}

} // namespace deltawire::kernels
