#include "proof_text.hpp"

namespace deltawire::replay::proof {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ')
    text.remove_suffix(1);
  return text;
}

/// The items of "[a, b, c]".
Result<std::vector<std::string_view>> list_items(std::string_view text) {
  const std::string_view whole = trimmed(text);
  if (whole.size() < 2 || whole.front() != '[' || whole.back() != ']')
    return fail(Code::invalid_topology, "'{}' is no list in brackets", text);
  std::string_view rest = whole.substr(1, whole.size() - 2);
  std::vector<std::string_view> items;
  while (true) {
    const std::size_t comma = rest.find(',');
    items.push_back(trimmed(rest.substr(0, comma)));
    if (items.back().empty())
      return fail(Code::invalid_topology, "'{}' has an empty item", text);
    if (comma == std::string_view::npos)
      return items;
    rest.remove_prefix(comma + 1);
  }
}

bool is_name(const std::string& text) {
  static const std::regex name("[A-Za-z_][A-Za-z0-9_]*");
  return std::regex_match(text, name);
}

/// "a:b" into an item of this kind of text.
Result<void> read_range(std::string_view text, SliceItem& item) {
  const std::size_t colon = text.find(':');
  if (text.find(':', colon + 1) != std::string_view::npos)
    return fail(Code::unsupported, "'{}': steps are not supported yet", text);
  const auto begin = number(trimmed(text.substr(0, colon)));
  const auto end = number(trimmed(text.substr(colon + 1)));
  if (!begin || !end || *begin >= *end)
    return fail(Code::invalid_topology, "'{}' is no range a:b", text);
  item.begin = *begin;
  item.end = *end;
  return {};
}

} // namespace

std::optional<std::int64_t> number(std::string_view text) {
  if (text.empty() || text.size() > 18 || (text.size() > 1 && text.front() == '0'))
    return std::nullopt;
  std::int64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9')
      return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

Result<NamePattern> NamePattern::parse(const std::string& text) {
  NamePattern pattern;
  pattern.text_ = text;
  std::string expression;
  std::map<std::string, std::size_t> group_of;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '*') {
      pattern.parts_.push_back({Part::Kind::star, ""});
      pattern.groups_.push_back("*");
      expression += "([^]*?)"; // anything, as little as possible
      continue;
    }
    if (text[at] != '{') {
      pattern.parts_.push_back({Part::Kind::literal, std::string(1, text[at])});
      if (std::string_view("^$\\.*+?()[]{}|").find(text[at]) != std::string_view::npos)
        expression += '\\';
      expression += text[at];
      continue;
    }
    const std::size_t close = text.find('}', at);
    if (close == std::string::npos)
      return fail(Code::invalid_topology, "pattern '{}': '{{' without '}}'", text);
    const std::string name = text.substr(at + 1, close - at - 1);
    if (!is_name(name))
      return fail(Code::unsupported, "pattern '{}': '{{{}}}' is not supported by the proof", text, name);
    const bool is_piece = (at == 0 || text[at - 1] == '.') && (close + 1 == text.size() || text[close + 1] == '.');
    pattern.parts_.push_back({Part::Kind::name, name});
    if (const auto known = group_of.find(name); known != group_of.end()) {
      expression += fmt::format("(?:\\{})", known->second); // the same text again
    } else {
      pattern.groups_.push_back(name);
      group_of.emplace(name, pattern.groups_.size());
      expression += is_piece ? "([^.]+)" : "([0-9]+)";
    }
    at = close;
  }
  pattern.expression_ = std::regex(expression, std::regex::ECMAScript);
  return pattern;
}

std::optional<Match> NamePattern::match(const std::string& name) const {
  std::smatch found;
  if (!std::regex_match(name, found, expression_))
    return std::nullopt;
  Match match;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g] == "*")
      match.stars.push_back(found[g + 1].str());
    else
      match.names[groups_[g]] = found[g + 1].str();
  }
  return match;
}

Result<std::string> NamePattern::fill(const Match& match) const {
  std::string result;
  std::size_t stars = 0;
  for (const Part& part : parts_) {
    if (part.kind == Part::Kind::literal) {
      result += part.text;
    } else if (part.kind == Part::Kind::star) {
      if (stars == match.stars.size())
        return fail(Code::invalid_topology, "pattern '{}' has a '*' that the other name does not tell", text_);
      result += match.stars[stars++];
    } else {
      const auto found = match.names.find(part.text);
      if (found == match.names.end())
        return fail(Code::invalid_topology, "pattern '{}': nothing tells '{}'", text_, part.text);
      result += found->second;
    }
  }
  return result;
}

Result<std::vector<std::int64_t>> parse_view(std::string_view text) {
  auto items = list_items(text);
  if (!items)
    return pass_on(std::move(items));
  std::vector<std::int64_t> view;
  for (std::string_view item : *items) {
    const auto extent = number(item);
    if (!extent || *extent < 1)
      return fail(Code::invalid_topology, "view '{}': '{}' is no extent", text, item);
    view.push_back(*extent);
  }
  return view;
}

Result<std::vector<SliceItem>> parse_slice(std::string_view text) {
  auto items = list_items(text);
  if (!items)
    return pass_on(std::move(items));
  std::vector<SliceItem> slice;
  for (std::string_view word : *items) {
    SliceItem item;
    const std::size_t equals = word.find('=');
    if (word == ":") {
      item.kind = SliceItem::Kind::all;
    } else if (const auto index = number(word)) {
      item.kind = SliceItem::Kind::index;
      item.begin = *index;
    } else if (is_name(std::string(trimmed(word.substr(0, equals))))) {
      item.kind = SliceItem::Kind::name;
      item.name = trimmed(word.substr(0, equals));
      item.limited = equals != std::string_view::npos;
      if (item.limited)
        if (auto read = read_range(trimmed(word.substr(equals + 1)), item); !read)
          return pass_on(std::move(read));
    } else if (word.find(':') != std::string_view::npos) {
      item.kind = SliceItem::Kind::range;
      if (auto read = read_range(word, item); !read)
        return pass_on(std::move(read));
    } else {
      return fail(Code::invalid_topology, "slice '{}': '{}' is no item", text, word);
    }
    slice.push_back(std::move(item));
  }
  return slice;
}

Result<Cut> parse_cut(std::string_view text) {
  static const std::regex form("([A-Za-z_][A-Za-z0-9_]*):([0-9]+)( +by +slice)?");
  const std::string whole(trimmed(text));
  std::smatch found;
  if (!std::regex_match(whole, found, form))
    return fail(Code::unsupported, "cut '{}' is not supported by the proof", text);
  const auto dim = number(found[2].str());
  if (!dim)
    return fail(Code::invalid_topology, "cut '{}': '{}' is no dim", text, found[2].str());
  return Cut{found[1].str(), static_cast<std::size_t>(*dim), found[3].matched};
}

} // namespace deltawire::replay::proof
