// u8 gaps: a loop without branches but for the rare escape.
#include "kernels/gaps.hpp"

namespace deltawire::kernels {

namespace {
constexpr std::size_t escape = 255;
}

std::size_t encode_gaps(std::span<const std::uint16_t> positions, std::uint16_t origin, std::byte* out) noexcept {
  std::byte* next = out;
  std::size_t expected = origin; // the position that a gap of 0 stands for
  for (const std::uint16_t position : positions) {
    std::size_t gap = position - expected;
    while (gap >= escape) {
      *next++ = std::byte{escape};
      gap -= escape;
    }
    *next++ = static_cast<std::byte>(gap);
    expected = std::size_t{position} + 1;
  }
  return static_cast<std::size_t>(next - out);
}

std::size_t decode_gaps(std::span<const std::byte> codes, std::size_t count, std::size_t span,
                        std::uint16_t* positions) noexcept {
  std::size_t next = 0; // the position that a gap of 0 stands for
  std::size_t decoded = 0;
  for (std::size_t at = 0; at < codes.size(); ++at) {
    const auto gap = std::to_integer<std::size_t>(codes[at]);
    next += gap;
    if (next >= span)
      return 0;
    if (gap == escape)
      continue;
    positions[decoded++] = static_cast<std::uint16_t>(next);
    ++next;
    if (decoded == count)
      return at + 1;
  }
  return 0;
}

} // namespace deltawire::kernels
