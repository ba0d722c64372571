#include "cast.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace deltawire::replay::proof {
namespace {

/// A 16-bit floating-point format.
struct Format {
  int exponent_bits;
  int fraction_bits;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] int least_exponent() const { return 1 - bias(); }
  [[nodiscard]] std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
};

Format format_of(DType dtype) {
  return dtype == DType::bf16 ? Format{8, 7} : Format{5, 10};
}

/// To the nearest value of the format: counted in units of its last place, which the exponent decides.
std::uint16_t narrowed(float value, const Format& format) {
  const std::uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    const std::uint32_t payload = (bits % 0x800000u) / (1u << (23 - format.fraction_bits));
    const std::uint32_t quiet = 1u << (format.fraction_bits - 1);
    return static_cast<std::uint16_t>(sign | format.infinity() | payload | quiet);
  }
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0)
    return static_cast<std::uint16_t>(sign);
  if (std::isinf(magnitude))
    return static_cast<std::uint16_t>(sign | format.infinity());
  const int exponent = std::max(std::ilogb(magnitude), format.least_exponent());
  const double units = std::ldexp(magnitude, format.fraction_bits - exponent);
  double whole = std::floor(units);
  const double rest = units - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) == 1))
    whole += 1;
  // Without the leading one, which counts as one step of the exponent: a carry, and a subnormal, come out right.
  const double steps = std::ldexp(exponent - format.least_exponent(), format.fraction_bits) + whole;
  const double most = format.infinity();
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::min(steps, most)));
}

float widened(std::uint16_t bits, const Format& format) {
  const bool negative = bits >= 0x8000;
  const std::uint32_t magnitude = bits % 0x8000u;
  const std::uint32_t fraction = magnitude % (1u << format.fraction_bits);
  const int exponent = static_cast<int>(magnitude / (1u << format.fraction_bits));
  if (magnitude > format.infinity()) { // a NaN: its payload is at the upper end of the wider one
    const std::uint32_t wide =
      (negative ? 0x80000000u : 0) + 0x7F800000u + fraction * (1u << (23 - format.fraction_bits));
    float value = 0;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  float value = std::numeric_limits<float>::infinity();
  if (magnitude < format.infinity())
    value = std::ldexp(static_cast<float>(fraction + (exponent == 0 ? 0 : 1u << format.fraction_bits)),
                       std::max(exponent, 1) - format.bias() - format.fraction_bits);
  return negative ? -value : value;
}

} // namespace

Result<DType> wire_dtype_of(const Rules& trainer, const std::string& tensor, DType dtype) {
  const Placement* placement = trainer.placement_of(tensor);
  const bool own = placement != nullptr && placement->wire_dtype;
  const std::string& text = own ? *placement->wire_dtype : trainer.wire_dtype;
  if (text == "keep" || text == to_string(dtype))
    return dtype;
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  if ((dtype == DType::f32 && (text == "bfloat16" || text == "float16")) || (half && text == "float32"))
    return *dtype_from_name(text);
  if (!own && !half && dtype != DType::f32 && dtype != DType::f64)
    return dtype; // only a placement means these
  return fail(Code::invalid_topology, "tensor '{}' is {}, and there is no cast to {}", tensor, to_string(dtype), text);
}

std::vector<std::byte> cast_elements(std::span<const std::byte> elements, DType from, DType to) {
  const std::size_t size = deltawire::size_of(from);
  const std::size_t count = elements.size() / size;
  std::vector<std::byte> result(count * deltawire::size_of(to));
  for (std::size_t i = 0; i < count; ++i)
    if (from == DType::f32) {
      float value = 0;
      std::memcpy(&value, elements.data() + i * size, size);
      const std::uint16_t bits = narrowed(value, format_of(to));
      std::memcpy(result.data() + i * sizeof(bits), &bits, sizeof(bits));
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, elements.data() + i * size, size);
      const float value = widened(bits, format_of(from));
      std::memcpy(result.data() + i * sizeof(value), &value, sizeof(value));
    }
  return result;
}

} // namespace deltawire::replay::proof
