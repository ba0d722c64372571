// Finding what changed against a snapshot, and refreshing the snapshot, in one pass over both.
// CPU kernels (Highway; instruction set chosen once, at the first call). Any alignment, fastest where snapshots begin
// at a cache line; no allocation, no failure; reentrant. Parts of one call, or of calls at the same time, do not
// overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// Elements that a part has at most, and that a mask covers.
inline constexpr std::size_t part_elements = 4096;
/// Words of a part's mask: bit i of word i / 64 stands for element i.
inline constexpr std::size_t part_mask_words = part_elements / 64;

/// A dense stretch of elements in memory and what the snapshot holds of them. Small tensors share a call: a part each.
struct DiffPart {
  const std::byte* now = nullptr;
  std::byte* snapshot = nullptr;
  std::size_t elements = 0; ///< at most part_elements
};

/// Where a diff writes. Values are dense, part after part, each part's in the order of its elements.
struct DiffOutput {
  std::uint64_t* masks = nullptr;   ///< part_mask_words a part; bits past its elements are clear
  std::uint32_t* changed = nullptr; ///< one a part: elements whose bits differ
  std::byte* before = nullptr;      ///< what the snapshot held; room for all elements of the parts
  std::byte* after = nullptr;       ///< what it holds now; room for all elements of the parts
};

/// Compares each part bit by bit (-0.0 differs from 0.0, equal NaNs do not differ) and writes what changed into the
/// snapshot. Elements of `size` bytes: 1, 2, 4 or 8. Only cache lines with a change are written. Returns the number of
/// elements that changed, over all parts.
///
/// Elements are read more than once. Where another thread writes `now` meanwhile, mask, `after` and the snapshot still
/// agree with each other: an element that is not marked keeps its bits in the snapshot.
std::size_t diff_and_refresh(std::span<const DiffPart> parts, std::size_t size, const DiffOutput& out) noexcept;

/// What elements are cast to before they are compared: memory holds the one, the snapshot, `before` and `after` the
/// other.
///
/// Both narrowing casts round to nearest, ties to even; overflow becomes infinity, what is too small a subnormal or
/// zero of the same sign. A NaN stays a NaN: sign and the upper bits of its payload are kept, the quiet bit (the
/// uppermost of the payload) is set. So no NaN turns into infinity. The widening ones are exact, and keep NaNs as they
/// are: their payloads become the upper bits. All are functions of the bits, on every instruction set.
enum class Cast : std::uint8_t {
  fp32_to_bf16 = 0,
  fp32_to_fp16 = 1,
  bf16_to_fp32 = 2,
  fp16_to_fp32 = 3,
};

/// Bytes of an element before and after.
[[nodiscard]] constexpr std::size_t size_before(Cast cast) noexcept {
  return cast == Cast::fp32_to_bf16 || cast == Cast::fp32_to_fp16 ? 4 : 2;
}
[[nodiscard]] constexpr std::size_t size_after(Cast cast) noexcept {
  return 6 - size_before(cast);
}

/// diff_and_refresh, where the snapshot holds what elements were cast to.
std::size_t cast_diff_and_refresh(std::span<const DiffPart> parts, Cast cast, const DiffOutput& out) noexcept;

/// Casts dense elements. `from` and `to` do not overlap.
void cast_elements(const std::byte* from, std::size_t count, Cast cast, std::byte* to) noexcept;

} // namespace deltawire::kernels
