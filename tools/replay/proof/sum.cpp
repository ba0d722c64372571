#include "sum.hpp"

#include <algorithm>

namespace deltawire::replay::proof {
namespace {

constexpr Index most = Index{1} << 31; // so that no product passes 64 bits

std::optional<Index> known(const Names& names, const std::string& name) {
  const auto found = names.find(name);
  const auto value = found == names.end() ? std::nullopt : number(found->second);
  return value && *value <= most ? value : std::nullopt;
}

enum class Solved { holds, fails, open };

Solved solve_one(const Equation& equation, Names& names) {
  Index rest = equation.value - equation.sum.constant;
  std::string unknown;
  Index factor = 0;
  for (const auto& [name, times] : equation.sum.terms) {
    if (names.contains(name)) {
      const auto value = known(names, name);
      if (!value)
        return Solved::fails;
      rest -= times * *value;
    } else if (unknown.empty() || unknown == name) {
      unknown = name;
      factor += times;
    } else {
      return Solved::open;
    }
  }
  if (factor == 0)
    return rest == 0 ? Solved::holds : Solved::fails;
  if (rest % factor != 0 || rest / factor < 0)
    return Solved::fails;
  names[unknown] = std::to_string(rest / factor);
  return Solved::holds;
}

} // namespace

Result<Sum> parse_sum(std::string_view text) {
  const auto refuse = [&](std::string_view term) {
    return fail(Code::invalid_topology, "'{}' computes nothing: '{}' is no number, name, or number*name", text, term);
  };
  Sum sum;
  Index sign = 1;
  for (std::string_view rest = text;;) {
    const std::size_t end = rest.find_first_of("+-");
    const std::string_view term = rest.substr(0, end);
    Index factor = sign;
    std::string name;
    for (std::size_t begin = 0; begin <= term.size();) {
      const std::size_t star = std::min(term.find('*', begin), term.size());
      const std::string_view word = trimmed(term.substr(begin, star - begin));
      const auto value = number(word);
      if (value && *value < most && *value * std::abs(factor) < most)
        factor *= *value;
      else if (!value && is_name(word) && name.empty())
        name = word;
      else
        return refuse(term);
      begin = star + 1;
    }
    if (name.empty())
      sum.constant += factor;
    else
      sum.terms.emplace_back(name, factor);
    if (end == std::string_view::npos)
      return sum;
    sign = rest[end] == '+' ? 1 : -1;
    rest.remove_prefix(end + 1);
  }
}

std::optional<Index> value_of(const Sum& sum, const Names& names) {
  Index value = sum.constant;
  for (const auto& [name, factor] : sum.terms) {
    const auto term = known(names, name);
    if (!term)
      return std::nullopt;
    value += factor * *term;
  }
  return value;
}

bool solve(std::vector<Equation>& equations, Names& names) {
  for (bool progress = true; progress;) {
    progress = false;
    std::vector<Equation> open;
    for (Equation& equation : equations) {
      const Solved solved = solve_one(equation, names);
      if (solved == Solved::fails)
        return false;
      if (solved == Solved::open)
        open.push_back(std::move(equation));
      else
        progress = true;
    }
    equations = std::move(open);
  }
  return true;
}

} // namespace deltawire::replay::proof
