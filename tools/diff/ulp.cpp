#include "ulp.hpp"

#include <cstring>

namespace deltawire::diff {

namespace {

enum class Order { whole, whole_signed, sign_and_magnitude };

/// The place of a bit pattern in its order, counted from the lowest.
template <class Bits, Order order>
std::uint64_t place(const std::byte* element) noexcept {
  constexpr auto top = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  Bits bits;
  std::memcpy(&bits, element, sizeof bits);
  if constexpr (order == Order::whole)
    return bits;
  else if constexpr (order == Order::whole_signed)
    return static_cast<Bits>(bits ^ top);
  else // below zero all bits turn, above only the sign; without a branch, which could not be predicted
    return static_cast<Bits>(bits ^ (static_cast<Bits>(Bits{0} - (bits >> (8 * sizeof(Bits) - 1))) | top));
}

template <class Bits, Order order>
void add_differences(const std::byte* before, const std::byte* after, std::span<const std::uint16_t> positions,
                     DifferenceDistribution& differences) {
  for (const std::uint16_t position : positions) {
    const std::size_t at = position * sizeof(Bits);
    const std::uint64_t from = place<Bits, order>(before + at);
    const std::uint64_t to = place<Bits, order>(after + at);
    // Without a branch: half of all changes go down, in no order that could be predicted.
    const std::uint64_t down = to < from ? 1 : 0;
    differences.add({((to - from) ^ (0 - down)) + down, down != 0});
  }
}

} // namespace

AddDifferences add_differences_of(DType dtype) noexcept {
  switch (dtype) {
  case DType::boolean:
  case DType::u8:
    return add_differences<std::uint8_t, Order::whole>;
  case DType::u16:
    return add_differences<std::uint16_t, Order::whole>;
  case DType::u32:
    return add_differences<std::uint32_t, Order::whole>;
  case DType::u64:
    return add_differences<std::uint64_t, Order::whole>;
  case DType::i8:
    return add_differences<std::uint8_t, Order::whole_signed>;
  case DType::i16:
    return add_differences<std::uint16_t, Order::whole_signed>;
  case DType::i32:
    return add_differences<std::uint32_t, Order::whole_signed>;
  case DType::i64:
    return add_differences<std::uint64_t, Order::whole_signed>;
  case DType::f8_e4m3:
  case DType::f8_e5m2:
    return add_differences<std::uint8_t, Order::sign_and_magnitude>;
  case DType::f16:
  case DType::bf16:
    return add_differences<std::uint16_t, Order::sign_and_magnitude>;
  case DType::f32:
    return add_differences<std::uint32_t, Order::sign_and_magnitude>;
  case DType::f64:
    break;
  }
  return add_differences<std::uint64_t, Order::sign_and_magnitude>;
}

} // namespace deltawire::diff
