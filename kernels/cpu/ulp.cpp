// Differences by groups of 64 elements, one word of signs each: first without branches for all, then the few
// exceptions.
#include "kernels/cpu/highway.hpp"

#include "kernels/ulp.hpp"

#include <array>
#include <bit>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ulp.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/by_size.hpp"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Element>
inline constexpr unsigned top_bit = 8 * sizeof(Element) - 1;

template <UlpOrder order, class Element>
HWY_INLINE Element to_order(Element bits) {
  if constexpr (order == UlpOrder::plain)
    return bits;
  const auto negative = static_cast<Element>(0 - (bits >> top_bit<Element>)); // all ones or none
  return static_cast<Element>(bits ^ (negative | Element{1} << top_bit<Element>));
}

template <UlpOrder order, class Element>
HWY_INLINE Element from_order(Element place) {
  if constexpr (order == UlpOrder::plain)
    return place;
  const auto negative = static_cast<Element>((place >> top_bit<Element>)-Element{1});
  return static_cast<Element>(place ^ (negative | Element{1} << top_bit<Element>));
}

/// The difference of one element.
template <UlpOrder order, class Element>
HWY_INLINE Element difference_at(const std::byte* before, const std::byte* after, std::size_t i) {
  return static_cast<Element>(to_order<order>(load<Element>(after + i * sizeof(Element))) -
                              to_order<order>(load<Element>(before + i * sizeof(Element))));
}

/// The absolute value of a difference, as far as 16 bits tell it.
template <class Element>
HWY_INLINE std::uint16_t magnitude_of(Element difference) {
  const auto sign = static_cast<Element>(difference >> top_bit<Element>);
  const auto absolute = static_cast<Element>((difference ^ static_cast<Element>(0 - sign)) + sign);
  if constexpr (sizeof(Element) <= 2)
    return absolute;
  else
    return static_cast<std::uint16_t>(absolute > 0xFFFF ? Element{0xFFFF} : absolute);
}

inline constexpr std::size_t group = 64;

/// Where split_differences() writes, and how many exceptions there are so far.
struct Split {
  std::uint64_t* signs;
  std::uint16_t* exceptions;
  std::uint16_t* magnitudes;
  std::size_t found = 0;
};

/// The exceptions of a group that begins at element `first`, one by one.
template <UlpOrder order, class Element>
HWY_INLINE void list_exceptions(const std::byte* before, const std::byte* after, std::size_t first,
                                std::uint64_t exceptions, Split& split) {
  for (; exceptions != 0; exceptions &= exceptions - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(exceptions));
    split.exceptions[split.found] = static_cast<std::uint16_t>(first + i);
    split.magnitudes[split.found] = magnitude_of<Element>(difference_at<order, Element>(before, after, i));
    ++split.found;
  }
}

/// At most a group, one by one: the reference, and what remains past the last whole group.
template <UlpOrder order, class Element>
HWY_INLINE void split_some(const std::byte* before, const std::byte* after, std::size_t first, std::size_t count,
                           Split& split) {
  std::uint64_t signs = 0;
  std::uint64_t exceptions = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Element difference = difference_at<order, Element>(before, after, i);
    signs |= static_cast<std::uint64_t>(difference >> top_bit<Element>) << i;
    exceptions |= static_cast<std::uint64_t>(magnitude_of<Element>(difference) != 1) << i;
  }
  split.signs[first / group] = signs;
  list_exceptions<order, Element>(before, after, first, exceptions, split);
}

#if HWY_TARGET == HWY_SCALAR

template <UlpOrder order, class Element>
HWY_INLINE void split_group(const std::byte* before, const std::byte* after, std::size_t first, Split& split) {
  split_some<order, Element>(before, after, first, group, split);
}

/// Moves a whole group by one, each element to the side that its sign says.
template <UlpOrder order, class Element>
HWY_INLINE void step_group(std::byte* values, std::uint64_t signs) {
  for (std::size_t i = 0; i < group; ++i) {
    const Element place = to_order<order>(load<Element>(values + i * sizeof(Element)));
    const bool negative = (signs >> i & 1) != 0;
    store(values + i * sizeof(Element), from_order<order>(static_cast<Element>(negative ? place - 1 : place + 1)));
  }
}

#else

template <UlpOrder order, class D>
HWY_INLINE hn::Vec<D> vector_to_order(D d, hn::Vec<D> bits) {
  if constexpr (order == UlpOrder::plain) {
    return bits;
  } else {
    using Element = hn::TFromD<D>;
    const auto negative = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(hn::RebindToSigned<D>(), bits)));
    const auto top = hn::Set(d, static_cast<Element>(Element{1} << top_bit<Element>));
    return hn::Xor(bits, hn::Or(negative, top));
  }
}

template <UlpOrder order, class D>
HWY_INLINE hn::Vec<D> vector_from_order(D d, hn::Vec<D> place) {
  if constexpr (order == UlpOrder::plain) {
    return place;
  } else {
    using Element = hn::TFromD<D>;
    const auto positive = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(hn::RebindToSigned<D>(), place)));
    const auto top = hn::Set(d, static_cast<Element>(Element{1} << top_bit<Element>));
    return hn::Xor(place, hn::Or(hn::Not(positive), top));
  }
}

/// A mask as bits, the first lane lowest.
template <class D>
HWY_INLINE std::uint64_t bits_of(D d, hn::Mask<D> mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  std::uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  if constexpr (hn::MaxLanes(d) < 64)
    bits &= (std::uint64_t{1} << hn::MaxLanes(d)) - 1;
  return bits;
}

template <UlpOrder order, class Element>
HWY_INLINE void split_group(const std::byte* before, const std::byte* after, std::size_t first, Split& split) {
  const hn::ScalableTag<Element> d;
  const hn::RebindToSigned<decltype(d)> d_signed;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  const auto one = hn::Set(d, Element{1});
  const auto minus_one = hn::Set(d, static_cast<Element>(~Element{0}));
  std::uint64_t signs = 0;
  std::uint64_t exceptions = 0;
  for (std::size_t i = 0; i < group; i += lanes) {
    const auto old = hn::LoadU(d, reinterpret_cast<const Element*>(before + i * sizeof(Element)));
    const auto now = hn::LoadU(d, reinterpret_cast<const Element*>(after + i * sizeof(Element)));
    const auto difference = hn::Sub(vector_to_order<order>(d, now), vector_to_order<order>(d, old));
    const auto negative = hn::RebindMask(d, hn::Lt(hn::BitCast(d_signed, difference), hn::Zero(d_signed)));
    const auto exception = hn::And(hn::Ne(difference, one), hn::Ne(difference, minus_one));
    signs |= bits_of(d, negative) << i;
    const std::uint64_t marked = bits_of(d, exception);
    exceptions |= marked << i;
#if HWY_TARGET == HWY_AVX3_DL
    // Whole vectors are written: no more exceptions lie before this one than elements.
    if constexpr (sizeof(Element) == 2) {
      const auto absolute = hn::BitCast(d, hn::Abs(hn::BitCast(d_signed, difference)));
      const auto index = hn::Iota(d, static_cast<std::uint16_t>(first + i));
      hn::StoreU(hn::Compress(index, exception), d, split.exceptions + split.found);
      hn::StoreU(hn::Compress(absolute, exception), d, split.magnitudes + split.found);
      split.found += static_cast<std::size_t>(std::popcount(marked));
    }
#endif
  }
  split.signs[first / group] = signs;
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (sizeof(Element) == 2)
    return;
#endif
  list_exceptions<order, Element>(before, after, first, exceptions, split);
}

/// Moves a whole group by one, each element to the side that its sign says.
template <UlpOrder order, class Element>
HWY_INLINE void step_group(std::byte* values, std::uint64_t signs) {
  const hn::ScalableTag<Element> d;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  const auto one = hn::Set(d, Element{1});
  const auto minus_one = hn::Set(d, static_cast<Element>(~Element{0}));
  for (std::size_t i = 0; i < group; i += lanes) {
    const std::uint64_t bits = signs >> i;
    std::uint8_t bytes[8];
    std::memcpy(bytes, &bits, sizeof(bits));
    auto* elements = reinterpret_cast<Element*>(values + i * sizeof(Element));
    const auto step = hn::IfThenElse(hn::LoadMaskBits(d, bytes), minus_one, one);
    const auto place = hn::Add(vector_to_order<order>(d, hn::LoadU(d, elements)), step);
    hn::StoreU(vector_from_order<order>(d, place), d, elements);
  }
}

#endif // HWY_TARGET == HWY_SCALAR

template <UlpOrder order, class Element>
std::size_t split_elements(const std::byte* before, const std::byte* after, std::size_t count, Split split) {
  std::size_t first = 0;
  for (; first + group <= count; first += group)
    split_group<order, Element>(before + first * sizeof(Element), after + first * sizeof(Element), first, split);
  if (first < count)
    split_some<order, Element>(before + first * sizeof(Element), after + first * sizeof(Element), first, count - first,
                               split);
  return split.found;
}

template <UlpOrder order, class Element>
void add_to_elements(std::byte* values, std::size_t count, const std::uint64_t* signs,
                     std::span<const std::uint16_t> exceptions, const std::uint16_t* magnitudes) {
  std::size_t first = 0;
  for (; first + group <= count; first += group)
    step_group<order, Element>(values + first * sizeof(Element), signs[first / group]);
  if (const std::size_t rest = count - first; rest != 0) {
    std::byte padded[group * sizeof(Element)] = {};
    std::memcpy(padded, values + first * sizeof(Element), rest * sizeof(Element));
    step_group<order, Element>(padded, signs[first / group]);
    std::memcpy(values + first * sizeof(Element), padded, rest * sizeof(Element));
  }
  // An exception was moved by one with the others: what is missing is its magnitude less 1.
  for (std::size_t i = 0; i < exceptions.size(); ++i) {
    const std::size_t index = exceptions[i];
    std::byte* at = values + index * sizeof(Element);
    const auto more = static_cast<Element>(magnitudes[i] - 1);
    const bool negative = (signs[index / group] >> (index % group) & 1) != 0;
    const auto place = to_order<order>(load<Element>(at));
    store(at, from_order<order>(static_cast<Element>(negative ? place - more : place + more)));
  }
}

template <class Element>
std::size_t split_in_order(const std::byte* before, const std::byte* after, std::size_t count, UlpOrder order,
                           const Split& split) {
  return order == UlpOrder::plain ? split_elements<UlpOrder::plain, Element>(before, after, count, split)
                                  : split_elements<UlpOrder::sign_magnitude, Element>(before, after, count, split);
}

template <class Element>
void add_in_order(std::byte* values, std::size_t count, UlpOrder order, const std::uint64_t* signs,
                  std::span<const std::uint16_t> exceptions, const std::uint16_t* magnitudes) {
  if (order == UlpOrder::plain)
    add_to_elements<UlpOrder::plain, Element>(values, count, signs, exceptions, magnitudes);
  else
    add_to_elements<UlpOrder::sign_magnitude, Element>(values, count, signs, exceptions, magnitudes);
}

std::size_t split_of_size(const std::byte* before, const std::byte* after, std::size_t count, std::size_t size,
                          UlpOrder order, std::uint64_t* signs, std::uint16_t* exceptions, std::uint16_t* magnitudes) {
  const Split split{signs, exceptions, magnitudes};
  return by_size(size, [&](auto element)
                         HWY_ATTR { return split_in_order<decltype(element)>(before, after, count, order, split); });
}

void add_of_size(std::byte* values, std::size_t count, std::size_t size, UlpOrder order, const std::uint64_t* signs,
                 std::span<const std::uint16_t> exceptions, const std::uint16_t* magnitudes) {
  return by_size(size, [&](auto element) HWY_ATTR {
    return add_in_order<decltype(element)>(values, count, order, signs, exceptions, magnitudes);
  });
}

} // namespace HWY_NAMESPACE
} // namespace deltawire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(split_of_size);
HWY_EXPORT(add_of_size);

std::size_t split_differences(const std::byte* before, const std::byte* after, std::size_t count, std::size_t size,
                              UlpOrder order, std::uint64_t* signs, std::uint16_t* exceptions,
                              std::uint16_t* magnitudes) noexcept {
  return HWY_DYNAMIC_DISPATCH(split_of_size)(before, after, count, size, order, signs, exceptions, magnitudes);
}

void add_differences(std::byte* values, std::size_t count, std::size_t size, UlpOrder order, const std::uint64_t* signs,
                     std::span<const std::uint16_t> exceptions, const std::uint16_t* magnitudes) noexcept {
  HWY_DYNAMIC_DISPATCH(add_of_size)(values, count, size, order, signs, exceptions, magnitudes);
}

} // namespace deltawire::kernels
#endif
