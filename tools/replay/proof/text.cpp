#include "text.hpp"

#include <regex>
#include <tuple>

namespace deltawire::replay::proof {
namespace {

using Words = std::vector<std::string_view>;

/// What stands between commas, those in parentheses aside.
Result<Words> split(std::string_view text) {
  Words items;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '(')
      ++depth;
    if (i < text.size() && text[i] == ')')
      --depth;
    if (i < text.size() && (text[i] != ',' || depth != 0))
      continue;
    items.push_back(trimmed(text.substr(begin, i - begin)));
    if (items.back().empty())
      return fail(Code::invalid_topology, "'{}' has an empty item", text);
    begin = i + 1;
  }
  if (depth != 0)
    return fail(Code::invalid_topology, "'{}': parentheses do not pair", text);
  return items;
}

/// The items of "[a, b, c]"; none of "[]".
Result<Words> list_items(std::string_view text) {
  const std::string_view whole = trimmed(text);
  if (whole.size() < 2 || whole.front() != '[' || whole.back() != ']')
    return fail(Code::invalid_topology, "'{}' is no list in brackets", text);
  const std::string_view inside = whole.substr(1, whole.size() - 2);
  return trimmed(inside).empty() ? Result<Words>{} : split(inside);
}

Result<Index> parse_extent(std::string_view text) {
  if (text == ":")
    return 0;
  const auto extent = number(text);
  if (!extent || *extent < 1)
    return fail(Code::invalid_topology, "'{}' is no extent", text);
  return *extent;
}

Result<SliceItem> parse_item(std::string_view word) {
  SliceItem item;
  const std::size_t equals = word.find('=');
  const std::string_view name = trimmed(word.substr(0, equals));
  if (word == ":")
    return item;
  if (const auto index = number(word)) {
    item.kind = SliceItem::Kind::index;
    item.begin = *index;
    return item;
  }
  if (is_name(name)) {
    item.kind = SliceItem::Kind::name;
    item.name = name;
    item.limited = equals != std::string_view::npos;
    if (!item.limited)
      return item;
    const auto limits = parse_range(word.substr(equals + 1));
    if (!limits)
      return fail(Code::invalid_topology, "'{}' is no name=a:b", word);
    std::tie(item.begin, item.end) = *limits;
    return item;
  }
  if (const std::size_t colon = word.find(':'); colon != std::string_view::npos) {
    item.kind = SliceItem::Kind::range;
    const std::size_t second = word.find(':', colon + 1);
    const auto range = parse_range(word.substr(0, second));
    const auto step = second == std::string_view::npos ? Index{1} : number(trimmed(word.substr(second + 1)));
    if (!range || !step || *step < 1)
      return fail(Code::invalid_topology, "'{}' is no range a:b or a:b:step", word);
    std::tie(item.begin, item.end) = *range;
    item.step = *step;
    return item;
  }
  item.kind = SliceItem::Kind::sum;
  auto sum = parse_sum(word);
  if (!sum)
    return pass_on(std::move(sum));
  item.sum = std::move(*sum);
  return item;
}

} // namespace

Result<View> parse_view(std::string_view text) {
  auto items = list_items(text);
  if (!items)
    return pass_on(std::move(items));
  if (items->empty())
    return fail(Code::invalid_topology, "view '{}' has no dim", text);
  View view;
  std::size_t set = 0;
  for (std::string_view item : *items) {
    const bool grouped = item.front() == '(';
    if (grouped && item.back() != ')')
      return fail(Code::invalid_topology, "view '{}': '{}' is no extent", text, item);
    auto parts = grouped ? split(item.substr(1, item.size() - 2)) : Result<Words>(Words{item});
    if (!parts)
      return pass_on(std::move(parts));
    ++set;
    bool rest = false;
    for (std::string_view part : *parts) {
      const auto extent = parse_extent(part);
      if (!extent || (*extent == 0 && rest))
        return fail(Code::invalid_topology, "view '{}': '{}' is no extent", text, extent ? item : part);
      rest = rest || *extent == 0;
      view.push_back({*extent, grouped || *extent == 0 ? set : 0});
    }
  }
  return view;
}

Result<Slice> parse_slice(std::string_view text) {
  auto items = list_items(text);
  if (!items)
    return pass_on(std::move(items));
  Slice slice;
  for (std::string_view word : *items) {
    auto item = parse_item(word);
    if (!item)
      return fail(item.error().code, "slice '{}': {}", text, item.error().message);
    slice.push_back(std::move(*item));
  }
  return slice;
}

Result<Cut> parse_cut(std::string_view text) {
  static const std::regex form("([A-Za-z_][A-Za-z0-9_]*) *: *([0-9]+|flat)( +cyclic| +by +slice| +by *(\\[.*\\]))?");
  const std::string whole(trimmed(text));
  std::smatch found;
  if (!std::regex_match(whole, found, form))
    return fail(Code::invalid_topology, "'{}' is no cut", text);
  Cut cut;
  cut.axis = found[1].str();
  if (found[2].str() == "flat") {
    if (found[3].matched)
      return fail(Code::invalid_topology, "'{}': flat takes nothing after it", text);
    cut.of = Cut::Of::flat;
    return cut;
  }
  const auto dim = number(found[2].str());
  if (!dim)
    return fail(Code::invalid_topology, "'{}': '{}' is no dim", text, found[2].str());
  cut.dim = static_cast<std::size_t>(*dim);
  if (found[4].matched) {
    cut.of = Cut::Of::segments;
    const std::string list = found[4].str(); // the items are parts of it
    auto items = list_items(list);
    if (!items)
      return pass_on(std::move(items));
    for (std::string_view item : *items) {
      const auto length = number(item);
      if (!length || *length < 1)
        return fail(Code::invalid_topology, "'{}': '{}' is no length", text, item);
      cut.segments.push_back(*length);
    }
  } else if (found[3].matched) {
    cut.cyclic = found[3].str().ends_with("cyclic");
    cut.of = cut.cyclic ? Cut::Of::whole : Cut::Of::slices;
  }
  return cut;
}

} // namespace deltawire::replay::proof
