// The digest: a sum mod 2^64 over elements of mix(slot position, bits).
// CPU kernels. Any alignment, elements of 1, 2, 4 or 8 bytes, any stride, no allocation, no failure; reentrant.
#pragma once

#include "kernels/values.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::kernels {

/// What mix() multiplies with and adds. Part of the wire format.
struct mix_factors {
  static constexpr std::uint64_t position = 0x9E3779B97F4A7C15ull;
  static constexpr std::uint64_t offset = 0x632BE59BD9B4E019ull; ///< added to the bits
  static constexpr std::uint64_t first = 0xD6E8FEB86659FD93ull;
  static constexpr std::uint64_t second = 0xBF58476D1CE4E5B9ull;
};

/// Mixes one element: its position and its bits, zero-extended to 64. Part of the wire format (src/wire/FORMAT.md):
/// a bijective 64-bit finaliser over both, so that neither a swap of two elements nor a changed bit cancels.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t position, std::uint64_t bits) noexcept {
  std::uint64_t x = (position + 1) * mix_factors::position ^ (bits + mix_factors::offset) * mix_factors::first;
  x = (x ^ (x >> 32)) * mix_factors::first;
  x = (x ^ (x >> 29)) * mix_factors::second;
  return x ^ (x >> 32);
}

/// Sum over i < count of mix(slot_first + i * slot_stride, element at start + i * stride).
[[nodiscard]] std::uint64_t digest_run(const std::byte* start, std::ptrdiff_t stride, std::size_t count,
                                       std::size_t size, std::uint64_t slot_first, std::ptrdiff_t slot_stride) noexcept;

/// Sum over i of mix(s, after[i]) - mix(s, before[i]) with s = slot_first + (positions[i] - slot.origin) * slot.stride.
/// `before` and `after` are dense, one element a position.
[[nodiscard]] std::uint64_t digest_change_at(std::uint64_t slot_first, Stretch slot,
                                             std::span<const std::uint16_t> positions, std::size_t size,
                                             const std::byte* before, const std::byte* after) noexcept;

/// The same for i < count at s = slot_first + i * slot_stride.
[[nodiscard]] std::uint64_t digest_change_of_run(std::uint64_t slot_first, std::ptrdiff_t slot_stride,
                                                 std::size_t count, std::size_t size, const std::byte* before,
                                                 const std::byte* after) noexcept;

/// Elements whose places are listed one by one: element i lies at addresses[i] (elements from the start of memory) and
/// in the slot at slot_first + slots[i]. Both lists are equally long.
struct ListedPlaces {
  std::span<const std::uint32_t> addresses;
  std::span<const std::uint32_t> slots;
  std::uint64_t slot_first = 0;
};

/// exchange() of values.hpp and, in the same pass, the sum over i of mix(s, what memory held), with s as above.
/// Requires positions (addresses) without repeats.
std::uint64_t exchange_and_digest(std::byte* start, Stretch stretch, std::uint64_t slot_first, Stretch slot,
                                  std::span<const std::uint16_t> positions, std::size_t size,
                                  std::byte* values) noexcept;
std::uint64_t exchange_and_digest(std::byte* start, const ListedPlaces& places, std::size_t size,
                                  std::byte* values) noexcept;

/// Sum over i of mix(s, the element in memory at positions[i]).
[[nodiscard]] std::uint64_t digest_at(const std::byte* start, Stretch stretch, std::uint64_t slot_first, Stretch slot,
                                      std::span<const std::uint16_t> positions, std::size_t size) noexcept;
[[nodiscard]] std::uint64_t digest_at(const std::byte* start, const ListedPlaces& places, std::size_t size) noexcept;

} // namespace deltawire::kernels
