// Numbers that a map computes from names: `l + 8*pp`.
#pragma once

#include "words.hpp"

#include <map>

namespace deltawire::replay::proof {

/// What is known: text by name.
using Names = std::map<std::string, std::string>;

/// A number plus numbers times names.
struct Sum {
  Index constant = 0;
  std::vector<std::pair<std::string, Index>> terms;
};

/// Terms between signs, each a number, a name, or one times the other.
[[nodiscard]] Result<Sum> parse_sum(std::string_view text);

/// Nothing where a name is not known or is no number.
[[nodiscard]] std::optional<Index> value_of(const Sum& sum, const Names& names);

/// A sum and what it came to.
struct Equation {
  Sum sum;
  Index value = 0;
};

/// Works out names that only equations know, one after the other; drops the equations that hold, and leaves those with
/// two unknown names or more. False where one cannot hold.
[[nodiscard]] bool solve(std::vector<Equation>& equations, Names& names);

} // namespace deltawire::replay::proof
