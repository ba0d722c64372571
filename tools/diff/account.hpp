// The account of a comparison: a table for people, JSON for scripts.
#pragma once

#include "measure.hpp"

#include <string>

namespace deltawire::diff {

/// Two tables, plain ASCII and at most 120 columns: what changed, and the bytes under each encoding. A row for each of
/// the `top` tensors with the most changes, and one for all tensors.
[[nodiscard]] std::string table_text(const Comparison& comparison, std::size_t top);

/// Every tensor, as indented JSON with a final newline; a contract with scripts. `before` and `after` are the paths.
[[nodiscard]] std::string json_text(const Comparison& comparison, const std::string& before, const std::string& after);

} // namespace deltawire::diff
