// Numbers that a map computes: "e + 16*ep", a sum of whole multiples of names. The names are bound by a match, or are
// axes of the mesh and stand for the coordinate of the process. Immutable after parse().
#pragma once

#include "layout/shape.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltawire::layout {

/// A decimal number as names and slices write it: no sign, no leading zero, at most 18 digits.
[[nodiscard]] std::optional<Index> decimal(std::string_view text);

/// Letters, digits and '_', no digit first.
[[nodiscard]] bool is_name(std::string_view text);

/// Without the blanks and tabs at both ends.
[[nodiscard]] std::string_view trimmed(std::string_view text);

/// The values of names; few, so a list.
using Values = std::vector<std::pair<std::string, Index>>;
[[nodiscard]] std::optional<Index> find_value(const Values& values, std::string_view name);

struct Linear {
  Index constant = 0;
  std::vector<std::pair<std::string, Index>> terms; ///< name and factor; distinct names, no factor 0
  std::string text;

  /// Fails on anything but names, whole numbers, '+', '-' and '*', and on a product of two names.
  [[nodiscard]] static Result<Linear> parse(std::string_view text);

  /// Nothing where a name has no value, or past 2^62.
  [[nodiscard]] std::optional<Index> at(const Values& values) const;

  /// The value of the one name that `values` lacks, so that the sum is `result`: nothing where no whole number of 0 and
  /// more does it, or where not exactly one name is left open. `name` is set to it.
  [[nodiscard]] std::optional<Index> solve(const Values& values, Index result, std::string& name) const;

  /// How many names `values` lacks.
  [[nodiscard]] std::size_t open_names(const Values& values) const;
};

} // namespace deltawire::layout
