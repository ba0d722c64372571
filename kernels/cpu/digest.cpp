// Digest sums. The position is carried along a run by addition; what remains an element is three multiplications of 64
// bits, which vectors do for as many elements as they have 64-bit lanes. A sum mod 2^64 does not depend on the order.
#include "kernels/cpu/highway.hpp"

#include "kernels/digest.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/digest.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/by_size.hpp"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_NEON
inline constexpr bool vectors = false; // NEON has no multiplication of 64 bits; two scalar ones are as fast
#else
inline constexpr bool vectors = true;

using Lanes = hn::ScalableTag<std::uint64_t>;
using Vector = hn::Vec<Lanes>;

/// mix() without the multiplication of the position: `turned` is (position + 1) times its factor.
HWY_INLINE Vector mixed(Vector turned, Vector bits) {
  const Lanes d;
  const Vector first = hn::Set(d, mix_factors::first);
  Vector x = hn::Xor(turned, hn::Mul(hn::Add(bits, hn::Set(d, mix_factors::offset)), first));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<32>(x)), first);
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<29>(x)), hn::Set(d, mix_factors::second));
  return hn::Xor(x, hn::ShiftRight<32>(x));
}

/// As many dense elements as there are lanes, zero-extended.
template <class Element>
HWY_INLINE Vector widened(const std::byte* start) {
  const Lanes d;
  const auto* elements = reinterpret_cast<const Element*>(start);
  if constexpr (sizeof(Element) == 8) {
    return hn::LoadU(d, elements);
  } else if constexpr (sizeof(Element) == 4) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<std::uint32_t, Lanes>(), elements));
  } else {
    const hn::Rebind<std::uint32_t, Lanes> d32;
    return hn::PromoteTo(d, hn::PromoteTo(d32, hn::LoadU(hn::Rebind<Element, Lanes>(), elements)));
  }
}
#endif

template <class Element>
HWY_INLINE std::uint64_t run_of_elements(const std::byte* start, std::ptrdiff_t stride, std::size_t count,
                                         std::uint64_t slot, std::ptrdiff_t slot_stride) {
  std::uint64_t sum = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_NEON
  if (stride == 1) {
    const Lanes d;
    constexpr std::size_t lanes = hn::MaxLanes(d);
    const std::uint64_t turn = static_cast<std::uint64_t>(slot_stride) * mix_factors::position;
    Vector turned = hn::Add(hn::Set(d, (slot + 1) * mix_factors::position), hn::Mul(hn::Iota(d, 0), hn::Set(d, turn)));
    const Vector step = hn::Set(d, turn * lanes);
    Vector sums = hn::Zero(d);
    for (; i + lanes <= count; i += lanes) {
      sums = hn::Add(sums, mixed(turned, widened<Element>(start + i * sizeof(Element))));
      turned = hn::Add(turned, step);
    }
    sum = hn::GetLane(hn::SumOfLanes(d, sums));
    slot += i * static_cast<std::uint64_t>(slot_stride);
  }
#endif
  const std::ptrdiff_t step = stride * static_cast<std::ptrdiff_t>(sizeof(Element));
  for (; i < count; ++i) {
    sum += mix(slot, load<Element>(start + static_cast<std::ptrdiff_t>(i) * step));
    slot += static_cast<std::uint64_t>(slot_stride);
  }
  return sum;
}

/// Sum of mix(s, after[i]) - mix(s, before[i]) over a run: the position is carried along by addition.
template <class Element>
HWY_INLINE std::uint64_t change_of_run(std::uint64_t slot, std::ptrdiff_t slot_stride, std::size_t count,
                                       const std::byte* before, const std::byte* after) {
  std::uint64_t sum = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_NEON
  const Lanes d;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  const std::uint64_t turn = static_cast<std::uint64_t>(slot_stride) * mix_factors::position;
  Vector turned = hn::Add(hn::Set(d, (slot + 1) * mix_factors::position), hn::Mul(hn::Iota(d, 0), hn::Set(d, turn)));
  const Vector step = hn::Set(d, turn * lanes);
  Vector sums = hn::Zero(d);
  for (; i + lanes <= count; i += lanes) {
    sums = hn::Add(sums, mixed(turned, widened<Element>(after + i * sizeof(Element))));
    sums = hn::Sub(sums, mixed(turned, widened<Element>(before + i * sizeof(Element))));
    turned = hn::Add(turned, step);
  }
  sum = hn::GetLane(hn::SumOfLanes(d, sums));
  slot += i * static_cast<std::uint64_t>(slot_stride);
#endif
  for (; i < count; ++i) {
    sum += mix(slot, load<Element>(after + i * sizeof(Element)));
    sum -= mix(slot, load<Element>(before + i * sizeof(Element)));
    slot += static_cast<std::uint64_t>(slot_stride);
  }
  return sum;
}

template <class Element>
HWY_INLINE std::uint64_t change_of_elements(std::uint64_t slot_first, Stretch slot,
                                            std::span<const std::uint16_t> positions, const std::byte* before,
                                            const std::byte* after) {
  if (!positions.empty() && positions.back() - positions.front() + std::size_t{1} == positions.size())
    return change_of_run<Element>(slot_first +
                                    static_cast<std::uint64_t>((positions.front() - slot.origin) * slot.stride),
                                  slot.stride, positions.size(), before, after);
  std::uint64_t sum = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_NEON
  const Lanes d;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  const auto stride = static_cast<std::uint64_t>(slot.stride);
  const Vector turn = hn::Set(d, stride * mix_factors::position);
  const Vector origin =
    hn::Set(d, (slot_first + 1 - static_cast<std::uint64_t>(slot.origin) * stride) * mix_factors::position);
  Vector sums = hn::Zero(d);
  for (; i + lanes <= positions.size(); i += lanes) {
    const Vector turned =
      hn::Add(origin, hn::Mul(widened<std::uint16_t>(reinterpret_cast<const std::byte*>(positions.data() + i)), turn));
    sums = hn::Add(sums, mixed(turned, widened<Element>(after + i * sizeof(Element))));
    sums = hn::Sub(sums, mixed(turned, widened<Element>(before + i * sizeof(Element))));
  }
  sum = hn::GetLane(hn::SumOfLanes(d, sums));
#endif
  for (; i < positions.size(); ++i) {
    const std::uint64_t at = slot_first + static_cast<std::uint64_t>((positions[i] - slot.origin) * slot.stride);
    sum += mix(at, load<Element>(after + i * sizeof(Element)));
    sum -= mix(at, load<Element>(before + i * sizeof(Element)));
  }
  return sum;
}

/// Where elements lie in memory (bytes from its start) and in the slot, from small numbers. Both spellings of places
/// come down to this.
template <class Number>
struct Places {
  const Number* addresses;
  const Number* slots;
  std::size_t count;
  std::ptrdiff_t byte_origin;
  std::ptrdiff_t byte_step;
  std::uint64_t slot_origin;
  std::uint64_t slot_step;

  HWY_INLINE std::ptrdiff_t offset(std::size_t i) const {
    return byte_origin + std::ptrdiff_t{addresses[i]} * byte_step;
  }
  HWY_INLINE std::uint64_t slot(std::size_t i) const { return slot_origin + slots[i] * slot_step; }
};

/// Elements that are moved before they are digested: few enough to be in the first-level cache still, and enough for
/// misses to overlap.
constexpr std::size_t batch = 64;
/// How far ahead lines are asked for, in elements: the changes of sparse updates lie a line apart and more.
constexpr std::size_t ahead = 24;

/// Sum of mix over `count` dense elements, which belong to places [first, first + count).
template <class Element, class Number>
HWY_INLINE std::uint64_t digest_dense(const std::byte* values, const Places<Number>& places, std::size_t first,
                                      std::size_t count) {
  std::uint64_t sum = 0;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_NEON
  const Lanes d;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  const Vector turn = hn::Set(d, places.slot_step * mix_factors::position);
  const Vector origin = hn::Set(d, (places.slot_origin + 1) * mix_factors::position);
  Vector sums = hn::Zero(d);
  for (; i + lanes <= count; i += lanes) {
    const Vector number = widened<Number>(reinterpret_cast<const std::byte*>(places.slots + first + i));
    sums = hn::Add(sums, mixed(hn::Add(origin, hn::Mul(number, turn)), widened<Element>(values + i * sizeof(Element))));
  }
  sum = hn::GetLane(hn::SumOfLanes(d, sums));
#endif
  for (; i < count; ++i)
    sum += mix(places.slot(first + i), load<Element>(values + i * sizeof(Element)));
  return sum;
}

/// Calls move(i) for each place, in order, with the lines of those to come asked for; after each batch done(first,
/// count).
template <class Number, class Move, class Done>
HWY_INLINE void in_batches(const std::byte* start, const Places<Number>& places, Move&& move, Done&& done) {
  for (std::size_t first = 0; first < places.count;) {
    const std::size_t end = HWY_MIN(places.count, first + batch);
    std::size_t i = first;
    for (const std::size_t asked = HWY_MIN(end, places.count - HWY_MIN(places.count, ahead)); i < asked; ++i) {
      __builtin_prefetch(start + places.offset(i + ahead), 1);
      move(i);
    }
    for (; i < end; ++i)
      move(i);
    done(first, end - first);
    first = end;
  }
}

template <class Element, class Number>
HWY_INLINE std::uint64_t exchange_elements(std::byte* start, const Places<Number>& places, std::byte* values) {
  std::uint64_t sum = 0;
  in_batches(
    start, places,
    [&](std::size_t i) {
      std::byte* memory = start + places.offset(i);
      const auto before = load<Element>(memory);
      store(memory, load<Element>(values + i * sizeof(Element)));
      store(values + i * sizeof(Element), before);
    },
    [&](std::size_t first, std::size_t count) {
      sum += digest_dense<Element>(values + first * sizeof(Element), places, first, count);
    });
  return sum;
}

template <class Element, class Number>
HWY_INLINE std::uint64_t digest_elements(const std::byte* start, const Places<Number>& places) {
  std::uint64_t sum = 0;
  std::byte found[batch * sizeof(Element)];
  in_batches(
    start, places,
    [&](std::size_t i) { store(found + i % batch * sizeof(Element), load<Element>(start + places.offset(i))); },
    [&](std::size_t first, std::size_t count) { sum += digest_dense<Element>(found, places, first, count); });
  return sum;
}

template <class Number>
HWY_INLINE std::uint64_t exchange_of_size(std::byte* start, const Places<Number>& places, std::size_t size,
                                          std::byte* values) {
  return by_size(size,
                 [&](auto element) HWY_ATTR { return exchange_elements<decltype(element)>(start, places, values); });
}

template <class Number>
HWY_INLINE std::uint64_t digest_of_size(const std::byte* start, const Places<Number>& places, std::size_t size) {
  return by_size(size, [&](auto element) HWY_ATTR { return digest_elements<decltype(element)>(start, places); });
}

HWY_INLINE Places<std::uint16_t> places_of(Stretch stretch, std::uint64_t slot_first, Stretch slot,
                                           std::span<const std::uint16_t> positions, std::size_t size) {
  const std::ptrdiff_t bytes = stretch.stride * static_cast<std::ptrdiff_t>(size);
  const auto step = static_cast<std::uint64_t>(slot.stride);
  return {positions.data(),
          positions.data(),
          positions.size(),
          -stretch.origin * bytes,
          bytes,
          slot_first - static_cast<std::uint64_t>(slot.origin) * step,
          step};
}

HWY_INLINE Places<std::uint32_t> places_of(const ListedPlaces& places, std::size_t size) {
  return {places.addresses.data(),
          places.slots.data(),
          places.addresses.size(),
          0,
          static_cast<std::ptrdiff_t>(size),
          places.slot_first,
          1};
}

std::uint64_t exchange_positions(std::byte* start, Stretch stretch, std::uint64_t slot_first, Stretch slot,
                                 std::span<const std::uint16_t> positions, std::size_t size, std::byte* values) {
  return exchange_of_size(start, places_of(stretch, slot_first, slot, positions, size), size, values);
}

std::uint64_t exchange_listed(std::byte* start, const ListedPlaces& places, std::size_t size, std::byte* values) {
  return exchange_of_size(start, places_of(places, size), size, values);
}

std::uint64_t digest_positions(const std::byte* start, Stretch stretch, std::uint64_t slot_first, Stretch slot,
                               std::span<const std::uint16_t> positions, std::size_t size) {
  return digest_of_size(start, places_of(stretch, slot_first, slot, positions, size), size);
}

std::uint64_t digest_listed(const std::byte* start, const ListedPlaces& places, std::size_t size) {
  return digest_of_size(start, places_of(places, size), size);
}

std::uint64_t run_of_size(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                          std::uint64_t slot_first, std::ptrdiff_t slot_stride) {
  return by_size(size, [&](auto element) HWY_ATTR {
    return run_of_elements<decltype(element)>(start, stride, count, slot_first, slot_stride);
  });
}

std::uint64_t change_of_size(std::uint64_t slot_first, Stretch slot, std::span<const std::uint16_t> positions,
                             std::size_t size, const std::byte* before, const std::byte* after) {
  return by_size(size, [&](auto element) HWY_ATTR {
    return change_of_elements<decltype(element)>(slot_first, slot, positions, before, after);
  });
}

std::uint64_t run_change_of_size(std::uint64_t slot_first, std::ptrdiff_t slot_stride, std::size_t count,
                                 std::size_t size, const std::byte* before, const std::byte* after) {
  return by_size(size, [&](auto element) HWY_ATTR {
    return change_of_run<decltype(element)>(slot_first, slot_stride, count, before, after);
  });
}

} // namespace HWY_NAMESPACE
} // namespace deltawire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(run_of_size);
HWY_EXPORT(change_of_size);
HWY_EXPORT(run_change_of_size);
HWY_EXPORT(exchange_positions);
HWY_EXPORT(exchange_listed);
HWY_EXPORT(digest_positions);
HWY_EXPORT(digest_listed);

std::uint64_t digest_run(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                         std::uint64_t slot_first, std::ptrdiff_t slot_stride) noexcept {
  return HWY_DYNAMIC_DISPATCH(run_of_size)(start, stride, count, size, slot_first, slot_stride);
}

std::uint64_t digest_change_at(std::uint64_t slot_first, Stretch slot, std::span<const std::uint16_t> positions,
                               std::size_t size, const std::byte* before, const std::byte* after) noexcept {
  return HWY_DYNAMIC_DISPATCH(change_of_size)(slot_first, slot, positions, size, before, after);
}

std::uint64_t digest_change_of_run(std::uint64_t slot_first, std::ptrdiff_t slot_stride, std::size_t count,
                                   std::size_t size, const std::byte* before, const std::byte* after) noexcept {
  return HWY_DYNAMIC_DISPATCH(run_change_of_size)(slot_first, slot_stride, count, size, before, after);
}

std::uint64_t exchange_and_digest(std::byte* start, Stretch stretch, std::uint64_t slot_first, Stretch slot,
                                  std::span<const std::uint16_t> positions, std::size_t size,
                                  std::byte* values) noexcept {
  return HWY_DYNAMIC_DISPATCH(exchange_positions)(start, stretch, slot_first, slot, positions, size, values);
}

std::uint64_t exchange_and_digest(std::byte* start, const ListedPlaces& places, std::size_t size,
                                  std::byte* values) noexcept {
  return HWY_DYNAMIC_DISPATCH(exchange_listed)(start, places, size, values);
}

std::uint64_t digest_at(const std::byte* start, Stretch stretch, std::uint64_t slot_first, Stretch slot,
                        std::span<const std::uint16_t> positions, std::size_t size) noexcept {
  return HWY_DYNAMIC_DISPATCH(digest_positions)(start, stretch, slot_first, slot, positions, size);
}

std::uint64_t digest_at(const std::byte* start, const ListedPlaces& places, std::size_t size) noexcept {
  return HWY_DYNAMIC_DISPATCH(digest_listed)(start, places, size);
}

} // namespace deltawire::kernels
#endif
