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

template <class Element>
HWY_INLINE std::uint64_t change_of_elements(std::uint64_t slot_first, Stretch slot,
                                            std::span<const std::uint16_t> positions, const std::byte* before,
                                            const std::byte* after) {
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

std::uint64_t run_of_size(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                          std::uint64_t slot_first, std::ptrdiff_t slot_stride) {
  switch (size) {
  case 1:
    return run_of_elements<std::uint8_t>(start, stride, count, slot_first, slot_stride);
  case 2:
    return run_of_elements<std::uint16_t>(start, stride, count, slot_first, slot_stride);
  case 4:
    return run_of_elements<std::uint32_t>(start, stride, count, slot_first, slot_stride);
  default:
    return run_of_elements<std::uint64_t>(start, stride, count, slot_first, slot_stride);
  }
}

std::uint64_t change_of_size(std::uint64_t slot_first, Stretch slot, std::span<const std::uint16_t> positions,
                             std::size_t size, const std::byte* before, const std::byte* after) {
  switch (size) {
  case 1:
    return change_of_elements<std::uint8_t>(slot_first, slot, positions, before, after);
  case 2:
    return change_of_elements<std::uint16_t>(slot_first, slot, positions, before, after);
  case 4:
    return change_of_elements<std::uint32_t>(slot_first, slot, positions, before, after);
  default:
    return change_of_elements<std::uint64_t>(slot_first, slot, positions, before, after);
  }
}

} // namespace HWY_NAMESPACE
} // namespace deltawire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(run_of_size);
HWY_EXPORT(change_of_size);

std::uint64_t digest_run(const std::byte* start, std::ptrdiff_t stride, std::size_t count, std::size_t size,
                         std::uint64_t slot_first, std::ptrdiff_t slot_stride) noexcept {
  return HWY_DYNAMIC_DISPATCH(run_of_size)(start, stride, count, size, slot_first, slot_stride);
}

std::uint64_t digest_change_at(std::uint64_t slot_first, Stretch slot, std::span<const std::uint16_t> positions,
                               std::size_t size, const std::byte* before, const std::byte* after) noexcept {
  return HWY_DYNAMIC_DISPATCH(change_of_size)(slot_first, slot, positions, size, before, after);
}

} // namespace deltawire::kernels
#endif
