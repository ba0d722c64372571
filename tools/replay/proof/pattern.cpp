#include "pattern.hpp"

namespace deltawire::replay::proof {
namespace {

std::size_t longest(std::string_view text, bool digits) {
  std::size_t length = 0;
  while (length < text.size() && (digits ? text[length] >= '0' && text[length] <= '9' : text[length] != '.'))
    ++length;
  return length;
}

} // namespace

Result<NamePattern::Part> NamePattern::parse_braces(const std::string& inside, bool is_piece) {
  const std::size_t equals = inside.find('=');
  const std::string name(trimmed(std::string_view(inside).substr(0, equals)));
  if (is_name(name)) {
    Part part{is_piece ? Part::Kind::piece : Part::Kind::digits, name};
    if (equals != std::string::npos) {
      part.limits = parse_range(std::string_view(inside).substr(equals + 1));
      if (!part.limits)
        return fail(Code::invalid_topology, "'{}' is no name=a:b", inside);
    }
    return part;
  }
  auto sum = parse_sum(inside);
  if (!sum)
    return pass_on(std::move(sum));
  return Part{Part::Kind::sum, inside, std::nullopt, std::move(*sum)};
}

Result<NamePattern> NamePattern::parse(const std::string& text) {
  NamePattern pattern;
  pattern.text_ = text;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '*') {
      pattern.parts_.push_back({Part::Kind::star, ""});
    } else if (text[i] != '{') {
      if (pattern.parts_.empty() || pattern.parts_.back().kind != Part::Kind::literal)
        pattern.parts_.push_back({Part::Kind::literal, ""});
      pattern.parts_.back().text += text[i];
    } else {
      const std::size_t close = text.find('}', i);
      if (close == std::string::npos)
        return fail(Code::invalid_topology, "pattern '{}': '{{' without '}}'", text);
      const bool is_piece = (i == 0 || text[i - 1] == '.') && (close + 1 == text.size() || text[close + 1] == '.');
      auto part = parse_braces(text.substr(i + 1, close - i - 1), is_piece);
      if (!part)
        return at(fmt::format("pattern '{}'", text), part);
      pattern.parts_.push_back(std::move(*part));
      i = close;
    }
  }
  return pattern;
}

std::optional<Match> NamePattern::match(std::string_view name) const {
  Match found;
  if (!match_rest(0, name, found))
    return std::nullopt;
  return found;
}

/// Whether `rest` is what the parts from `part` on stand for; `found` then has all that they took.
bool NamePattern::match_rest(std::size_t part, std::string_view rest, Match& found) const {
  if (part == parts_.size())
    return rest.empty();
  const auto& [kind, text, limits, sum] = parts_[part];
  const auto goes_on = [&](std::size_t taken) { return match_rest(part + 1, rest.substr(taken), found); };
  if (kind == Part::Kind::literal)
    return rest.starts_with(text) && goes_on(text.size());
  if (kind == Part::Kind::star) {
    for (std::size_t length = 0; length <= rest.size(); ++length) {
      found.stars.emplace_back(rest.substr(0, length));
      if (goes_on(length))
        return true;
      found.stars.pop_back();
    }
    return false;
  }
  if (const auto known = found.names.find(text); known != found.names.end()) // the same text again
    return rest.starts_with(known->second) && goes_on(known->second.size());
  for (std::size_t length = longest(rest, kind != Part::Kind::piece); length > 0; --length) {
    const auto value = number(rest.substr(0, length));
    if (kind == Part::Kind::sum) {
      if (!value)
        continue;
      found.computed.push_back({sum, *value});
      if (goes_on(length))
        return true;
      found.computed.pop_back();
    } else {
      if (limits && (!value || *value < limits->first || *value >= limits->second))
        continue;
      found.names[text] = rest.substr(0, length);
      if (goes_on(length))
        return true;
      found.names.erase(text);
    }
  }
  return false;
}

Result<std::string> NamePattern::fill(const Names& names, const std::vector<std::string>& stars) const {
  std::string result;
  std::size_t used = 0;
  for (const auto& [kind, text, limits, sum] : parts_) {
    if (kind == Part::Kind::literal) {
      result += text;
    } else if (kind == Part::Kind::star) {
      if (used == stars.size())
        return fail(Code::invalid_topology, "pattern '{}' has a '*' that the other name does not tell", text_);
      result += stars[used++];
    } else if (kind == Part::Kind::sum) {
      const auto value = value_of(sum, names);
      if (!value || *value < 0)
        return fail(Code::invalid_topology, "pattern '{}': nothing tells a number '{}'", text_, text);
      result += std::to_string(*value);
    } else {
      const auto found = names.find(text);
      if (found == names.end())
        return fail(Code::invalid_topology, "pattern '{}': nothing tells '{}'", text_, text);
      result += found->second;
    }
  }
  return result;
}

std::vector<std::string> NamePattern::names() const {
  std::vector<std::string> result;
  for (const Part& part : parts_) {
    if (part.kind == Part::Kind::piece || part.kind == Part::Kind::digits)
      result.push_back(part.text);
    for (const auto& [name, factor] : part.sum.terms)
      result.push_back(name);
  }
  return result;
}

} // namespace deltawire::replay::proof
