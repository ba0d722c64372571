// The words that the proof's little languages are made of, and shapes as text. The proof shares nothing with
// src/layout, on purpose: what the product misreads, this must not misread the same way.
#pragma once

#include "result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltawire::replay::proof {

using Index = std::int64_t;
using Shape = std::vector<Index>;

/// "[3, 9]"
[[nodiscard]] std::string text_of(const Shape& shape);

/// Product of the extents.
[[nodiscard]] Index count_of(const Shape& shape);

/// How many elements lie between neighbours of each dim, row-major.
[[nodiscard]] Shape strides_of(const Shape& shape);

/// Row-major.
[[nodiscard]] Shape coordinates_of(Index flat, const Shape& shape);

/// A decimal number: no sign, no leading zero, at most 18 digits.
[[nodiscard]] std::optional<Index> number(std::string_view text);

/// A letter or underscore, then letters, digits and underscores.
[[nodiscard]] bool is_name(std::string_view text);

/// "a:b": two numbers, the second one larger.
[[nodiscard]] std::optional<std::pair<Index, Index>> parse_range(std::string_view text);

/// Without the spaces around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// `f.toml:7: ` and the failure.
template <class T>
[[nodiscard]] tl::unexpected<Failure> at(const std::string& where, const Result<T>& result) {
  return fail(result.error().code, "{}: {}", where, result.error().message);
}

} // namespace deltawire::replay::proof
