// Position codes of a tile part (src/wire/FORMAT.md, "Pieces"): positions as gaps, the distance to the position before
// less 1 (the first: the position itself). u8 gaps are in gaps.hpp, bitmaps in mask.hpp.
// CPU kernels (Highway). At most 4096 positions, each below 4096. Decoders take untrusted bytes and never write more
// than `count` positions; what they wrote is unspecified where they fail. No allocation; reentrant.
#pragma once

#include "kernels/bits.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// Writes the gaps of positions (strictly increasing, the first >= origin) from `origin` on.
void to_gaps(std::span<const std::uint16_t> positions, std::uint16_t origin, std::uint16_t* gaps) noexcept;

/// What other codes of the same gaps would take. Bytes, but for the runs.
struct GapSizes {
  std::size_t u8 = 0;   ///< as u8 gaps
  std::size_t runs = 0; ///< runs of neighbouring positions
};
[[nodiscard]] GapSizes gap_sizes(std::span<const std::uint16_t> gaps) noexcept;

// Rice: the quotients gap >> k in unary, then the low k bits of each gap. The two parts stand one after the other, so
// that both are read by the word: the j-th set bit of the first part, less j, is a sum of quotients.

inline constexpr unsigned most_rice_parameter = 11;

struct RiceSize {
  unsigned parameter = 0;
  std::size_t bits = 0;
};

/// The best parameter among those near the mean gap, and the bits of the gaps with it. A parameter that is not the
/// `expected` one takes `more` bits, to state it. Requires at least one gap.
[[nodiscard]] RiceSize best_rice(std::span<const std::uint16_t> gaps, unsigned expected, unsigned more) noexcept;

/// At most (1 + parameter) * gaps + sum of gaps >> parameter bits.
void encode_rice(std::span<const std::uint16_t> gaps, unsigned parameter, BitWriter& out) noexcept;

/// Takes exactly `count` >= 1 positions off `in`; false where the bits do not yield them, each < span.
[[nodiscard]] bool decode_rice(BitReader& in, unsigned parameter, std::size_t count, std::size_t span,
                               std::uint16_t* positions) noexcept;

// Runs: for each run of neighbours two LEB128 varints of at most 2 bytes, its gap and its length less 1.

/// Bytes of the codes.
[[nodiscard]] std::size_t run_bytes(std::span<const std::uint16_t> gaps) noexcept;

/// Returns the bytes written, run_bytes(gaps).
std::size_t encode_runs(std::span<const std::uint16_t> gaps, std::byte* out) noexcept;

/// Returns the bytes that exactly `count` >= 1 positions, each < span, took; 0 where the codes do not yield them.
[[nodiscard]] std::size_t decode_runs(std::span<const std::byte> codes, std::size_t count, std::size_t span,
                                      std::uint16_t* positions) noexcept;

/// u16 gaps: false unless the `count` >= 1 gaps at `codes` yield positions < span.
[[nodiscard]] bool decode_wide_gaps(const std::byte* codes, std::size_t count, std::size_t span,
                                    std::uint16_t* positions) noexcept;

} // namespace deltawire::kernels
