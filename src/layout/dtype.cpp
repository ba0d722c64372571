#include "deltawire/dtype.hpp"

#include <array>

namespace deltawire {
namespace {

struct Names {
  std::string_view name;
  std::string_view safetensors;
};

// By numeric value of DType. Safetensors names: https://github.com/huggingface/safetensors (README, Format).
constexpr std::array<Names, dtype_count> names = {{
  {"bool", "BOOL"},
  {"uint8", "U8"},
  {"uint16", "U16"},
  {"uint32", "U32"},
  {"uint64", "U64"},
  {"int8", "I8"},
  {"int16", "I16"},
  {"int32", "I32"},
  {"int64", "I64"},
  {"float16", "F16"},
  {"bfloat16", "BF16"},
  {"float32", "F32"},
  {"float64", "F64"},
  {"float8_e4m3", "F8_E4M3"},
  {"float8_e5m2", "F8_E5M2"},
}};

std::optional<DType> find(std::string_view text, std::string_view Names::*field) noexcept {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i].*field == text)
      return static_cast<DType>(i);
  return std::nullopt;
}

} // namespace

std::string_view to_string(DType dtype) noexcept {
  return names[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  return find(name, &Names::name);
}

std::optional<DType> dtype_from_safetensors(std::string_view name) noexcept {
  return find(name, &Names::safetensors);
}

std::string_view safetensors_name(DType dtype) noexcept {
  return names[static_cast<std::size_t>(dtype)].safetensors;
}

} // namespace deltawire
