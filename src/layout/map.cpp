#include "layout/map.hpp"

#include <algorithm>
#include <numeric>

namespace deltawire::layout {
namespace {

constexpr std::size_t most_dims = 12;
constexpr Index most_stretches = Index{1} << 22; // a bound on what a hostile slice can make us enumerate

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos)
    return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// A decimal number as names and slices write it: no sign, no leading zero.
std::optional<Index> number(std::string_view text) {
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

/// "[a, b, c]" -> its items, trimmed.
Result<std::vector<std::string_view>> items(std::string_view key, std::string_view text) {
  const std::string_view body = trimmed(text);
  if (body.size() < 2 || body.front() != '[' || body.back() != ']')
    return fail(Code::invalid_topology, "{} = \"{}\": expected a list in brackets", key, text);
  std::vector<std::string_view> result;
  std::string_view rest = trimmed(body.substr(1, body.size() - 2));
  if (rest.empty())
    return result;
  for (;;) {
    const std::size_t comma = rest.find(',');
    result.push_back(trimmed(rest.substr(0, comma)));
    if (result.back().empty())
      return fail(Code::invalid_topology, "{} = \"{}\": item {} is empty", key, text, result.size() - 1);
    if (comma == std::string_view::npos)
      break;
    rest = rest.substr(comma + 1);
  }
  if (result.size() > most_dims)
    return fail(Code::limit_exceeded, "{} = \"{}\": more than {} dims", key, text, most_dims);
  return result;
}

Result<Shape> parse_view(std::string_view text) {
  auto list = items("view", text);
  if (!list)
    return pass_on(std::move(list));
  Shape view;
  for (std::string_view item : *list) {
    const auto extent = number(item);
    if (!extent || *extent < 1)
      return fail(Code::invalid_topology, "view = \"{}\": '{}' is no extent; use whole numbers from 1", text, item);
    view.push_back(*extent);
  }
  if (view.empty())
    return fail(Code::invalid_topology, "view = \"{}\": a view has at least one dim", text);
  if (auto count = element_count(view); !count)
    return pass_on(std::move(count));
  return view;
}

Result<Span> parse_range(std::string_view text, std::string_view item) {
  const std::size_t colon = item.find(':');
  if (item.find(':', colon + 1) != std::string_view::npos)
    return fail(Code::unsupported, "slice = \"{}\": '{}': steps are not supported yet", text, item);
  const auto begin = number(trimmed(item.substr(0, colon)));
  const auto end = number(trimmed(item.substr(colon + 1)));
  if (!begin || !end)
    return fail(Code::invalid_topology, "slice = \"{}\": '{}': write both ends as whole numbers (a:b), or ':'", text,
                item);
  if (*begin >= *end)
    return fail(Code::invalid_topology, "slice = \"{}\": '{}' keeps nothing", text, item);
  return Span{*begin, *end};
}

Result<SliceItem> parse_item(std::string_view text, std::string_view item) {
  SliceItem result;
  if (item == ":")
    return result;
  if (const std::size_t equals = item.find('='); equals != std::string_view::npos) {
    result.kind = SliceItem::Kind::bound;
    result.name = trimmed(item.substr(0, equals));
    result.limited = true;
    if (!is_name(result.name) || item.find(':', equals) == std::string_view::npos)
      return fail(Code::invalid_topology, "slice = \"{}\": '{}': expected name=a:b", text, item);
    auto range = parse_range(text, trimmed(item.substr(equals + 1)));
    if (!range)
      return pass_on(std::move(range));
    result.range = *range;
    return result;
  }
  if (item.find(':') != std::string_view::npos) {
    auto range = parse_range(text, item);
    if (!range)
      return pass_on(std::move(range));
    result.kind = SliceItem::Kind::range;
    result.range = *range;
    return result;
  }
  if (const auto index = number(item)) {
    result.kind = SliceItem::Kind::index;
    result.range = {*index, *index + 1};
    return result;
  }
  if (is_name(item)) {
    result.kind = SliceItem::Kind::bound;
    result.name = item;
    return result;
  }
  return fail(Code::invalid_topology, "slice = \"{}\": '{}' is none of ':', 'a:b', a number, a name, 'name=a:b'", text,
              item);
}

Result<std::vector<SliceItem>> parse_slice(std::string_view text) {
  auto list = items("slice", text);
  if (!list)
    return pass_on(std::move(list));
  std::vector<SliceItem> slice;
  for (std::string_view item : *list) {
    auto parsed = parse_item(text, item);
    if (!parsed)
      return pass_on(std::move(parsed));
    if (parsed->kind == SliceItem::Kind::bound)
      for (const SliceItem& before : slice)
        if (before.name == parsed->name)
          return fail(Code::invalid_topology, "slice = \"{}\": '{}' is bound twice", text, parsed->name);
    slice.push_back(std::move(*parsed));
  }
  return slice;
}

bool keeps_dim(const SliceItem& item) {
  return item.kind == SliceItem::Kind::all || item.kind == SliceItem::Kind::range;
}

Result<void> check_names(const Map& map, Map::Direction direction) {
  auto sliced = [&](std::string_view name) {
    return map.slice && std::any_of(map.slice->begin(), map.slice->end(), [&](const SliceItem& item) {
             return item.kind == SliceItem::Kind::bound && item.name == name;
           });
  };
  for (const std::string& name : map.slot.names())
    if (!map.parameter.has(name) && !sliced(name))
      return fail(Code::invalid_topology, "slot '{}': neither the parameter '{}' nor the slice binds '{}'",
                  map.slot.text(), map.parameter.text(), name);
  if (direction == Map::Direction::from_slot)
    for (const std::string& name : map.parameter.names())
      if (!map.slot.has(name))
        return fail(Code::invalid_topology,
                    "parameter '{}': a worker's parameters follow from the slots, and slot '{}' does not bind '{}'",
                    map.parameter.text(), map.slot.text(), name);
  if (map.slice)
    for (const SliceItem& item : *map.slice) {
      if (item.kind != SliceItem::Kind::bound)
        continue;
      if (!map.slot.has(item.name) && !map.parameter.has(item.name))
        return fail(Code::invalid_topology, "slice: neither the slot '{}' nor the parameter '{}' contains '{{{}}}'",
                    map.slot.text(), map.parameter.text(), item.name);
      if (item.limited && map.parameter.has(item.name))
        return fail(Code::invalid_topology, "slice: '{}' takes its one value from the parameter's name; drop '={}:{}'",
                    item.name, item.range.begin, item.range.end);
    }
  const bool slot_takes_stars = map.slot.stars() > 0 || direction == Map::Direction::from_slot;
  if (slot_takes_stars && map.slot.stars() != map.parameter.stars())
    return fail(Code::invalid_topology,
                "parameter '{}' has {} '*' and slot '{}' has {}: the i-th star of one is the i-th of the other",
                map.parameter.text(), map.parameter.stars(), map.slot.text(), map.slot.stars());
  return {};
}

Result<Map> compile_unprefixed(const MapRule& rule, Map::Direction direction) {
  Map map;
  map.where = rule.where;
  map.transpose = rule.transpose;
  auto parameter = Pattern::parse(rule.parameter);
  if (!parameter)
    return pass_on(std::move(parameter));
  auto slot = Pattern::parse(rule.slot.empty() ? rule.parameter : rule.slot);
  if (!slot)
    return pass_on(std::move(slot));
  map.parameter = std::move(*parameter);
  map.slot = std::move(*slot);
  if (!rule.view.empty()) {
    auto view = parse_view(rule.view);
    if (!view)
      return pass_on(std::move(view));
    map.view = std::move(*view);
  }
  if (!rule.slice.empty()) {
    auto slice = parse_slice(rule.slice);
    if (!slice)
      return pass_on(std::move(slice));
    map.slice = std::move(*slice);
    if (map.view && map.view->size() != map.slice->size())
      return fail(Code::invalid_topology, "slice = \"{}\" has {} items, the view has {} dims", rule.slice,
                  map.slice->size(), map.view->size());
    if (map.transpose && std::count_if(map.slice->begin(), map.slice->end(), keeps_dim) < 2)
      return fail(Code::invalid_topology, "slice = \"{}\" keeps fewer than two dims, so there is nothing to transpose",
                  rule.slice);
  }
  if (auto names = check_names(map, direction); !names)
    return pass_on(std::move(names));
  return map;
}

/// "map of parameter 'x' [320, 192] to slot 'y'", behind the rule's place.
std::string describe(const MapUse& use, const std::string& parameter, const Shape* shape) {
  return fmt::format("{}{}map of parameter '{}'{}{} to slot '{}'", use.map->where, use.map->where.empty() ? "" : ": ",
                     parameter, shape ? " " : "", shape ? to_string(*shape) : "", use.slot);
}

/// The factors of each dim that a view of `shape` has, by number of view dims; every dim takes at least one.
std::optional<std::vector<std::size_t>> split(const Shape& view, const Shape& shape) {
  std::vector<std::size_t> factors;
  std::size_t at = 0;
  for (Index extent : shape) {
    const std::size_t first = at;
    Index product = 1;
    do {
      if (at == view.size() || product > extent / view[at])
        return std::nullopt;
      product *= view[at++];
    } while (product < extent);
    factors.push_back(at - first);
  }
  // what is left can only be ones; they belong to the last dim
  if (!std::all_of(view.begin() + static_cast<std::ptrdiff_t>(at), view.end(), [](Index n) { return n == 1; }) ||
      (shape.empty() && !view.empty()))
    return std::nullopt;
  if (!factors.empty())
    factors.back() += view.size() - at;
  return factors;
}

bool keeps_all_after(const std::vector<Part>& parts, std::size_t j) {
  return std::all_of(parts.begin() + static_cast<std::ptrdiff_t>(j) + 1, parts.end(), [](const Part& part) {
    return part.kept == Span{0, part.extent};
  });
}

/// Sorted positions that the digits from part `j` on keep, offset by the digits before.
void collect(const std::vector<Part>& parts, std::size_t j, Index offset, std::vector<Span>& out) {
  auto push = [&](Index begin, Index end) {
    if (begin == end)
      return;
    if (!out.empty() && out.back().end == begin)
      out.back().end = end;
    else
      out.push_back({begin, end});
  };
  const Part& part = parts[j];
  if (keeps_all_after(parts, j))
    return push(offset + part.kept.begin * part.weight, offset + part.kept.end * part.weight);
  for (Index digit = part.kept.begin; digit < part.kept.end; ++digit)
    collect(parts, j + 1, offset + digit * part.weight, out);
}

/// Joins a part with the next one of the same slot dim where the next keeps all its digits: one range of positions.
void join_parts(AppliedMap& applied) {
  for (SlotDim& slot_dim : applied.slot_dims) {
    std::vector<Part>& parts = applied.parts[slot_dim.dim];
    for (std::size_t k = slot_dim.parts.size(); k-- > 1;) {
      const std::size_t outer = slot_dim.parts[k - 1];
      const std::size_t inner = slot_dim.parts[k];
      const Part in = parts[inner];
      if (inner != outer + 1 || in.kept != Span{0, in.extent})
        continue;
      Part& out = parts[outer];
      out = {out.extent * in.extent, in.weight, {out.kept.begin * in.extent, out.kept.end * in.extent}, false};
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(inner));
      for (SlotDim& other : applied.slot_dims)
        if (other.dim == slot_dim.dim)
          for (std::size_t& p : other.parts)
            p -= p > inner ? 1 : 0;
      slot_dim.parts.erase(slot_dim.parts.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
}

Result<AppliedMap> apply_unprefixed(const MapUse& use, const Shape& shape) {
  const Map& map = *use.map;
  const Shape& view = map.view ? *map.view : shape;
  std::vector<std::size_t> factors(shape.size(), 1);
  if (map.view) {
    auto found = split(view, shape);
    if (!found)
      return fail(Code::invalid_topology,
                  "the view {} does not split these dims (a view splits dims, in order, and never "
                  "joins them)",
                  to_string(view));
    factors = std::move(*found);
  }
  if (map.slice && map.slice->size() != view.size())
    return fail(Code::invalid_topology, "the slice has {} items, but there are {} dims", map.slice->size(),
                view.size());

  AppliedMap applied;
  struct Kept {
    std::size_t dim, part, order;
  };
  std::vector<Kept> sequence; // `order` counts the kept parts of a dim
  std::size_t at = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<Part> parts(factors[d]);
    Index weight = 1;
    for (std::size_t j = factors[d]; j-- > 0;) {
      parts[j].extent = view[at + j];
      parts[j].weight = weight;
      weight *= view[at + j];
    }
    std::size_t order = 0;
    for (std::size_t j = 0; j < factors[d]; ++j, ++at) {
      Part& part = parts[j];
      const SliceItem all;
      const SliceItem& item = map.slice ? (*map.slice)[at] : all;
      switch (item.kind) {
      case SliceItem::Kind::all:
        part.kept = {0, part.extent};
        break;
      case SliceItem::Kind::range:
      case SliceItem::Kind::index:
        part.kept = item.range;
        break;
      case SliceItem::Kind::bound:
        part.kept = {use.bound[at], use.bound[at] + 1};
        break;
      }
      if (part.kept.end > part.extent)
        return fail(Code::invalid_topology, "slice item {} keeps {}:{}, past the {} of its dim", at, part.kept.begin,
                    part.kept.end, part.extent);
      part.dropped = !keeps_dim(item);
      if (!part.dropped)
        sequence.push_back({d, j, order++});
    }
    applied.parts.push_back(std::move(parts));
  }
  if (map.transpose) {
    if (sequence.size() < 2)
      return fail(Code::invalid_topology, "fewer than two dims are kept, so there is nothing to transpose");
    std::swap(sequence[sequence.size() - 1], sequence[sequence.size() - 2]);
  }
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    const Kept& now = sequence[i];
    const bool joins = i > 0 && sequence[i - 1].dim == now.dim && sequence[i - 1].order + 1 == now.order;
    if (!joins) {
      applied.slot_dims.push_back({now.dim, {}});
      applied.slot_shape.push_back(1);
    }
    const Span& kept = applied.parts[now.dim][now.part].kept;
    applied.slot_dims.back().parts.push_back(now.part);
    applied.slot_shape.back() *= kept.end - kept.begin;
  }
  join_parts(applied);
  for (const auto& parts : applied.parts) {
    Index stretches = 1;
    for (std::size_t j = 0; j + 1 < parts.size(); ++j) {
      if (keeps_all_after(parts, j))
        break;
      const Index digits = std::max<Index>(parts[j].kept.end - parts[j].kept.begin, 1);
      if (stretches > most_stretches / digits)
        return fail(Code::limit_exceeded, "the slice cuts a dim into more than {} stretches", most_stretches);
      stretches *= digits;
    }
    std::vector<Span> kept;
    collect(parts, 0, 0, kept);
    applied.kept.push_back(std::move(kept));
  }
  return applied;
}

} // namespace

Result<Map> Map::compile(const MapRule& rule, Direction direction) {
  auto map = compile_unprefixed(rule, direction);
  if (!map)
    return fail(map.error().code, "{}: {}", rule.where, map.error().message);
  return map;
}

const Map& Map::identity() {
  static const Map map = [] {
    Map result;
    result.parameter = *Pattern::parse("*");
    result.slot = *Pattern::parse("*");
    return result;
  }();
  return map;
}

Result<std::vector<MapUse>> uses_for_parameter(const Map& map, const std::string& name, const Shape& shape) {
  std::vector<MapUse> uses;
  auto bindings = map.parameter.match(name);
  if (!bindings)
    return uses;
  const Shape& view = map.view ? *map.view : shape;
  const std::size_t items = map.slice ? map.slice->size() : 0;
  if (map.slice && items != view.size())
    return fail(Code::invalid_topology, "{}: the slice has {} items, but parameter '{}' has shape {}", map.where, items,
                name, to_string(shape));

  // One odometer digit a bound name; a name that the parameter binds has one value.
  std::vector<Span> values(items, Span{0, 1});
  for (std::size_t i = 0; i < items; ++i) {
    const SliceItem& item = (*map.slice)[i];
    if (item.kind != SliceItem::Kind::bound)
      continue;
    if (const std::string* text = bindings->find(item.name)) {
      const auto value = number(*text);
      if (!value)
        return uses; // no number, so this name is not meant
      values[i] = {*value, *value + 1};
    } else {
      values[i] = item.limited ? item.range : Span{0, view[i]};
      if (values[i].end > view[i])
        return fail(Code::invalid_topology,
                    "{}: slice item {} lets '{}' run to {}, past the {} of its dim in "
                    "parameter '{}' {}",
                    map.where, i, item.name, values[i].end, view[i], name, to_string(shape));
    }
    if (values[i].begin == values[i].end)
      return uses;
  }
  std::vector<Index> digits(items);
  for (std::size_t i = 0; i < items; ++i)
    digits[i] = values[i].begin;
  for (;;) {
    Bindings all = *bindings;
    for (std::size_t i = 0; i < items; ++i)
      if (const SliceItem& item = (*map.slice)[i]; item.kind == SliceItem::Kind::bound && !all.find(item.name))
        all.names.emplace_back(item.name, std::to_string(digits[i]));
    uses.push_back({&map, map.slot.substitute(all), digits});
    std::size_t i = items;
    while (i-- > 0) {
      if (++digits[i] < values[i].end)
        break;
      digits[i] = values[i].begin;
    }
    if (i == static_cast<std::size_t>(-1))
      return uses;
  }
}

std::optional<SlotUse> use_for_slot(const Map& map, const std::string& slot) {
  const auto bindings = map.slot.match(slot);
  if (!bindings)
    return std::nullopt;
  SlotUse result;
  result.use.map = &map;
  result.use.slot = slot;
  for (std::size_t i = 0; map.slice && i < map.slice->size(); ++i) {
    const SliceItem& item = (*map.slice)[i];
    result.use.bound.push_back(0);
    if (item.kind != SliceItem::Kind::bound)
      continue;
    const auto value = number(*bindings->find(item.name));
    if (!value || (item.limited && (*value < item.range.begin || *value >= item.range.end)))
      return std::nullopt;
    result.use.bound.back() = *value;
  }
  result.parameter = map.parameter.substitute(*bindings);
  // "{x}" may bind a word on the slot's side and stand for digits on the parameter's: then the map does not apply.
  if (!map.parameter.match(result.parameter))
    return std::nullopt;
  return result;
}

Result<AppliedMap> apply(const MapUse& use, const std::string& parameter, const Shape& shape) {
  auto applied = apply_unprefixed(use, shape);
  if (!applied)
    return fail(applied.error().code, "{}: {}", describe(use, parameter, &shape), applied.error().message);
  return applied;
}

Result<ShapeHints> parameter_shapes(const MapUse& use, const std::string& parameter, const Shape& slot_shape) {
  const Map& map = *use.map;
  ShapeHints hints;
  if (map.view) {
    // The view tells every extent but not which dims are parts of one: try each grouping of neighbours.
    hints.exact = true;
    const Shape& view = *map.view;
    for (std::size_t joins = 0; joins < (std::size_t{1} << (view.size() - 1)); ++joins) {
      Shape shape;
      for (std::size_t d = 0; d < view.size(); ++d) {
        if (d > 0 && (joins >> (d - 1) & 1) != 0)
          shape.back() *= view[d];
        else
          shape.push_back(view[d]);
      }
      const auto applied = apply_unprefixed(use, shape);
      if (applied && applied->slot_shape == slot_shape &&
          std::find(hints.shapes.begin(), hints.shapes.end(), shape) == hints.shapes.end())
        hints.shapes.push_back(std::move(shape));
    }
    if (hints.shapes.empty())
      return fail(Code::invalid_topology, "{}: no parameter viewed as {} gives the slot's shape {} by this slice",
                  describe(use, parameter, nullptr), to_string(view), to_string(slot_shape));
    return hints;
  }
  Shape kept = slot_shape;
  if (map.transpose) {
    if (kept.size() < 2)
      return fail(Code::invalid_topology, "{}: a slot of shape {} cannot be transposed",
                  describe(use, parameter, nullptr), to_string(slot_shape));
    std::swap(kept[kept.size() - 1], kept[kept.size() - 2]);
  }
  Shape shape;
  if (!map.slice) {
    shape = kept;
  } else {
    const auto count = static_cast<std::size_t>(std::count_if(map.slice->begin(), map.slice->end(), keeps_dim));
    if (count != kept.size())
      return fail(Code::invalid_topology, "{}: the slice keeps {} dims, the slot has shape {}",
                  describe(use, parameter, nullptr), count, to_string(slot_shape));
    std::size_t next = 0;
    for (std::size_t i = 0; i < map.slice->size(); ++i) {
      const SliceItem& item = (*map.slice)[i];
      const Index slot_extent = keeps_dim(item) ? kept[next++] : 1;
      if (item.kind == SliceItem::Kind::all)
        shape.push_back(slot_extent);
      else if (item.kind == SliceItem::Kind::bound)
        shape.push_back(std::max(use.bound[i] + 1, item.limited ? item.range.end : 0));
      else
        shape.push_back(item.range.end);
    }
  }
  hints.shapes.push_back(std::move(shape));
  return hints;
}

} // namespace deltawire::layout
