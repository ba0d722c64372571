#include "rules.hpp"

#include <algorithm>

namespace deltawire::replay::proof {
namespace {

using Mesh = std::vector<std::pair<std::string, Index>>;

/// Reads the rules of one side.
class Reader {
public:
  explicit Reader(const SideText& side) : side_(side) {}

  Result<AxisNumbers> axes_of(const std::string& name, const AxesByName& local) const {
    for (std::size_t a = 0; a < side_.mesh.size(); ++a)
      if (side_.mesh[a].first == name)
        return AxisNumbers{a};
    for (const AxesByName* joined : {&local, &side_.axes})
      for (const auto& [join, parts] : *joined)
        if (join == name) {
          AxisNumbers numbers;
          for (const std::string& part : parts) {
            const auto found =
              std::find_if(side_.mesh.begin(), side_.mesh.end(), [&](const auto& axis) { return axis.first == part; });
            if (found == side_.mesh.end())
              return fail(Code::invalid_topology, "the mesh has no axis '{}', which '{}' joins", part, name);
            numbers.push_back(static_cast<std::size_t>(found - side_.mesh.begin()));
          }
          return numbers;
        }
    return fail(Code::invalid_topology, "the mesh has no axis '{}'", name);
  }

  Result<Cuts> cuts(const CutsText& text, const std::string& where) const {
    Cuts result;
    result.where = where;
    std::vector<std::size_t> used;
    for (const std::string& shard : text.shard) {
      auto cut = parse_cut(shard);
      if (!cut)
        return at(where, cut);
      auto axes = axes_of(cut->axis, text.axes);
      if (!axes)
        return at(where, axes);
      for (std::size_t axis : *axes) {
        if (std::find(used.begin(), used.end(), axis) != used.end())
          return fail(Code::invalid_topology, "{}: axis '{}' cuts twice", where, side_.mesh[axis].first);
        used.push_back(axis);
      }
      Shape sizes;
      for (const auto& [axis, lengths] : text.sizes)
        if (axis == cut->axis)
          sizes = lengths;
      result.cuts.push_back({std::move(*cut), std::move(*axes), std::move(sizes)});
    }
    for (const auto& [axis, coordinates] : text.on) {
      auto axes = axes_of(axis, text.axes);
      if (!axes)
        return at(where, axes);
      result.on.emplace_back(std::move(*axes), coordinates);
    }
    return result;
  }

  Result<Map> map(const MapText& text) const {
    Map map;
    map.where = text.where;
    auto parameter = NamePattern::parse(text.parameter);
    if (!parameter)
      return at(text.where, parameter);
    map.parameter = std::move(*parameter);
    auto slot = NamePattern::parse(text.slot.empty() ? text.parameter : text.slot);
    if (!slot)
      return at(text.where, slot);
    map.slot = std::move(*slot);
    for (const auto& [selection, view, slice] : {std::tuple(&map.of_parameter, &text.view, &text.slice),
                                                 std::tuple(&map.of_slot, &text.slot_view, &text.slot_slice)})
      if (auto read = read_selection(*view, *slice, *selection); !read)
        return at(text.where, read);
    map.of_parameter.permute = text.permute;
    map.of_parameter.transpose = text.transpose;
    if (text.own) {
      auto own = cuts(*text.own, text.where);
      if (!own)
        return pass_on(std::move(own));
      for (PlacedCut& cut : own->cuts) {
        if (cut.cut.of == Cut::Of::flat || cut.cut.of == Cut::Of::segments)
          return fail(Code::invalid_topology, "{}: a map's own shard cuts its slice, not segments or elements",
                      text.where);
        cut.cut.of = Cut::Of::whole; // the slice is all that it cuts
      }
      map.own = std::move(*own);
    }
    find_axes(map);
    return map;
  }

private:
  static Result<void> read_selection(const std::string& view, const std::string& slice, Selection& selection) {
    if (!view.empty()) {
      auto parsed = parse_view(view);
      if (!parsed)
        return pass_on(std::move(parsed));
      selection.view = std::move(*parsed);
    }
    if (!slice.empty()) {
      auto parsed = parse_slice(slice);
      if (!parsed)
        return pass_on(std::move(parsed));
      selection.slice = std::move(*parsed);
    }
    return {};
  }

  /// A name on the slot's side that is an axis, and that neither the parameter's name nor its slice binds, is the
  /// coordinate.
  void find_axes(Map& map) const {
    std::vector<std::string> bound = map.parameter.names();
    if (map.of_parameter.slice)
      for (const SliceItem& item : *map.of_parameter.slice)
        bound.push_back(item.name);
    std::vector<std::string> named = map.slot.names();
    if (map.of_slot.slice)
      for (const SliceItem& item : *map.of_slot.slice) {
        if (!item.limited)
          named.push_back(item.name);
        for (const auto& term : item.sum.terms)
          named.push_back(term.first);
      }
    for (std::size_t a = 0; a < side_.mesh.size(); ++a) {
      const auto has = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), side_.mesh[a].first) != names.end();
      };
      if (has(named) && !has(bound))
        map.axes.push_back(a);
    }
  }

  const SideText& side_;
};

} // namespace

const Placement* Rules::placement_of(const std::string& parameter) const {
  for (const Placement& placement : placements)
    if (placement.parameter.match(parameter))
      return &placement;
  return nullptr;
}

const Fact* Rules::fact_of(const std::string& parameter) const {
  for (const Fact& fact : facts)
    if (fact.name.match(parameter))
      return &fact;
  return nullptr;
}

Shape Rules::coordinates(Index rank) const {
  Shape extents;
  for (const auto& axis : mesh)
    extents.push_back(axis.second);
  return coordinates_of(rank, extents);
}

Index Rules::coordinate(const AxisNumbers& axes, const Shape& coordinates) const {
  Index result = 0;
  for (std::size_t axis : axes)
    result = result * mesh[axis].second + coordinates[axis];
  return result;
}

Index Rules::size(const AxisNumbers& axes) const {
  Index result = 1;
  for (std::size_t axis : axes)
    result *= mesh[axis].second;
  return result;
}

bool Rules::holds(const std::string& parameter, const Shape& coordinates) const {
  const Placement* placement = placement_of(parameter);
  if (placement == nullptr)
    return true;
  for (const auto& [axes, holding] : placement->cuts.on)
    if (std::find(holding.begin(), holding.end(), coordinate(axes, coordinates)) == holding.end())
      return false;
  return true;
}

Result<Rules> read_rules(const SideText& side) {
  const Reader reader(side);
  Rules rules;
  rules.mesh = side.mesh;
  for (const MapText& text : side.maps) {
    auto map = reader.map(text);
    if (!map)
      return pass_on(std::move(map));
    rules.maps.push_back(std::move(*map));
  }
  for (const PlacementText& text : side.placements) {
    auto pattern = NamePattern::parse(text.parameter);
    if (!pattern)
      return at(text.where, pattern);
    auto cuts = reader.cuts(text.cuts, text.where);
    if (!cuts)
      return pass_on(std::move(cuts));
    rules.placements.push_back({std::move(*pattern), std::move(*cuts), text.wire_dtype});
  }
  for (const ParameterText& text : side.parameters) {
    auto pattern = NamePattern::parse(text.name);
    if (!pattern)
      return pass_on(std::move(pattern));
    rules.facts.push_back({std::move(*pattern), text.shape, text.padding});
  }
  for (const std::string& text : side.unused) {
    auto pattern = NamePattern::parse(text);
    if (!pattern)
      return pass_on(std::move(pattern));
    rules.unused.push_back(std::move(*pattern));
  }
  rules.wire_dtype = side.wire_dtype;
  return rules;
}

} // namespace deltawire::replay::proof
