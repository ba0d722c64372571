// Masks: compare skips equal groups of 64 elements with a vectorised XOR-OR and only looks closer where a bit differs.
#include "kernels/mask.hpp"

#include "kernels/cpu/by_size.hpp"

#include <bit>

namespace deltawire::kernels {
namespace {

/// One bit an element of the eight bytes `difference` (a XOR b), lowest address first.
template <class Element>
std::uint64_t differing(std::uint64_t difference) noexcept {
  if constexpr (sizeof(Element) == 8) {
    return difference != 0;
  } else if constexpr (sizeof(Element) == 4) {
    return std::uint64_t{static_cast<std::uint32_t>(difference) != 0} | std::uint64_t{(difference >> 32) != 0} << 1;
  } else if constexpr (sizeof(Element) == 2) {
    // Adding 0x7FFF to the low 15 bits of a lane carries into its top bit unless they are all zero; the product then
    // brings the four top bits side by side (their pairwise sums of exponents are distinct, so nothing carries).
    constexpr std::uint64_t low = 0x7FFF7FFF7FFF7FFFull;
    const std::uint64_t top = (((difference & low) + low) | difference) & ~low;
    return ((top >> 15) * 0x0001000200040008ull) >> 48;
  } else {
    constexpr std::uint64_t low = 0x7F7F7F7F7F7F7F7Full;
    const std::uint64_t top = (((difference & low) + low) | difference) & ~low;
    return ((top >> 7) * 0x0102040810204080ull) >> 56;
  }
}

/// 64 elements.
template <class Element>
std::uint64_t compare_group(const std::byte* a, const std::byte* b) noexcept {
  constexpr std::size_t words = 8 * sizeof(Element);
  constexpr std::size_t lanes = 8 / sizeof(Element);
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < words; ++i)
    any |= load<std::uint64_t>(a + 8 * i) ^ load<std::uint64_t>(b + 8 * i);
  if (any == 0)
    return 0;
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < words; ++i)
    mask |= differing<Element>(load<std::uint64_t>(a + 8 * i) ^ load<std::uint64_t>(b + 8 * i)) << (i * lanes);
  return mask;
}

template <class Element>
std::size_t compare_elements(const std::byte* a, const std::byte* b, std::size_t count, std::uint64_t* mask) noexcept {
  constexpr std::size_t group_bytes = 64 * sizeof(Element);
  std::size_t differ = 0;
  const std::size_t groups = count / 64;
  for (std::size_t group = 0; group < groups; ++group) {
    const std::uint64_t word = compare_group<Element>(a + group * group_bytes, b + group * group_bytes);
    mask[group] = word;
    if (word != 0)
      differ += static_cast<std::size_t>(std::popcount(word));
  }
  if (const std::size_t rest = count % 64; rest != 0) {
    std::byte a_rest[group_bytes] = {};
    std::byte b_rest[group_bytes] = {};
    std::memcpy(a_rest, a + groups * group_bytes, rest * sizeof(Element));
    std::memcpy(b_rest, b + groups * group_bytes, rest * sizeof(Element));
    mask[groups] = compare_group<Element>(a_rest, b_rest);
    differ += static_cast<std::size_t>(std::popcount(mask[groups]));
  }
  return differ;
}

} // namespace

std::size_t compare(const std::byte* a, const std::byte* b, std::size_t count, std::size_t size,
                    std::uint64_t* mask) noexcept {
  return by_size(size, [&](auto element) { return compare_elements<decltype(element)>(a, b, count, mask); });
}

std::size_t mask_to_positions(std::span<const std::uint64_t> mask, std::uint16_t* out) noexcept {
  std::uint16_t* next = out;
  for (std::size_t word = 0; word < mask.size(); ++word) {
    std::uint64_t bits = mask[word];
    const auto base = static_cast<std::uint16_t>(word * 64);
    if (bits == ~std::uint64_t{0}) {
      for (std::uint16_t i = 0; i < 64; ++i)
        next[i] = static_cast<std::uint16_t>(base + i);
      next += 64;
      continue;
    }
    while (bits != 0) {
      *next++ = static_cast<std::uint16_t>(base + std::countr_zero(bits));
      bits &= bits - 1;
    }
  }
  return static_cast<std::size_t>(next - out);
}

void set_positions(std::span<const std::uint16_t> positions, std::span<std::uint64_t> mask) noexcept {
  for (const std::uint16_t position : positions)
    mask[position / 64] |= std::uint64_t{1} << (position % 64);
}

} // namespace deltawire::kernels
