// Element types that deltawire carries. Plain types: every room may include this header.
// A dtype names bits and their width; deltawire never does arithmetic on the values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace deltawire {

/// Element type of a tensor. The numeric values are part of the wire format: never renumber.
enum class DType : std::uint8_t {
  boolean = 0, ///< one byte an element
  u8 = 1,
  u16 = 2,
  u32 = 3,
  u64 = 4,
  i8 = 5,
  i16 = 6,
  i32 = 7,
  i64 = 8,
  f16 = 9,
  bf16 = 10,
  f32 = 11,
  f64 = 12,
  f8_e4m3 = 13,
  f8_e5m2 = 14,
};

inline constexpr std::size_t dtype_count = 15;

/// Bytes of one element: 1, 2, 4 or 8.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  constexpr std::uint8_t sizes[dtype_count] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1};
  return sizes[static_cast<std::size_t>(dtype)];
}

/// Name as the topology file and messages spell it, e.g. "bfloat16".
[[nodiscard]] std::string_view to_string(DType dtype) noexcept;

/// The dtype of a topology-file name ("bfloat16"); nothing for an unknown name.
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// The dtype of a safetensors name ("BF16", "F8_E4M3"); nothing for an unknown name.
[[nodiscard]] std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept;

/// Name as safetensors spells it, e.g. "BF16".
[[nodiscard]] std::string_view safetensors_name(DType dtype) noexcept;

} // namespace deltawire
