#include "layout/linear.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

constexpr Index limit = Index{1} << 62;

/// sum += factor * value, unless it passes the limit.
bool add_product(Index& sum, Index factor, Index value) {
  Index product = 0;
  return !__builtin_mul_overflow(factor, value, &product) && !__builtin_add_overflow(sum, product, &sum) &&
         sum <= limit && sum >= -limit;
}

std::string_view without_spaces_before(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view{} : text.substr(begin);
}

/// Takes a name or a number off the front.
std::string_view take_operand(std::string_view& text) {
  text = without_spaces_before(text);
  const auto end = std::min(text.find_first_of(" \t+-*"), text.size());
  const std::string_view operand = text.substr(0, end);
  text = without_spaces_before(text.substr(end));
  return operand;
}

} // namespace

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos)
    return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::optional<Index> decimal(std::string_view text) {
  if (text.empty() || text.size() > 18 || (text.size() > 1 && text.front() == '0'))
    return std::nullopt;
  Index value = 0;
  for (char c : text) {
    if (c < '0' || c > '9')
      return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

bool is_name(std::string_view text) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !text.empty() && letter(text.front()) &&
         std::all_of(text.begin(), text.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

std::optional<Index> find_value(const Values& values, std::string_view name) {
  for (const auto& [known, value] : values)
    if (known == name)
      return value;
  return std::nullopt;
}

Result<Linear> Linear::parse(std::string_view text) {
  Linear result;
  result.text = text;
  const auto refuse = [&](std::string_view why) {
    return fail(Code::invalid_topology, "'{}': {}; write a sum such as 'e + 16*ep'", text, why);
  };
  std::string_view rest = without_spaces_before(text);
  Index sign = 1;
  if (!rest.empty() && rest.front() == '-') {
    sign = -1;
    rest.remove_prefix(1);
  }
  for (;;) {
    Index factor = sign;
    std::string_view name;
    for (;;) {
      const std::string_view operand = take_operand(rest);
      if (const auto value = decimal(operand)) {
        if (__builtin_mul_overflow(factor, *value, &factor) || factor > limit || factor < -limit)
          return refuse("a number is too large");
      } else if (!is_name(operand)) {
        return refuse(operand.empty() ? "a name or a number is missing"
                                      : fmt::format("'{}' is neither a name nor a whole number", operand));
      } else if (!name.empty()) {
        return refuse(fmt::format("'{}' times '{}' is no whole multiple", name, operand));
      } else {
        name = operand;
      }
      if (rest.empty() || rest.front() != '*')
        break;
      rest.remove_prefix(1);
    }
    if (name.empty()) {
      if (!add_product(result.constant, 1, factor))
        return refuse("a number is too large");
    } else {
      const auto known =
        std::find_if(result.terms.begin(), result.terms.end(), [&](const auto& term) { return term.first == name; });
      if (known == result.terms.end())
        result.terms.emplace_back(name, factor);
      else if (!add_product(known->second, 1, factor))
        return refuse("a number is too large");
    }
    if (rest.empty())
      break;
    if (rest.front() != '+' && rest.front() != '-')
      return refuse(fmt::format("'{}' is not understood", rest));
    sign = rest.front() == '+' ? 1 : -1;
    rest.remove_prefix(1);
  }
  std::erase_if(result.terms, [](const auto& term) { return term.second == 0; });
  return result;
}

std::optional<Index> Linear::at(const Values& values) const {
  Index sum = constant;
  for (const auto& [name, factor] : terms) {
    const auto value = find_value(values, name);
    if (!value || !add_product(sum, factor, *value))
      return std::nullopt;
  }
  return sum;
}

std::size_t Linear::open_names(const Values& values) const {
  return static_cast<std::size_t>(
    std::count_if(terms.begin(), terms.end(), [&](const auto& term) { return !find_value(values, term.first); }));
}

std::optional<Index> Linear::solve(const Values& values, Index result, std::string& name) const {
  Index sum = constant;
  Index factor_of_open = 0;
  for (const auto& [term, factor] : terms) {
    if (const auto value = find_value(values, term)) {
      if (!add_product(sum, factor, *value))
        return std::nullopt;
    } else if (factor_of_open != 0) {
      return std::nullopt;
    } else {
      factor_of_open = factor;
      name = term;
    }
  }
  Index rest = 0;
  if (factor_of_open == 0 || __builtin_sub_overflow(result, sum, &rest) || rest % factor_of_open != 0 ||
      rest / factor_of_open < 0)
    return std::nullopt;
  return rest / factor_of_open;
}

} // namespace deltawire::layout
