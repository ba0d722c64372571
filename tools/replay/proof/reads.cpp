#include "reads.hpp"

#include "fitting.hpp"

#include <algorithm>
#include <functional>

namespace deltawire::replay::proof {
namespace {

using VisitNames = std::function<Result<void>(const Names&)>;

/// Every value of the names that the slot's name does not tell: they run over a dim of the slot, or over the limits
/// that the parameter's slice states.
class Values {
public:
  Values(const Map& map, const Slot& slot, const VisitNames& visit) : map_(map), slot_(slot), visit_(visit) {}

  Result<void> over_slot(std::size_t item, const Names& names) const {
    if (!map_.of_slot.slice || item == map_.of_slot.slice->size())
      return over_parameter(0, names);
    const SliceItem& wanted = (*map_.of_slot.slice)[item];
    const bool open = (wanted.kind == SliceItem::Kind::name && !names.contains(wanted.name)) ||
                      (wanted.kind == SliceItem::Kind::sum && !value_of(wanted.sum, names));
    if (!open)
      return over_slot(item + 1, names);
    std::optional<std::vector<ViewedDim>> viewed;
    if (map_.of_slot.view)
      viewed = split(*map_.of_slot.view, slot_.shape);
    if ((map_.of_slot.view && !viewed) || item >= (viewed ? viewed->size() : slot_.shape.size()))
      return fail(Code::invalid_topology, "{}: the slot's view and slice do not fit slot '{}' {}", map_.where,
                  slot_.name, text_of(slot_.shape));
    const Index extent = viewed ? (*viewed)[item].extent : slot_.shape[item];
    for (Index value = wanted.limited ? wanted.begin : 0; value < (wanted.limited ? wanted.end : extent); ++value) {
      Names more = names;
      if (wanted.kind == SliceItem::Kind::name) {
        more[wanted.name] = std::to_string(value);
      } else {
        std::vector<Equation> equation = {{wanted.sum, value}};
        if (!solve(equation, more))
          continue;
        if (!equation.empty())
          return fail(Code::invalid_topology, "{}: nothing tells the names of the slot's slice apart", map_.where);
      }
      if (auto visited = over_slot(item + 1, more); !visited)
        return visited;
    }
    return {};
  }

private:
  Result<void> over_parameter(std::size_t item, const Names& names) const {
    if (!map_.of_parameter.slice || item == map_.of_parameter.slice->size())
      return visit_(names);
    const SliceItem& wanted = (*map_.of_parameter.slice)[item];
    if (wanted.kind != SliceItem::Kind::name || names.contains(wanted.name))
      return over_parameter(item + 1, names);
    if (!wanted.limited)
      return fail(Code::invalid_topology, "{}: slot '{}' does not tell '{}' of the slice", map_.where, slot_.name,
                  wanted.name);
    for (Index value = wanted.begin; value < wanted.end; ++value) {
      Names more = names;
      more[wanted.name] = std::to_string(value);
      if (auto visited = over_parameter(item + 1, more); !visited)
        return visited;
    }
    return {};
  }

  const Map& map_;
  const Slot& slot_;
  const VisitNames& visit_;
};

/// Calls `visit` with each parameter of a process at these coordinates that reads the slot by this map.
Result<void> for_each_read(const Rules& rules, const Map& map, const Slot& slot, const Match& match,
                           const Shape& coordinates, const std::function<void(const std::string&, Read)>& visit) {
  Names names = match.names;
  if (!add_coordinates(rules, map, coordinates, names))
    return {};
  std::vector<Equation> computed = match.computed;
  if (!solve(computed, names))
    return {};
  const VisitNames read = [&](const Names& values) -> Result<void> {
    Names all = values;
    std::vector<Equation> left = computed;
    if (!solve(left, all))
      return {};
    if (!left.empty())
      return fail(Code::invalid_topology, "{}: slot '{}' does not tell the names of the map apart", map.where,
                  slot.name);
    auto of_parameter = numbers_of(map.of_parameter, all);
    auto of_slot = numbers_of(map.of_slot, all);
    if (!of_parameter || !of_slot)
      return {};
    auto parameter = map.parameter.fill(all, match.stars);
    if (!parameter)
      return at(map.where, parameter);
    if (map.parameter.match(*parameter)) // not a word where the parameter's pattern takes digits
      visit(*parameter,
            {&slot, &map, {&map.of_parameter, std::move(*of_parameter)}, {&map.of_slot, std::move(*of_slot)}});
    return {};
  };
  return Values(map, slot, read).over_slot(0, names);
}

} // namespace

Result<std::map<std::string, std::vector<Read>>> reads_of(const Rules& worker, const std::vector<Slot>& slots,
                                                          const Shape& here) {
  std::map<std::string, std::vector<Read>> reads;
  for (const Slot& slot : slots) {
    bool named = false;
    for (const Map& map : worker.maps) {
      const auto match = map.slot.match(slot.name);
      if (!match)
        continue;
      auto visited = for_each_coordinate(worker, map.axes, [&](const Shape& coordinates) -> Result<void> {
        const bool is_here = std::all_of(map.axes.begin(), map.axes.end(),
                                         [&](std::size_t axis) { return coordinates[axis] == here[axis]; });
        return for_each_read(worker, map, slot, *match, coordinates, [&](const std::string& parameter, Read read) {
          named = true;
          if (is_here)
            reads[parameter].push_back(std::move(read));
        });
      });
      if (!visited)
        return pass_on(std::move(visited));
    }
    const bool unused = std::any_of(worker.unused.begin(), worker.unused.end(),
                                    [&](const NamePattern& pattern) { return pattern.match(slot.name).has_value(); });
    if (!named && !unused)
      reads[slot.name].push_back({&slot, nullptr, {}, {}});
  }
  std::erase_if(reads, [&](const auto& entry) { return !worker.holds(entry.first, here); });
  return reads;
}

Result<Shape> full_shape_of(const std::string& name, const std::vector<Read>& reads, const Fact* fact) {
  if (fact != nullptr && fact->shape)
    return *fact->shape;
  std::vector<Demand> demands;
  for (const Read& read : reads) {
    auto kept = keep(read.of_slot, read.slot->shape);
    if (!kept)
      return at(
        fmt::format("{}: worker parameter '{}', slot '{}'", read.map ? read.map->where : "", name, read.slot->name),
        kept);
    demands.push_back({read.of_parameter, kept->result()});
  }
  auto shape = fitting_shape(demands);
  if (!shape)
    return at(fmt::format("worker parameter '{}'", name), shape);
  return shape;
}

} // namespace deltawire::replay::proof
