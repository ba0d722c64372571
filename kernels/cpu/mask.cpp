// Positions from masks. With compress: the numbers of a word's elements, squeezed to those whose bit is set, whatever
// the bits are. Without: bit by bit.
#include "kernels/cpu/highway.hpp"

#include "kernels/mask.hpp"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mask.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_AVX3_DL

HWY_INLINE std::uint16_t* append_positions(std::uint64_t bits, std::uint16_t base, std::uint16_t* next) {
  const hn::ScalableTag<std::uint16_t> d;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  for (std::size_t i = 0; i < 64; i += lanes) {
    const std::uint64_t part = bits >> i & (~std::uint64_t{0} >> (64 - lanes));
    std::uint8_t bytes[8];
    std::memcpy(bytes, &part, sizeof(part));
    const auto positions = hn::Iota(d, static_cast<std::uint16_t>(base + i));
    hn::StoreU(hn::Compress(positions, hn::LoadMaskBits(d, bytes)), d, next);
    next += __builtin_popcountll(part);
  }
  return next;
}

#else

HWY_INLINE std::uint16_t* append_positions(std::uint64_t bits, std::uint16_t base, std::uint16_t* next) {
  if (bits == ~std::uint64_t{0}) {
    for (std::uint16_t i = 0; i < 64; ++i)
      next[i] = static_cast<std::uint16_t>(base + i);
    return next + 64;
  }
  for (; bits != 0; bits &= bits - 1)
    *next++ = static_cast<std::uint16_t>(base + __builtin_ctzll(bits));
  return next;
}

#endif

std::size_t positions_of_mask(std::span<const std::uint64_t> mask, std::uint16_t* out) {
  std::uint16_t* next = out;
  for (std::size_t first = 0; first < mask.size(); first += 64) {
    // The words that have a bit set, as bits: one mispredicted end of a loop for 64 words.
    const std::size_t words = mask.size() - first < 64 ? mask.size() - first : 64;
    std::uint64_t set = 0;
    for (std::size_t w = 0; w < words; ++w)
      set |= std::uint64_t{mask[first + w] != 0} << w;
    for (; set != 0; set &= set - 1) {
      const std::size_t word = first + static_cast<std::size_t>(__builtin_ctzll(set));
      next = append_positions(mask[word], static_cast<std::uint16_t>(word * 64), next);
    }
  }
  return static_cast<std::size_t>(next - out);
}

} // namespace HWY_NAMESPACE
} // namespace deltawire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(positions_of_mask);

std::size_t mask_to_positions(std::span<const std::uint64_t> mask, std::uint16_t* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(positions_of_mask)(mask, out);
}

void set_positions(std::span<const std::uint16_t> positions, std::span<std::uint64_t> mask) noexcept {
  for (const std::uint16_t position : positions)
    mask[position / 64] |= std::uint64_t{1} << (position % 64);
}

} // namespace deltawire::kernels
#endif
