#include "layout/wire_dtype.hpp"

namespace deltawire::layout {
namespace {

/// The kinds that training casts: never integers, bool or fp8, whose bits mean what they mean only as they are.
bool is_cast(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

} // namespace

std::optional<WireDType> wire_dtype_from_name(std::string_view name) noexcept {
  if (name == "keep")
    return WireDType{};
  const auto dtype = dtype_from_name(name);
  if (dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32)
    return WireDType{dtype};
  return std::nullopt;
}

std::string_view to_string(WireDType wire) noexcept {
  return wire.cast_to ? to_string(*wire.cast_to) : "keep";
}

bool casts_to(DType held, DType wire) noexcept {
  return held == wire || (held == DType::f32 && (wire == DType::bf16 || wire == DType::f16)) ||
         (wire == DType::f32 && (held == DType::bf16 || held == DType::f16));
}

Result<DType> wire_dtype_of(DType held, WireDType wire, AskedBy asked_by) {
  if (!wire.cast_to || *wire.cast_to == held || (asked_by == AskedBy::update && !is_cast(held)))
    return held;
  if (casts_to(held, *wire.cast_to))
    return *wire.cast_to;
  return fail(
    Code::invalid_topology, "{} is not cast to {}{}; say wire_dtype = \"keep\" in a [[trainer.placement]] of it",
    to_string(held), to_string(*wire.cast_to),
    is_cast(held) ? ", only float32 is, and float16 and bfloat16 to float32" : ", only floating point is, and not fp8");
}

} // namespace deltawire::layout
