// Position codes: every loop is over gaps without branches but for the rare long one. Plain loops, compiled for each
// instruction set: what they gain are vectors, and instructions that count and find bits.
#include "kernels/cpu/highway.hpp"

#include "kernels/positions.hpp"

#include <algorithm>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/positions.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/by_size.hpp"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels {
namespace HWY_NAMESPACE {

void to_gaps_of(std::span<const std::uint16_t> positions, std::uint16_t origin, std::uint16_t* gaps) {
  if (positions.empty())
    return;
  gaps[0] = static_cast<std::uint16_t>(positions[0] - origin);
  for (std::size_t i = 1; i < positions.size(); ++i)
    gaps[i] = static_cast<std::uint16_t>(positions[i] - positions[i - 1] - 1);
}

GapSizes sizes_of(std::span<const std::uint16_t> gaps) {
  std::uint32_t escapes = 0;
  std::uint32_t starts = 0;
  for (const std::uint16_t gap : gaps) {
    const auto next = static_cast<std::uint16_t>(gap + 1);
    escapes += static_cast<std::uint16_t>(next + (next >> 8)) >> 8; // gap / 255, for gaps below 65535
    starts += gap != 0;
  }
  return {gaps.size() + escapes, starts + (gaps.empty() || gaps.front() != 0 ? 0u : 1u)};
}

RiceSize rice_of(std::span<const std::uint16_t> gaps, unsigned expected, unsigned more) {
  std::uint32_t sum = 0;
  for (const std::uint16_t gap : gaps)
    sum += gap;
  // The best parameter of geometric gaps is within one of log2(mean): look at the three.
  const auto mean = static_cast<unsigned>(sum / gaps.size());
  const unsigned middle = std::clamp(static_cast<unsigned>(std::bit_width(mean)), 2u, most_rice_parameter) - 1;
  std::uint32_t quotients[3] = {};
  for (const std::uint16_t gap : gaps) {
    quotients[0] += static_cast<std::uint32_t>(gap >> (middle - 1));
    quotients[1] += static_cast<std::uint32_t>(gap >> middle);
    quotients[2] += static_cast<std::uint32_t>(gap >> (middle + 1));
  }
  const auto size_with = [&](unsigned i) -> RiceSize {
    const unsigned parameter = middle - 1 + i;
    return {parameter, gaps.size() * (1 + parameter) + quotients[i] + (parameter == expected ? 0 : more)};
  };
  RiceSize best = size_with(0);
  for (unsigned i = 1; i < 3; ++i)
    if (const RiceSize size = size_with(i); size.bits < best.bits)
      best = size;
  return best;
}

void put_rice(std::span<const std::uint16_t> gaps, unsigned parameter, BitWriter& out) {
  constexpr unsigned most = BitWriter::most_bits;
  // Quotients: as many a word as there is room for.
  std::uint64_t word = 0;
  unsigned filled = 0;
  for (const std::uint16_t gap : gaps) {
    unsigned quotient = static_cast<unsigned>(gap) >> parameter;
    if (filled + quotient >= most) [[unlikely]] {
      out.put(word, filled);
      word = 0;
      filled = 0;
      for (; quotient >= most; quotient -= most)
        out.put(0, most);
    }
    filled += quotient;
    word |= std::uint64_t{1} << filled;
    ++filled;
  }
  out.put(word, filled);
  if (parameter == 0)
    return;
  const std::uint64_t low = (std::uint64_t{1} << parameter) - 1;
  const std::size_t together = most / parameter;
  std::size_t i = 0;
  for (; i + together <= gaps.size(); i += together) {
    std::uint64_t bits = 0;
    for (std::size_t j = together; j-- > 0;)
      bits = bits << parameter | (gaps[i + j] & low);
    out.put(bits, static_cast<unsigned>(together) * parameter);
  }
  for (; i < gaps.size(); ++i)
    out.put(gaps[i] & low, parameter);
}

bool take_rice(BitReader& in, unsigned parameter, std::size_t count, std::size_t span, std::uint16_t* positions) {
  // First the sums of quotients, left where the positions will be. A sum that passes 16 bits is found at the end: they
  // never fall, so the last one is the largest.
  std::size_t found = 0;
  std::size_t last = 0;
  for (std::size_t base = 0; found < count; base += 64) {
    if (base >= in.left())
      return false;
    std::uint64_t word = in.peek_word(base);
    const auto set = static_cast<std::size_t>(std::popcount(word));
    if (found + set <= count) [[likely]] {
      for (std::size_t i = found; i < found + set; ++i) {
        last = base + static_cast<std::size_t>(std::countr_zero(word));
        word &= word - 1;
        positions[i] = static_cast<std::uint16_t>(last - i);
      }
      found += set;
    } else {
      for (; found < count; ++found) {
        last = base + static_cast<std::size_t>(std::countr_zero(word));
        word &= word - 1;
        positions[found] = static_cast<std::uint16_t>(last - found);
      }
    }
  }
  const std::size_t quotients = last + 1 - count;
  if (quotients > (span - 1) >> parameter)
    return false;
  in.skip(last + 1);

  if (parameter == 0) {
    for (std::size_t i = 0; i < count; ++i)
      positions[i] = static_cast<std::uint16_t>(positions[i] + i);
    return quotients + count <= span;
  }
  if (parameter * count > in.left())
    return false;
  std::uint32_t sum = 0;  // of remainders
  std::uint32_t high = 0; // the last position
  const std::uint32_t low = (std::uint32_t{1} << parameter) - 1;
  const auto place = [&](std::size_t i, std::uint32_t remainder) {
    sum += remainder;
    high = (std::uint32_t{positions[i]} << parameter) + sum + static_cast<std::uint32_t>(i);
    positions[i] = static_cast<std::uint16_t>(high);
  };
  // Several remainders a load.
  std::size_t i = 0;
  const std::size_t together = 57 / parameter;
  for (; i + together <= count; i += together) {
    std::uint64_t bits = in.peek(i * parameter, 57);
    for (std::size_t j = i; j < i + together; ++j) {
      place(j, static_cast<std::uint32_t>(bits) & low);
      bits >>= parameter;
    }
  }
  for (; i < count; ++i)
    place(i, static_cast<std::uint32_t>(in.peek(i * parameter, parameter)));
  in.skip(parameter * count);
  return high < span;
}

HWY_INLINE std::size_t varint_bytes(std::size_t value) {
  return value < 0x80 ? 1 : 2;
}

HWY_INLINE std::byte* put_varint(std::byte* out, std::size_t value) {
  if (value >= 0x80) {
    *out++ = static_cast<std::byte>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<std::byte>(value);
  return out;
}

/// Calls visit(gap, length) for each run of neighbours.
template <class Visit>
HWY_INLINE void for_each_run(std::span<const std::uint16_t> gaps, Visit&& visit) {
  for (std::size_t i = 0; i < gaps.size();) {
    std::size_t end = i + 1;
    while (end < gaps.size() && gaps[end] == 0)
      ++end;
    visit(std::size_t{gaps[i]}, end - i);
    i = end;
  }
}

std::size_t bytes_of_runs(std::span<const std::uint16_t> gaps) {
  std::size_t bytes = 0;
  for_each_run(gaps,
               [&](std::size_t gap, std::size_t length) { bytes += varint_bytes(gap) + varint_bytes(length - 1); });
  return bytes;
}

std::size_t put_runs(std::span<const std::uint16_t> gaps, std::byte* out) {
  std::byte* next = out;
  for_each_run(gaps, [&](std::size_t gap, std::size_t length) {
    next = put_varint(next, gap);
    next = put_varint(next, length - 1);
  });
  return static_cast<std::size_t>(next - out);
}

std::size_t take_runs(std::span<const std::byte> codes, std::size_t count, std::size_t span, std::uint16_t* positions) {
  std::size_t at = 0;
  const auto take_varint = [&](std::size_t& value) {
    if (at == codes.size())
      return false;
    value = std::to_integer<std::size_t>(codes[at++]);
    if (value < 0x80)
      return true;
    if (at == codes.size() || std::to_integer<std::size_t>(codes[at]) >= 0x80)
      return false;
    value = (value & 0x7F) | std::to_integer<std::size_t>(codes[at++]) << 7;
    return true;
  };
  std::size_t next = 0; // the position that a gap of 0 stands for
  for (std::size_t decoded = 0; decoded < count;) {
    std::size_t gap = 0;
    std::size_t length = 0;
    if (!take_varint(gap) || !take_varint(length))
      return 0;
    ++length;
    if (length > count - decoded || next + gap + length > span)
      return 0;
    for (std::size_t i = 0; i < length; ++i)
      positions[decoded + i] = static_cast<std::uint16_t>(next + gap + i);
    decoded += length;
    next += gap + length;
  }
  return at;
}

bool take_wide_gaps(const std::byte* codes, std::size_t count, std::size_t span, std::uint16_t* positions) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i) {
    next += load<std::uint16_t>(codes + 2 * i);
    positions[i] = static_cast<std::uint16_t>(next);
    ++next;
  }
  return next <= span; // the last is the largest
}

} // namespace HWY_NAMESPACE
} // namespace deltawire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(to_gaps_of);
HWY_EXPORT(sizes_of);
HWY_EXPORT(rice_of);
HWY_EXPORT(put_rice);
HWY_EXPORT(take_rice);
HWY_EXPORT(bytes_of_runs);
HWY_EXPORT(put_runs);
HWY_EXPORT(take_runs);
HWY_EXPORT(take_wide_gaps);

void to_gaps(std::span<const std::uint16_t> positions, std::uint16_t origin, std::uint16_t* gaps) noexcept {
  HWY_DYNAMIC_DISPATCH(to_gaps_of)(positions, origin, gaps);
}

GapSizes gap_sizes(std::span<const std::uint16_t> gaps) noexcept {
  return HWY_DYNAMIC_DISPATCH(sizes_of)(gaps);
}

RiceSize best_rice(std::span<const std::uint16_t> gaps, unsigned expected, unsigned more) noexcept {
  return HWY_DYNAMIC_DISPATCH(rice_of)(gaps, expected, more);
}

void encode_rice(std::span<const std::uint16_t> gaps, unsigned parameter, BitWriter& out) noexcept {
  HWY_DYNAMIC_DISPATCH(put_rice)(gaps, parameter, out);
}

bool decode_rice(BitReader& in, unsigned parameter, std::size_t count, std::size_t span,
                 std::uint16_t* positions) noexcept {
  return HWY_DYNAMIC_DISPATCH(take_rice)(in, parameter, count, span, positions);
}

std::size_t run_bytes(std::span<const std::uint16_t> gaps) noexcept {
  return HWY_DYNAMIC_DISPATCH(bytes_of_runs)(gaps);
}

std::size_t encode_runs(std::span<const std::uint16_t> gaps, std::byte* out) noexcept {
  return HWY_DYNAMIC_DISPATCH(put_runs)(gaps, out);
}

std::size_t decode_runs(std::span<const std::byte> codes, std::size_t count, std::size_t span,
                        std::uint16_t* positions) noexcept {
  return HWY_DYNAMIC_DISPATCH(take_runs)(codes, count, span, positions);
}

bool decode_wide_gaps(const std::byte* codes, std::size_t count, std::size_t span, std::uint16_t* positions) noexcept {
  return HWY_DYNAMIC_DISPATCH(take_wide_gaps)(codes, count, span, positions);
}

} // namespace deltawire::kernels
#endif
