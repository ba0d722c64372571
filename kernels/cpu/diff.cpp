// Where little changed, a run of words is compared first, without a branch on what is found, as fast as memory
// delivers; then the few words with a bit set are visited. Where much changed, each vector is compared, saved and
// refreshed at once, again without a branch: it is the mispredicted ones that would stop the processor from reading
// ahead. What the previous run of words showed decides between the two.
#include "kernels/cpu/highway.hpp"

#include "kernels/diff.hpp"
#include "kernels/mask.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/diff.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/by_size.hpp"
#include "kernels/cpu/cast.hpp"
#include "kernels/cpu/plain_compare.hpp"

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ------------------------------------------------------------------------- what memory holds, as the snapshot's bits

/// Elements as they lie.
template <class T>
struct AsIs {
  using Element = T;
  static constexpr std::size_t now_size = sizeof(T);

  static HWY_INLINE T at(const std::byte* now, std::size_t index) { return load<T>(now + index * sizeof(T)); }
#if HWY_TARGET != HWY_SCALAR
  template <class D>
  static HWY_INLINE hn::Vec<D> vector_at(D d, const std::byte* now, std::size_t index) {
    return hn::LoadU(d, reinterpret_cast<const T*>(now + index * sizeof(T)));
  }
#endif
};

struct AsBf16 {
  using Element = std::uint16_t;
  static constexpr std::size_t now_size = 4;

  static HWY_INLINE Element at(const std::byte* now, std::size_t index) {
    return bf16_of(load<std::uint32_t>(now + index * now_size));
  }
#if HWY_TARGET != HWY_SCALAR
  /// Rounded in the upper half of each lane, the lower half unspecified.
  template <class D32>
  static HWY_INLINE hn::Vec<D32> rounded(D32 d, const std::byte* now) {
    const hn::RebindToFloat<D32> as_float;
    const auto bits = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(now));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
    const auto nearest = hn::Add(hn::Add(bits, hn::Set(d, 0x7FFF)), odd);
    const auto value = hn::BitCast(as_float, bits);
    const auto nan = hn::RebindMask(d, hn::IsNaN(value));
    return hn::IfThenElse(nan, hn::Or(bits, hn::Set(d, 0x0040'0000u)), nearest);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> vector_at(D d, const std::byte* now, std::size_t index) {
    const hn::RepartitionToWide<D> d32;
    const std::byte* first = now + index * now_size;
    const auto low = hn::BitCast(d, rounded(d32, first));
    const auto high = hn::BitCast(d, rounded(d32, first + hn::MaxLanes(d32) * now_size));
    return hn::ConcatOdd(d, high, low);
  }
#endif
};

struct AsFp16 {
  using Element = std::uint16_t;
  static constexpr std::size_t now_size = 4;

  static HWY_INLINE Element at(const std::byte* now, std::size_t index) {
    return fp16_of(load<std::uint32_t>(now + index * now_size));
  }
#if HWY_TARGET != HWY_SCALAR
  template <class D>
  static HWY_INLINE hn::Vec<D> vector_at(D d, const std::byte* now, std::size_t index) {
    const hn::Repartition<float, D> from;
    const hn::Rebind<hwy::float16_t, decltype(from)> to;
    const hn::Half<D> half;
    const std::byte* first = now + index * now_size;
    const auto low = hn::DemoteTo(to, hn::LoadU(from, reinterpret_cast<const float*>(first)));
    const auto high =
      hn::DemoteTo(to, hn::LoadU(from, reinterpret_cast<const float*>(first + hn::MaxLanes(from) * now_size)));
    return hn::Combine(d, hn::BitCast(half, high), hn::BitCast(half, low));
  }
#endif
};

/// 16 bits in the lower half of each lane.
#if HWY_TARGET != HWY_SCALAR
template <class D>
HWY_INLINE hn::Vec<D> halves_at(D d, const std::byte* now, std::size_t index) {
  const hn::Rebind<std::uint16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(now + index * 2)));
}
#endif

struct WideBf16 {
  using Element = std::uint32_t;
  static constexpr std::size_t now_size = 2;

  static HWY_INLINE Element at(const std::byte* now, std::size_t index) {
    return fp32_of_bf16(load<std::uint16_t>(now + index * now_size));
  }
#if HWY_TARGET != HWY_SCALAR
  template <class D>
  static HWY_INLINE hn::Vec<D> vector_at(D d, const std::byte* now, std::size_t index) {
    return hn::ShiftLeft<16>(halves_at(d, now, index));
  }
#endif
};

struct WideFp16 {
  using Element = std::uint32_t;
  static constexpr std::size_t now_size = 2;

  static HWY_INLINE Element at(const std::byte* now, std::size_t index) {
    return fp32_of_fp16(load<std::uint16_t>(now + index * now_size));
  }
#if HWY_TARGET != HWY_SCALAR
  /// In integers, since the processor's own conversion sets the quiet bit of a NaN.
  template <class D>
  static HWY_INLINE hn::Vec<D> vector_at(D d, const std::byte* now, std::size_t index) {
    const hn::RebindToFloat<D> as_float;
    const auto half = halves_at(d, now, index);
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000u)));
    const auto moved = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7FFFu)));
    const auto exponent = hn::And(moved, hn::Set(d, 0x0F80'0000u));
    const auto rebias = hn::Set(d, 0x3800'0000u); // from 15 to 127
    const auto normal = hn::Add(moved, rebias);
    const auto special = hn::Add(normal, rebias); // infinities and NaNs: on to the largest exponent
    // Units of 2^-24 above 2^-14, less that: exact, and never a subnormal of fp32.
    const auto least = hn::BitCast(as_float, hn::Set(d, 0x3880'0000u));
    const auto above = hn::BitCast(as_float, hn::Add(moved, hn::Set(d, 0x3880'0000u)));
    const auto small = hn::And(hn::BitCast(d, hn::Sub(above, least)), hn::Set(d, fp32_magnitude));
    const auto finite = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), small, normal);
    return hn::Or(sign, hn::IfThenElse(hn::Eq(exponent, hn::Set(d, 0x0F80'0000u)), special, finite));
  }
#endif
};

// ---------------------------------------------------------------------------------------------------- a part

/// Where the next values go.
template <class Element>
struct Values {
  std::byte* before;
  std::byte* after;

  HWY_INLINE void advance(std::size_t elements) {
    before += elements * sizeof(Element);
    after += elements * sizeof(Element);
  }
};

/// Up to 64 elements, one by one: the reference, and what remains of a part past its last whole word.
template <class Source>
HWY_INLINE std::uint64_t compare_some(const std::byte* now, const std::byte* snapshot, std::size_t count) {
  using Element = typename Source::Element;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i)
    word |= std::uint64_t{Source::at(now, i) != load<Element>(snapshot + i * sizeof(Element))} << i;
  return word;
}

/// Saves and refreshes the elements of one word of the mask, one by one.
template <class Source>
HWY_INLINE void refresh_some(const std::byte* now, std::byte* snapshot, std::uint64_t word,
                             Values<typename Source::Element>& values) {
  using Element = typename Source::Element;
  if constexpr (std::is_same_v<Source, AsIs<Element>>)
    if (word == ~std::uint64_t{0}) {
      std::memcpy(values.before, snapshot, 64 * sizeof(Element));
      std::memcpy(values.after, now, 64 * sizeof(Element));
      std::memcpy(snapshot, values.after, 64 * sizeof(Element));
      values.advance(64);
      return;
    }
  while (word != 0) {
    const auto i = static_cast<std::size_t>(__builtin_ctzll(word));
    word &= word - 1;
    const Element after = Source::at(now, i);
    std::byte* memory = snapshot + i * sizeof(Element);
    store(values.before, load<Element>(memory));
    store(values.after, after);
    store(memory, after);
    values.advance(1);
  }
}

#if HWY_TARGET == HWY_SCALAR

template <class Source>
HWY_INLINE std::uint64_t compare_word(const std::byte* now, const std::byte* snapshot) {
  using Element = typename Source::Element;
  if constexpr (std::is_same_v<Source, AsIs<Element>>)
    return compare_plainly<Element>(now, snapshot);
  else
    return compare_some<Source>(now, snapshot, 64);
}

/// Whether refresh_word is as fast for many changes as for few.
template <class Source>
inline constexpr bool branch_free = false;

template <class Source>
HWY_INLINE void refresh_word(const std::byte* now, std::byte* snapshot, std::uint64_t word,
                             Values<typename Source::Element>& values) {
  refresh_some<Source>(now, snapshot, word, values);
}

#else

template <class Word>
HWY_INLINE std::uint64_t first_of(const std::uint8_t* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// A mask as bits, the first lane lowest.
template <class D>
HWY_INLINE std::uint64_t bits_of(D d, hn::Mask<D> mask) {
  std::uint8_t bytes[8];
  hn::StoreMaskBits(d, mask, bytes);
  if constexpr (hn::MaxLanes(d) <= 8)
    return bytes[0];
  else if constexpr (hn::MaxLanes(d) == 16)
    return first_of<std::uint16_t>(bytes);
  else if constexpr (hn::MaxLanes(d) == 32)
    return first_of<std::uint32_t>(bytes);
  else
    return first_of<std::uint64_t>(bytes);
}

template <class Source>
HWY_INLINE std::uint64_t compare_word(const std::byte* now, const std::byte* snapshot) {
  using Element = typename Source::Element;
  // Loads of 32 bytes: with those of 64, Zen 4 fetches from memory at 0.85 of this speed.
  const hn::CappedTag<Element, 32 / sizeof(Element)> d;
  constexpr std::size_t lanes = hn::MaxLanes(d);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 64; i += lanes) {
    const auto held = hn::LoadU(d, reinterpret_cast<const Element*>(snapshot + i * sizeof(Element)));
    word |= bits_of(d, hn::Ne(Source::vector_at(d, now, i), held)) << i;
  }
  return word;
}

#if HWY_TARGET == HWY_AVX3_DL
template <class Source>
inline constexpr bool branch_free = true;
#elif HWY_TARGET == HWY_AVX3
/// Compress of narrow lanes would go through memory.
template <class Source>
inline constexpr bool branch_free = sizeof(typename Source::Element) > 2;
#else
/// Compress would take tables, which GCC 12 copies to the stack at every use (Highway 1.0.3).
template <class Source>
inline constexpr bool branch_free = false;
#endif

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3

/// The marked lanes first, in order; the others unspecified.
template <class D>
HWY_INLINE hn::Vec<D> compressed([[maybe_unused]] D d, hn::Vec<D> value, hn::Mask<D> marked) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) // a table, as above
    return hn::Vec<D>{_mm512_maskz_compress_epi64(marked.raw, value.raw)};
  else
    return hn::Compress(value, marked);
}

/// Saves and refreshes the marked lanes of one vector.
template <class D, class Element>
HWY_INLINE void refresh_vector(D d, hn::Vec<D> value, hn::Vec<D> held, hn::Mask<D> marked, std::uint64_t bits,
                               Element* memory, Values<Element>& values) {
  // A whole vector is written, within the room for all elements: no more of them are saved than lie before this one.
  hn::StoreU(compressed(d, held, marked), d, reinterpret_cast<Element*>(values.before));
  hn::StoreU(compressed(d, value, marked), d, reinterpret_cast<Element*>(values.after));
  values.advance(static_cast<std::size_t>(__builtin_popcountll(bits)));
  hn::BlendedStore(value, marked, d, memory); // does not touch a line without a marked lane
}

/// Compares 64 elements, saves and refreshes those that differ; returns their mask word.
template <class Source>
HWY_INLINE std::uint64_t compare_and_refresh_word(const std::byte* now, std::byte* snapshot,
                                                  Values<typename Source::Element>& values) {
  using Element = typename Source::Element;
  const hn::ScalableTag<Element> d;
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 64; i += hn::MaxLanes(d)) {
    auto* memory = reinterpret_cast<Element*>(snapshot + i * sizeof(Element));
    const auto held = hn::LoadU(d, memory);
    const auto value = Source::vector_at(d, now, i);
    const auto marked = hn::Ne(value, held);
    const std::uint64_t bits = bits_of(d, marked);
    word |= bits << i;
    refresh_vector(d, value, held, marked, bits, memory, values);
  }
  return word;
}

#endif

/// Saves and refreshes the elements of one word of the mask.
template <class Source>
HWY_INLINE void refresh_word(const std::byte* now, std::byte* snapshot, std::uint64_t word,
                             Values<typename Source::Element>& values) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  if constexpr (branch_free<Source>) {
    using Element = typename Source::Element;
    const hn::ScalableTag<Element> d;
    constexpr std::size_t lanes = hn::MaxLanes(d);
    for (std::size_t i = 0; i < 64; i += lanes) {
      const std::uint64_t bits = word >> i & (~std::uint64_t{0} >> (64 - lanes));
      std::uint8_t bytes[8];
      std::memcpy(bytes, &bits, sizeof(bits));
      auto* memory = reinterpret_cast<Element*>(snapshot + i * sizeof(Element));
      refresh_vector(d, Source::vector_at(d, now, i), hn::LoadU(d, memory), hn::LoadMaskBits(d, bytes), bits, memory,
                     values);
    }
    return;
  }
#endif
  refresh_some<Source>(now, snapshot, word, values);
}

#endif // HWY_TARGET == HWY_SCALAR

/// Words of a run: what is compared first is still in the first-level cache when it is refreshed.
template <class Element>
inline constexpr std::size_t run_words = std::min<std::size_t>(128 / sizeof(Element), 64);
/// Where much changed and every change costs a branch, shorter runs spread the writes among the reads.
inline constexpr std::size_t short_run_words = 8;
/// Words with a change, of 64, from which on the next run is refreshed as it is compared.
inline constexpr std::size_t many = 8;

/// Compares first, then visits what differs. Returns the number of words that do.
template <class Source>
HWY_INLINE std::size_t diff_where_little_changed(const std::byte* now, std::byte* snapshot, std::size_t words,
                                                 std::uint64_t* mask, Values<typename Source::Element>& values) {
  constexpr std::size_t now_stride = 64 * Source::now_size;
  constexpr std::size_t snapshot_stride = 64 * sizeof(typename Source::Element);
  std::uint64_t dirty = 0; // bit w: word w of the mask is not 0
  for (std::size_t w = 0; w < words; ++w) {
    mask[w] = compare_word<Source>(now + w * now_stride, snapshot + w * snapshot_stride);
    dirty |= std::uint64_t{mask[w] != 0} << w;
  }
  const auto count = static_cast<std::size_t>(__builtin_popcountll(dirty));
  for (; dirty != 0; dirty &= dirty - 1) {
    const auto w = static_cast<std::size_t>(__builtin_ctzll(dirty));
    refresh_word<Source>(now + w * now_stride, snapshot + w * snapshot_stride, mask[w], values);
  }
  return count;
}

/// Does all at once, where that can be had without branches. Returns the number of words that differ.
template <class Source>
HWY_INLINE std::size_t diff_where_much_changed(const std::byte* now, std::byte* snapshot, std::size_t words,
                                               std::uint64_t* mask, Values<typename Source::Element>& values) {
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3
  if constexpr (branch_free<Source>) {
    std::size_t count = 0;
    for (std::size_t w = 0; w < words; ++w) {
      mask[w] = compare_and_refresh_word<Source>(now + w * 64 * Source::now_size,
                                                 snapshot + w * 64 * sizeof(typename Source::Element), values);
      count += mask[w] != 0;
    }
    return count;
  }
#endif
  return diff_where_little_changed<Source>(now, snapshot, words, mask, values);
}

/// `dirty` is in and out: words with a change in the run before, of 64.
template <class Source>
HWY_INLINE std::size_t diff_part(const DiffPart& part, std::uint64_t* mask, Values<typename Source::Element>& values,
                                 std::size_t& dirty) {
  using Element = typename Source::Element;
  const std::size_t words = part.elements / 64;
  const std::byte* saved = values.before;
  for (std::size_t first = 0, count = 0; first < words; first += count) {
    const bool much = dirty >= many;
    count = std::min(words - first, much && !branch_free<Source> ? short_run_words : run_words<Element>);
    const std::byte* now = part.now + first * 64 * Source::now_size;
    std::byte* snapshot = part.snapshot + first * 64 * sizeof(Element);
    const std::size_t found = much ? diff_where_much_changed<Source>(now, snapshot, count, mask + first, values)
                                   : diff_where_little_changed<Source>(now, snapshot, count, mask + first, values);
    dirty = (dirty + 3 * (found * 64 / count)) / 4;
  }
  std::fill(mask + words, mask + part_mask_words, std::uint64_t{0});
  if (const std::size_t rest = part.elements % 64; rest != 0) {
    const std::byte* now = part.now + words * 64 * Source::now_size;
    std::byte* snapshot = part.snapshot + words * 64 * sizeof(Element);
    mask[words] = compare_some<Source>(now, snapshot, rest);
    refresh_some<Source>(now, snapshot, mask[words], values);
  }
  return static_cast<std::size_t>(values.before - saved) / sizeof(Element);
}

template <class Source>
std::size_t diff_parts(std::span<const DiffPart> parts, const DiffOutput& out) {
  using Element = typename Source::Element;
  Values<Element> values{out.before, out.after};
  std::size_t dirty = 0;
  for (std::size_t p = 0; p < parts.size(); ++p)
    out.changed[p] =
      static_cast<std::uint32_t>(diff_part<Source>(parts[p], out.masks + p * part_mask_words, values, dirty));
  return static_cast<std::size_t>(values.before - out.before) / sizeof(Element);
}

template <class Element>
std::size_t compare_elements(const std::byte* a, const std::byte* b, std::size_t count, std::uint64_t* mask) {
  std::size_t differ = 0;
  for (std::size_t first = 0; first < count; first += 64) {
    const std::byte* a_word = a + first * sizeof(Element);
    const std::byte* b_word = b + first * sizeof(Element);
    mask[first / 64] = count - first >= 64 ? compare_word<AsIs<Element>>(a_word, b_word)
                                           : compare_some<AsIs<Element>>(a_word, b_word, count - first);
    differ += static_cast<std::size_t>(__builtin_popcountll(mask[first / 64]));
  }
  return differ;
}

std::size_t compare_of_size(const std::byte* a, const std::byte* b, std::size_t count, std::size_t size,
                            std::uint64_t* mask) {
  return by_size(size, [&](auto element) HWY_ATTR { return compare_elements<decltype(element)>(a, b, count, mask); });
}

std::size_t diff_of_size(std::span<const DiffPart> parts, std::size_t size, const DiffOutput& out) {
  return by_size(size, [&](auto element) HWY_ATTR { return diff_parts<AsIs<decltype(element)>>(parts, out); });
}

std::size_t diff_of_cast(std::span<const DiffPart> parts, Cast cast, const DiffOutput& out) {
  switch (cast) {
  case Cast::fp32_to_bf16:
    return diff_parts<AsBf16>(parts, out);
  case Cast::fp32_to_fp16:
    return diff_parts<AsFp16>(parts, out);
  case Cast::bf16_to_fp32:
    return diff_parts<WideBf16>(parts, out);
  default:
    return diff_parts<WideFp16>(parts, out);
  }
}

template <class Source>
void cast_from(const std::byte* from, std::size_t count, std::byte* to) {
  using Element = typename Source::Element;
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<Element> d;
  for (; i + hn::MaxLanes(d) <= count; i += hn::MaxLanes(d))
    hn::StoreU(Source::vector_at(d, from, i), d, reinterpret_cast<Element*>(to + i * sizeof(Element)));
#endif
  for (; i < count; ++i)
    store(to + i * sizeof(Element), Source::at(from, i));
}

void cast_of(const std::byte* from, std::size_t count, Cast cast, std::byte* to) {
  switch (cast) {
  case Cast::fp32_to_bf16:
    return cast_from<AsBf16>(from, count, to);
  case Cast::fp32_to_fp16:
    return cast_from<AsFp16>(from, count, to);
  case Cast::bf16_to_fp32:
    return cast_from<WideBf16>(from, count, to);
  default:
    return cast_from<WideFp16>(from, count, to);
  }
}

} // namespace HWY_NAMESPACE
} // namespace deltawire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(diff_of_size);
HWY_EXPORT(diff_of_cast);
HWY_EXPORT(cast_of);
HWY_EXPORT(compare_of_size);

std::size_t diff_and_refresh(std::span<const DiffPart> parts, std::size_t size, const DiffOutput& out) noexcept {
  return HWY_DYNAMIC_DISPATCH(diff_of_size)(parts, size, out);
}

std::size_t cast_diff_and_refresh(std::span<const DiffPart> parts, Cast cast, const DiffOutput& out) noexcept {
  return HWY_DYNAMIC_DISPATCH(diff_of_cast)(parts, cast, out);
}

void cast_elements(const std::byte* from, std::size_t count, Cast cast, std::byte* to) noexcept {
  HWY_DYNAMIC_DISPATCH(cast_of)(from, count, cast, to);
}

std::size_t compare(const std::byte* a, const std::byte* b, std::size_t count, std::size_t size,
                    std::uint64_t* mask) noexcept {
  return HWY_DYNAMIC_DISPATCH(compare_of_size)(a, b, count, size, mask);
}

} // namespace deltawire::kernels
#endif
