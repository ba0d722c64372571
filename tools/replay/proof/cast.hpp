// What a tensor of the checkpoint is on the wire: its dtype by the rules, and its elements by arithmetic on values,
// which has nothing in common with the product's casts but the result.
#pragma once

#include "rules.hpp"

#include "deltawire/dtype.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace deltawire::replay::proof {

/// The dtype that the trainer's rules give a tensor on the wire; fails where they ask for what there is not.
[[nodiscard]] Result<DType> wire_dtype_of(const Rules& trainer, const std::string& tensor, DType dtype);

/// All elements, cast: float32 to bfloat16 or float16 (to the nearest, ties to even, NaNs as the README says), or those
/// two to float32.
[[nodiscard]] std::vector<std::byte> cast_elements(std::span<const std::byte> elements, DType from, DType to);

} // namespace deltawire::replay::proof
