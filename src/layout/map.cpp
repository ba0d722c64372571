// How a rule is read and which names it matches. What it takes of shapes is in selection.cpp.
#include "layout/map.hpp"

#include "layout/selection.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace deltawire::layout {
namespace {

constexpr std::size_t most_dims = 12;
constexpr std::size_t most_uses = std::size_t{1} << 20; // of one map for one name

/// A key of a rule with its text, as errors cite it.
struct Cited {
  const char* key;
  std::string_view text;

  template <class... Args>
  tl::unexpected<Failure> refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(Code::invalid_topology, "{} = \"{}\": {}", key, text, fmt::format(format, std::forward<Args>(args)...));
  }
};

/// "a, (b, c), d" -> its items outside parentheses, trimmed.
Result<std::vector<std::string_view>> split_items(const Cited& cited, std::string_view body) {
  std::vector<std::string_view> result;
  if (trimmed(body).empty())
    return result;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= body.size(); ++at) {
    if (at < body.size()) {
      depth += body[at] == '(' ? 1 : body[at] == ')' ? -1 : 0;
      if (depth < 0 || depth > 1)
        return cited.refuse("parentheses do not pair, or stand in each other");
      if (depth > 0 || body[at] != ',')
        continue;
    } else if (depth != 0) {
      return cited.refuse("'(' without ')'");
    }
    result.push_back(trimmed(body.substr(begin, at - begin)));
    if (result.back().empty())
      return cited.refuse("item {} is empty", result.size() - 1);
    begin = at + 1;
  }
  if (result.size() > most_dims)
    return fail(Code::limit_exceeded, "{} = \"{}\": more than {} dims", cited.key, cited.text, most_dims);
  return result;
}

Result<std::vector<std::string_view>> bracketed_items(const Cited& cited) {
  const std::string_view body = trimmed(cited.text);
  if (body.size() < 2 || body.front() != '[' || body.back() != ']')
    return cited.refuse("expected a list in brackets");
  return split_items(cited, body.substr(1, body.size() - 2));
}

Result<Index> parse_extent(const Cited& cited, std::string_view item) {
  if (item == ":")
    return View::rest;
  const auto extent = decimal(item);
  if (!extent || *extent < 1)
    return cited.refuse("'{}' is no extent; use whole numbers from 1, or ':' for what is left of a dim", item);
  return *extent;
}

Result<View> parse_view(const Cited& cited) {
  auto list = bracketed_items(cited);
  if (!list)
    return pass_on(std::move(list));
  View view;
  view.text = cited.text;
  bool after_number = false;
  for (std::string_view item : *list) {
    std::vector<std::string_view> parts{item};
    const bool grouped = item.front() == '(';
    if (grouped) {
      if (item.back() != ')')
        return cited.refuse("'{}' is neither one extent nor one pair of parentheses", item);
      auto inside = split_items(cited, item.substr(1, item.size() - 2));
      if (!inside)
        return pass_on(std::move(inside));
      if (inside->empty())
        return cited.refuse("'{}' holds no extent", item);
      parts = std::move(*inside);
    }
    bool has_rest = false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto extent = parse_extent(cited, parts[i]);
      if (!extent)
        return pass_on(std::move(extent));
      if (*extent == View::rest && std::exchange(has_rest, true))
        return cited.refuse("'{}' has ':' twice", item);
      const bool number = !grouped && *extent != View::rest;
      view.extents.push_back(*extent);
      view.links.push_back(i > 0                    ? View::Link::same_dim
                           : number && after_number ? View::Link::either
                                                    : View::Link::other_dim);
      after_number = number;
    }
  }
  if (view.extents.empty())
    return cited.refuse("a view has at least one dim");
  if (view.extents.size() > most_dims)
    return fail(Code::limit_exceeded, "{} = \"{}\": more than {} dims", cited.key, cited.text, most_dims);
  Shape numbers;
  for (Index extent : view.extents)
    numbers.push_back(extent == View::rest ? 1 : extent);
  if (auto count = element_count(numbers); !count)
    return pass_on(std::move(count));
  return view;
}

/// "a:b" or "a:b:step".
Result<SliceItem> parse_range(const Cited& cited, std::string_view item, bool may_step) {
  SliceItem result;
  result.kind = SliceItem::Kind::range;
  const std::size_t colon = item.find(':');
  const std::size_t second = item.find(':', colon + 1);
  const auto begin = decimal(trimmed(item.substr(0, colon)));
  const auto end =
    decimal(trimmed(item.substr(colon + 1, second == std::string_view::npos ? second : second - colon - 1)));
  if (!begin || !end)
    return cited.refuse("'{}': write both ends as whole numbers (a:b), or ':'", item);
  if (*begin >= *end)
    return cited.refuse("'{}' keeps nothing", item);
  result.range = {*begin, *end};
  if (second != std::string_view::npos) {
    const auto step = decimal(trimmed(item.substr(second + 1)));
    if (!may_step || !step || *step < 1)
      return cited.refuse("'{}': {}", item, may_step ? "the step is no whole number from 1" : "a name takes no step");
    result.step = *step;
  }
  return result;
}

Result<SliceItem> parse_item(const Cited& cited, std::string_view item, bool may_compute) {
  SliceItem result;
  if (item == ":")
    return result;
  if (const std::size_t equals = item.find('='); equals != std::string_view::npos) {
    const std::string_view name = trimmed(item.substr(0, equals));
    if (!is_name(name) || item.find(':', equals) == std::string_view::npos)
      return cited.refuse("'{}': expected name=a:b", item);
    auto range = parse_range(cited, trimmed(item.substr(equals + 1)), false);
    if (!range)
      return pass_on(std::move(range));
    result.kind = SliceItem::Kind::bound;
    result.name = name;
    result.limited = true;
    result.range = range->range;
    return result;
  }
  if (item.find(':') != std::string_view::npos)
    return parse_range(cited, item, true);
  if (const auto index = decimal(item)) {
    result.kind = SliceItem::Kind::index;
    result.range = {*index, *index + 1};
    return result;
  }
  if (is_name(item)) {
    result.kind = SliceItem::Kind::bound;
    result.name = item;
    return result;
  }
  if (item.find_first_of("+-*") != std::string_view::npos && item.front() != '-') {
    if (!may_compute)
      return cited.refuse("'{}': only a slot's name and slot_slice may compute", item);
    auto sum = Linear::parse(item);
    if (!sum)
      return cited.refuse("{}", sum.error().message);
    result.kind = SliceItem::Kind::computed;
    result.sum = std::move(*sum);
    return result;
  }
  return cited.refuse("'{}' is none of ':', 'a:b', 'a:b:step', a number, a name, 'name=a:b'{}", item,
                      may_compute ? ", a sum" : "");
}

Result<std::vector<SliceItem>> parse_slice(const Cited& cited, bool may_compute) {
  auto list = bracketed_items(cited);
  if (!list)
    return pass_on(std::move(list));
  std::vector<SliceItem> slice;
  for (std::string_view item : *list) {
    auto parsed = parse_item(cited, item, may_compute);
    if (!parsed)
      return pass_on(std::move(parsed));
    if (parsed->kind == SliceItem::Kind::bound)
      for (const SliceItem& before : slice)
        if (before.name == parsed->name)
          return cited.refuse("'{}' is bound twice", parsed->name);
    slice.push_back(std::move(*parsed));
  }
  return slice;
}

Result<Selection> parse_selection(const Cited& view, const Cited& slice, bool may_compute) {
  Selection selection;
  if (!view.text.empty()) {
    auto parsed = parse_view(view);
    if (!parsed)
      return pass_on(std::move(parsed));
    selection.view = std::move(*parsed);
  }
  if (!slice.text.empty()) {
    auto parsed = parse_slice(slice, may_compute);
    if (!parsed)
      return pass_on(std::move(parsed));
    selection.slice = std::move(*parsed);
    if (selection.view && selection.view->extents.size() != selection.slice->size())
      return slice.refuse("{} items, the view has {} dims", selection.slice->size(), selection.view->extents.size());
  }
  return selection;
}

bool keeps_dim(const SliceItem& item) {
  return item.kind == SliceItem::Kind::all || item.kind == SliceItem::Kind::range;
}

const SliceItem* bound_item(const Selection& selection, std::string_view name) {
  if (selection.slice)
    for (const SliceItem& item : *selection.slice)
      if (item.kind == SliceItem::Kind::bound && item.name == name)
        return &item;
  return nullptr;
}

Result<void> check_order(const Map& map, const MapRule& rule) {
  const auto refuse = [&](std::string_view why) {
    return fail(Code::invalid_topology, "permute = {}: {}", to_string(rule.permute), why);
  };
  std::optional<std::size_t> kept; // dims, where the rule tells
  if (map.of_parameter.slice)
    kept = static_cast<std::size_t>(
      std::count_if(map.of_parameter.slice->begin(), map.of_parameter.slice->end(), keeps_dim));
  else if (map.of_parameter.view)
    kept = map.of_parameter.view->extents.size();
  if (map.transpose && kept && *kept < 2)
    return fail(Code::invalid_topology, "slice = \"{}\" keeps fewer than two dims, so there is nothing to transpose",
                rule.slice);
  if (map.permute.empty())
    return {};
  if (map.transpose)
    return refuse("transpose is a permute too; write one of them");
  std::vector<bool> named(map.permute.size(), false);
  for (Index dim : map.permute) {
    if (dim < 0 || dim >= static_cast<Index>(named.size()) || named[static_cast<std::size_t>(dim)])
      return refuse(fmt::format("name each kept dim once, 0 to {}", named.size() - 1));
    named[static_cast<std::size_t>(dim)] = true;
  }
  if (kept && *kept != named.size())
    return refuse(fmt::format("{} dims, but {} are kept", named.size(), *kept));
  return {};
}

/// Names of sums that are not axes, and a failure where a name is both an axis and bound.
class NameCheck {
public:
  NameCheck(Map& map, Direction direction, const Mesh& mesh) : map_(map), direction_(direction), mesh_(mesh) {}

  Result<void> run() {
    for (const Selection* selection : {&map_.of_parameter, &map_.of_slot})
      if (selection->slice)
        for (const SliceItem& item : *selection->slice)
          if (item.kind == SliceItem::Kind::bound)
            sliced_.insert(item.name);
    if (auto axes = read_axes(); !axes)
      return axes;
    if (auto told = direction_ == Direction::from_parameter ? check_trainer() : check_worker(); !told)
      return told;
    return check_stars();
  }

private:
  template <class... Args>
  static tl::unexpected<Failure> refuse(fmt::format_string<Args...> format, Args&&... args) {
    return fail(Code::invalid_topology, "{}", fmt::format(format, std::forward<Args>(args)...));
  }

  [[nodiscard]] bool is_axis(std::string_view name) const { return mesh_.find(name).has_value(); }

  /// Whether the map gives the name a value of its own: then it is no axis.
  [[nodiscard]] bool is_bound(const std::string& name) const {
    return map_.parameter.has(name) || bound_item(map_.of_parameter, name) != nullptr ||
           (direction_ == Direction::from_slot && (map_.slot.has(name) || sliced_.contains(name)));
  }

  void use_axis(const std::string& name) {
    if (std::find(map_.axes.begin(), map_.axes.end(), name) == map_.axes.end())
      map_.axes.push_back(name);
  }

  Result<void> read_sum(const Linear& sum) {
    for (const auto& term : sum.terms) {
      const std::string& name = term.first;
      if (is_axis(name) && is_bound(name))
        return refuse("'{}': '{}' is an axis of the mesh and a name that the map binds; rename one", sum.text, name);
      if (is_axis(name))
        use_axis(name);
      else if (direction_ == Direction::from_parameter && !is_bound(name))
        return refuse("'{}': '{}' is no axis of the mesh, and neither the parameter '{}' nor the slice binds it",
                      sum.text, name, map_.parameter.text());
    }
    return {};
  }

  Result<void> read_axes() {
    for (const Linear& sum : map_.slot.computed())
      if (auto read = read_sum(sum); !read)
        return read;
    for (const std::string& name : map_.slot.names())
      if (is_axis(name) && !map_.parameter.has(name) && !sliced_.contains(name))
        use_axis(name);
    if (!map_.of_slot.slice)
      return {};
    for (SliceItem& item : *map_.of_slot.slice) {
      const bool other = map_.parameter.has(item.name) || map_.slot.has(item.name) ||
                         bound_item(map_.of_parameter, item.name) != nullptr;
      if (item.kind == SliceItem::Kind::bound && !item.limited && is_axis(item.name) && !other) {
        item.kind = SliceItem::Kind::computed; // a coordinate
        item.sum.terms = {{item.name, 1}};
        item.sum.text = item.name;
      }
      if (item.kind == SliceItem::Kind::computed)
        if (auto read = read_sum(item.sum); !read)
          return read;
    }
    return {};
  }

  Result<void> check_trainer() {
    for (const std::string& name : map_.slot.names())
      if (!map_.parameter.has(name) && bound_item(map_.of_parameter, name) == nullptr && !is_axis(name))
        return refuse("slot '{}': neither the parameter '{}' nor the slice binds '{}'", map_.slot.text(),
                      map_.parameter.text(), name);
    if (map_.of_slot.slice)
      for (const SliceItem& item : *map_.of_slot.slice) {
        if (item.kind != SliceItem::Kind::bound)
          continue;
        if (!map_.parameter.has(item.name) && bound_item(map_.of_parameter, item.name) == nullptr)
          return refuse("slot_slice: neither the parameter '{}' nor the slice binds '{}'", map_.parameter.text(),
                        item.name);
        if (item.limited)
          return refuse("slot_slice: '{}' takes its value from the parameter's side; drop '={}:{}'", item.name,
                        item.range.begin, item.range.end);
      }
    if (map_.of_parameter.slice)
      for (const SliceItem& item : *map_.of_parameter.slice) {
        if (item.kind != SliceItem::Kind::bound)
          continue;
        if (!map_.slot.has(item.name) && !map_.parameter.has(item.name) && !in_sum(item.name) &&
            bound_item(map_.of_slot, item.name) == nullptr)
          return refuse("slice: neither the slot '{}' nor the parameter '{}' contains '{{{}}}'", map_.slot.text(),
                        map_.parameter.text(), item.name);
        if (item.limited && map_.parameter.has(item.name))
          return refuse("slice: '{}' takes its one value from the parameter's name; drop '={}:{}'", item.name,
                        item.range.begin, item.range.end);
      }
    return {};
  }

  [[nodiscard]] std::vector<const Linear*> sums() const {
    std::vector<const Linear*> result;
    for (const Linear& sum : map_.slot.computed())
      result.push_back(&sum);
    if (map_.of_slot.slice)
      for (const SliceItem& item : *map_.of_slot.slice)
        if (item.kind == SliceItem::Kind::computed)
          result.push_back(&item.sum);
    return result;
  }

  [[nodiscard]] bool in_sum(std::string_view name) const {
    for (const Linear* sum : sums())
      for (const auto& term : sum->terms)
        if (term.first == name)
          return true;
    return false;
  }

  /// A worker's names follow from the slot, or run over limits that the map states.
  Result<void> check_worker() {
    std::set<std::string, std::less<>> known(map_.slot.names().begin(), map_.slot.names().end());
    for (const Axis& axis : mesh_.axes())
      known.insert(axis.name);
    for (const std::string& name : map_.parameter.names())
      if (map_.parameter.limit(name))
        known.insert(name);
    for (const Selection* selection : {&map_.of_slot, &map_.of_parameter})
      for (std::size_t i = 0; selection->slice && i < selection->slice->size(); ++i) {
        const SliceItem& item = (*selection->slice)[i];
        const bool extent = selection->view && selection->view->extents[i] != View::rest;
        if (item.kind == SliceItem::Kind::bound && (item.limited || extent || selection == &map_.of_slot))
          known.insert(item.name);
      }
    const std::vector<const Linear*> all = sums();
    for (bool more = true; more;) {
      more = false;
      for (const Linear* sum : all) {
        std::string open;
        const auto count = std::count_if(sum->terms.begin(), sum->terms.end(), [&](const auto& term) {
          const bool is_open = !known.contains(term.first);
          if (is_open)
            open = term.first;
          return is_open;
        });
        if (count == 1) {
          known.insert(open);
          more = true;
        }
      }
    }
    for (const Linear* sum : all)
      for (const auto& term : sum->terms)
        if (!known.contains(term.first))
          return refuse("'{}': a slot's number does not tell the names one by one; give limits, as in {{{}=0:8}}",
                        sum->text, term.first);
    for (const std::string& name : map_.parameter.names())
      if (!known.contains(name))
        return refuse("parameter '{}': a worker's parameters follow from the slots, and slot '{}' does not bind '{}' "
                      "(or give its limits, as in {{{}=0:8}})",
                      map_.parameter.text(), map_.slot.text(), name, name);
    if (map_.of_parameter.slice)
      for (const SliceItem& item : *map_.of_parameter.slice)
        if (item.kind == SliceItem::Kind::bound && !known.contains(item.name))
          return refuse("slice: neither the slot '{}' nor the parameter '{}' contains '{{{}}}'; where every value "
                        "reads the same slot, give its limits ({}=0:8)",
                        map_.slot.text(), map_.parameter.text(), item.name, item.name);
    return {};
  }

  Result<void> check_stars() {
    const bool slot_takes_stars = map_.slot.stars() > 0 || direction_ == Direction::from_slot;
    if (slot_takes_stars && map_.slot.stars() != map_.parameter.stars())
      return refuse("parameter '{}' has {} '*' and slot '{}' has {}: the i-th star of one is the i-th of the other",
                    map_.parameter.text(), map_.parameter.stars(), map_.slot.text(), map_.slot.stars());
    return {};
  }

  Map& map_;
  Direction direction_;
  const Mesh& mesh_;
  std::set<std::string, std::less<>> sliced_;
};

Result<Map> compile_unprefixed(const MapRule& rule, Direction direction, const Mesh& mesh) {
  Map map;
  map.where = rule.where;
  map.transpose = rule.transpose;
  map.permute = rule.permute;
  auto parameter = Pattern::parse(rule.parameter);
  if (!parameter)
    return pass_on(std::move(parameter));
  auto slot = Pattern::parse(rule.slot.empty() ? rule.parameter : rule.slot, true);
  if (!slot)
    return pass_on(std::move(slot));
  map.parameter = std::move(*parameter);
  map.slot = std::move(*slot);
  auto of_parameter = parse_selection({"view", rule.view}, {"slice", rule.slice}, false);
  if (!of_parameter)
    return pass_on(std::move(of_parameter));
  auto of_slot = parse_selection({"slot_view", rule.slot_view}, {"slot_slice", rule.slot_slice}, true);
  if (!of_slot)
    return pass_on(std::move(of_slot));
  map.of_parameter = std::move(*of_parameter);
  map.of_slot = std::move(*of_slot);
  if (auto order = check_order(map, rule); !order)
    return pass_on(std::move(order));
  if (auto names = NameCheck(map, direction, mesh).run(); !names)
    return pass_on(std::move(names));
  return map;
}

Values coordinates_of(const Mesh& mesh, Index rank) {
  Values values;
  const std::vector<Index> coordinates = mesh.coordinates(rank);
  for (std::size_t a = 0; a < coordinates.size(); ++a)
    values.emplace_back(mesh.axes()[a].name, coordinates[a]);
  return values;
}

/// The value of a sum where each axis in it is where the sum is largest. Nothing past 2^62.
std::optional<Index> largest(const Linear& sum, Values values, const Mesh& mesh) {
  for (const auto& [name, factor] : sum.terms)
    if (const auto axis = mesh.find(name))
      for (auto& [known, value] : values)
        if (known == name)
          value = factor > 0 ? mesh.axes()[*axis].size - 1 : 0;
  return sum.at(values);
}

/// Values first, then the coordinates of axes.
Values with_coordinates(const Values& values, const Values& coordinates) {
  Values all = values;
  for (const auto& coordinate : coordinates)
    if (!find_value(values, coordinate.first))
      all.push_back(coordinate);
  return all;
}

/// The names of a match that are numbers.
Values numbers_of(const Bindings& bindings) {
  Values values;
  for (const auto& [name, text] : bindings.names)
    if (const auto value = decimal(text))
      values.emplace_back(name, *value);
  return values;
}

std::string place_of(const Map& map) {
  return map.where.empty() ? std::string{} : map.where + ": ";
}

/// Goes through the values of all names that a slot's name leaves open.
class SlotExpansion {
public:
  SlotExpansion(const Map& map, const std::string& slot, Shape viewed, Bindings bindings, const Mesh& mesh,
                Index worker)
    : map_(map), slot_(slot), viewed_(std::move(viewed)), bindings_(std::move(bindings)), mesh_(mesh),
      coordinates_(coordinates_of(mesh, worker)) {}

  Result<std::vector<MapUse>> run() {
    Values values = numbers_of(bindings_);
    for (const std::string& name : map_.axes)
      if (const std::string* text = bindings_.find(name);
          text != nullptr && decimal(*text) != find_value(coordinates_, name))
        return std::move(uses_);
    if (auto done = expand(values); !done)
      return pass_on(std::move(done));
    return std::move(uses_);
  }

private:
  /// The slot's name gives numbers to the names of its sums, as far as one name a sum is open. False: it cannot be.
  bool solve(Values& values) const {
    for (bool more = true; more;) {
      more = false;
      for (std::size_t i = 0; i < map_.slot.computed().size(); ++i) {
        const Linear& sum = map_.slot.computed()[i];
        const auto number = decimal(bindings_.computed[i]);
        if (!number)
          return false;
        const Values all = with_coordinates(values, coordinates_);
        const std::size_t open = sum.open_names(all);
        if (open == 0 && sum.at(all) != number)
          return false;
        if (open != 1)
          continue;
        std::string name;
        const auto value = sum.solve(all, *number, name);
        if (!value || bindings_.find(name) != nullptr) // bound to a word
          return false;
        values.emplace_back(name, *value);
        more = true;
      }
    }
    return true;
  }

  Result<void> try_each(const Values& values, const std::string& name, Span range) {
    if (range.end - range.begin > static_cast<Index>(most_uses))
      return fail(Code::limit_exceeded, "{}'{}' takes more than {} values", place_of(map_), name, most_uses);
    for (Index value = range.begin; value < range.end; ++value) {
      Values more = values;
      more.emplace_back(name, value);
      if (auto done = expand(std::move(more)); !done)
        return done;
    }
    return {};
  }

  Result<void> expand(Values values) {
    if (!solve(values))
      return {};
    const Values all = with_coordinates(values, coordinates_);
    const auto open = [&](const std::string& name) {
      return !find_value(values, name) && bindings_.find(name) == nullptr;
    };
    if (map_.of_slot.slice)
      for (std::size_t i = 0; i < map_.of_slot.slice->size(); ++i) {
        const SliceItem& item = (*map_.of_slot.slice)[i];
        if (item.kind == SliceItem::Kind::bound && open(item.name))
          return try_each(values, item.name, item.limited ? item.range : Span{0, viewed_[i]});
      }
    for (const std::string& name : map_.parameter.names())
      if (const auto limit = map_.parameter.limit(name); limit && open(name) && !mesh_.find(name))
        return try_each(values, name, {limit->first, limit->second});
    if (map_.of_parameter.slice)
      for (std::size_t i = 0; i < map_.of_parameter.slice->size(); ++i) {
        const SliceItem& item = (*map_.of_parameter.slice)[i];
        if (item.kind != SliceItem::Kind::bound || !open(item.name))
          continue;
        if (item.limited)
          return try_each(values, item.name, item.range);
        const auto& view = map_.of_parameter.view;
        if (view && view->extents[i] != View::rest && !in_slot_sum(item.name))
          return try_each(values, item.name, {0, view->extents[i]});
      }
    // what is left stands in sums of the slot's slice: each of their numbers may be meant
    if (map_.of_slot.slice)
      for (std::size_t i = 0; i < map_.of_slot.slice->size(); ++i) {
        const SliceItem& item = (*map_.of_slot.slice)[i];
        if (item.kind != SliceItem::Kind::computed || item.sum.open_names(all) != 1)
          continue;
        if (viewed_[i] > static_cast<Index>(most_uses))
          return fail(Code::limit_exceeded, "{}'{}' counts along a dim of slot '{}' of more than {} numbers",
                      place_of(map_), item.sum.text, slot_, most_uses);
        for (Index number = 0; number < viewed_[i]; ++number) {
          std::string name;
          Values more = values;
          if (const auto value = item.sum.solve(all, number, name)) {
            more.emplace_back(name, *value);
            if (auto done = expand(std::move(more)); !done)
              return done;
          }
        }
        return {};
      }
    return add(all);
  }

  [[nodiscard]] bool in_slot_sum(std::string_view name) const {
    if (map_.of_slot.slice)
      for (const SliceItem& item : *map_.of_slot.slice)
        for (const auto& term : item.sum.terms)
          if (term.first == name)
            return true;
    return false;
  }

  Result<void> add(const Values& all) {
    MapUse use;
    use.map = &map_;
    use.slot = slot_;
    if (map_.of_parameter.slice)
      for (const SliceItem& item : *map_.of_parameter.slice) {
        use.bound.push_back(0);
        if (item.kind != SliceItem::Kind::bound)
          continue;
        const auto value = find_value(all, item.name);
        if (!value || (item.limited && (*value < item.range.begin || *value >= item.range.end)))
          return {};
        use.bound.back() = *value;
      }
    if (map_.of_slot.slice)
      for (const SliceItem& item : *map_.of_slot.slice) {
        use.slot_bound.push_back(0);
        if (item.kind == SliceItem::Kind::computed)
          use.slot_bound.back() = item.sum.at(all).value_or(-1);
        if (item.kind != SliceItem::Kind::bound)
          continue;
        const auto value = find_value(all, item.name);
        if (!value || (item.limited && (*value < item.range.begin || *value >= item.range.end)))
          return {};
        use.slot_bound.back() = *value;
      }
    use.slot_most = use.slot_bound;
    Bindings told = bindings_;
    for (const auto& [name, value] : all)
      if (told.find(name) == nullptr)
        told.names.emplace_back(name, std::to_string(value));
    use.parameter = map_.parameter.substitute(told);
    // "{x}" may bind a word on the slot's side and stand for digits on the parameter's: then the map does not apply.
    if (!map_.parameter.match(use.parameter))
      return {};
    if (uses_.size() == most_uses)
      return fail(Code::limit_exceeded, "{}slot '{}' is read in more than {} ways", place_of(map_), slot_, most_uses);
    uses_.push_back(std::move(use));
    return {};
  }

  const Map& map_;
  const std::string& slot_;
  Shape viewed_;
  Bindings bindings_;
  const Mesh& mesh_;
  Values coordinates_;
  std::vector<MapUse> uses_;
};

} // namespace

Result<Map> Map::compile(const MapRule& rule, Direction direction, const Mesh& mesh) {
  auto map = compile_unprefixed(rule, direction, mesh);
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

Result<std::vector<MapUse>> selections_of_parameter(const Map& map, const std::string& name, const Shape& shape) {
  std::vector<MapUse> uses;
  const auto bindings = map.parameter.match(name);
  if (!bindings)
    return uses;
  auto viewed = view_of(map.of_parameter, shape);
  if (!viewed)
    return fail(viewed.error().code, "{}map of parameter '{}' {} to slot '{}': {}", place_of(map), name,
                to_string(shape), map.slot.text(), viewed.error().message);
  const std::size_t items = map.of_parameter.slice ? map.of_parameter.slice->size() : 0;

  // One odometer digit a bound name; a name that the parameter binds has one value.
  std::vector<Span> values(items, Span{0, 1});
  std::size_t count = 1;
  for (std::size_t i = 0; i < items; ++i) {
    const SliceItem& item = (*map.of_parameter.slice)[i];
    if (item.kind != SliceItem::Kind::bound)
      continue;
    const Index extent = viewed->extents[i];
    if (const std::string* text = bindings->find(item.name)) {
      const auto value = decimal(*text);
      if (!value)
        return uses; // no number, so this name is not meant
      values[i] = {*value, *value + 1};
    } else {
      values[i] = item.limited ? item.range : Span{0, extent};
      if (values[i].end > extent)
        return fail(Code::invalid_topology,
                    "{}slice item {} lets '{}' run to {}, past the {} of its dim in parameter '{}' {}", place_of(map),
                    i, item.name, values[i].end, extent, name, to_string(shape));
    }
    if (values[i].begin == values[i].end)
      return uses;
    const Index length = values[i].end - values[i].begin;
    if (static_cast<std::size_t>(length) > most_uses / count)
      return fail(Code::limit_exceeded, "{}parameter '{}' has more than {} slots", place_of(map), name, most_uses);
    count *= static_cast<std::size_t>(length);
  }
  std::vector<Index> digits(items);
  for (std::size_t i = 0; i < items; ++i)
    digits[i] = values[i].begin;
  for (;;) {
    uses.push_back({&map, name, map.slot.text(), digits, {}, {}});
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

Result<std::vector<MapUse>> uses_for_parameter(const Map& map, const std::string& name, const Shape& shape,
                                               const Mesh& mesh, Index rank) {
  auto selections = selections_of_parameter(map, name, shape);
  if (!selections || selections->empty())
    return selections;
  std::vector<MapUse> uses;
  const Bindings bindings = *map.parameter.match(name);
  const Values coordinates = coordinates_of(mesh, rank);
  const Values told = numbers_of(bindings);
  for (MapUse& use : *selections) {
    Bindings all = bindings;
    Values numbers = told;
    for (std::size_t i = 0; i < use.bound.size(); ++i)
      if (const SliceItem& item = (*map.of_parameter.slice)[i];
          item.kind == SliceItem::Kind::bound && !all.find(item.name)) {
        all.names.emplace_back(item.name, std::to_string(use.bound[i]));
        numbers.emplace_back(item.name, use.bound[i]);
      }
    numbers = with_coordinates(numbers, coordinates);
    for (const std::string& axis : map.axes)
      if (!all.find(axis))
        all.names.emplace_back(axis, std::to_string(*find_value(coordinates, axis)));
    bool meant = true; // a word where a number is wanted, or a number past a limit, is not
    const auto value_of = [&](const Linear& sum) -> Result<Index> {
      const auto value = sum.at(numbers);
      meant = meant && value.has_value();
      if (value && *value < 0)
        return fail(Code::invalid_topology, "{}'{}' is {} for parameter '{}' on rank {}; it must not be below 0",
                    place_of(map), sum.text, *value, name, rank);
      return value.value_or(0);
    };
    for (const Linear& sum : map.slot.computed()) {
      auto value = value_of(sum);
      if (!value)
        return pass_on(std::move(value));
      all.computed.push_back(std::to_string(*value));
    }
    for (std::size_t i = 0; map.of_slot.slice && i < map.of_slot.slice->size(); ++i) {
      const SliceItem& item = (*map.of_slot.slice)[i];
      use.slot_bound.push_back(0);
      use.slot_most.push_back(0);
      if (item.kind == SliceItem::Kind::bound) {
        const auto value = find_value(numbers, item.name);
        meant = meant && value.has_value();
        use.slot_bound.back() = use.slot_most.back() = value.value_or(0);
      } else if (item.kind == SliceItem::Kind::computed) {
        auto value = value_of(item.sum);
        if (!value)
          return pass_on(std::move(value));
        use.slot_bound.back() = *value;
        if (!meant)
          continue;
        const auto most = largest(item.sum, numbers, mesh);
        if (!most)
          return fail(Code::limit_exceeded, "{}'{}' passes 2^62 on some rank, for parameter '{}'", place_of(map),
                      item.sum.text, name);
        use.slot_most.back() = *most;
      }
    }
    if (!meant)
      continue;
    use.slot = map.slot.substitute(all);
    if (map.slot.match(use.slot))
      uses.push_back(std::move(use));
  }
  return uses;
}

Result<std::vector<MapUse>> uses_for_slot(const Map& map, const std::string& slot, const Shape& shape, const Mesh& mesh,
                                          Index worker) {
  auto bindings = map.slot.match(slot);
  if (!bindings)
    return std::vector<MapUse>{};
  auto viewed = view_of(map.of_slot, shape);
  if (!viewed)
    return fail(viewed.error().code, "{}map of slot '{}' {} to parameter '{}': on the slot's side {}", place_of(map),
                slot, to_string(shape), map.parameter.text(), viewed.error().message);
  return SlotExpansion(map, slot, std::move(viewed->extents), std::move(*bindings), mesh, worker).run();
}

} // namespace deltawire::layout
