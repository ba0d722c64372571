#include "slots.hpp"

#include "cast.hpp"
#include "fitting.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace deltawire::replay::proof {
namespace {

using VisitNames = std::function<Result<void>(const Names&)>;

/// A name that only a slice knows takes all values of its dim, or those of its limits.
Result<void> for_each_value(const Map& map, const Shape& tensor, std::size_t item, const Names& names,
                            const VisitNames& visit) {
  const std::size_t of_parameter = map.of_parameter.slice ? map.of_parameter.slice->size() : 0;
  const std::size_t of_slot = map.of_slot.slice ? map.of_slot.slice->size() : 0;
  if (item == of_parameter + of_slot)
    return visit(names);
  const SliceItem& wanted =
    item < of_parameter ? (*map.of_parameter.slice)[item] : (*map.of_slot.slice)[item - of_parameter];
  if (wanted.kind != SliceItem::Kind::name || names.contains(wanted.name))
    return for_each_value(map, tensor, item + 1, names, visit);
  Index begin = wanted.begin;
  Index end = wanted.end;
  if (!wanted.limited) {
    std::optional<std::vector<ViewedDim>> viewed;
    if (map.of_parameter.view)
      viewed = split(*map.of_parameter.view, tensor);
    const std::size_t dims = viewed ? viewed->size() : tensor.size();
    if (item >= of_parameter)
      return fail(Code::invalid_topology, "{}: nothing tells '{}' of the slot's slice", map.where, wanted.name);
    if ((map.of_parameter.view && !viewed) || item >= dims)
      return fail(Code::invalid_topology, "{}: view and slice do not fit {}", map.where, text_of(tensor));
    begin = 0;
    end = viewed ? (*viewed)[item].extent : tensor[item];
  }
  for (Index value = begin; value < end; ++value) {
    Names more = names;
    more[wanted.name] = std::to_string(value);
    if (auto visited = for_each_value(map, tensor, item + 1, more, visit); !visited)
      return visited;
  }
  return {};
}

/// Collects what fills which slot.
class Filler {
public:
  Filler(const Rules& rules, const checkpoint::Checkpoint& file) : rules_(rules), file_(file) {}

  Result<std::vector<Slot>> run() {
    for (const checkpoint::TensorView& tensor : file_.tensors()) {
      const auto wire = wire_dtype_of(rules_, tensor.name, tensor.dtype);
      if (!wire)
        return tl::make_unexpected(wire.error());
      dtypes_.push_back(*wire);
    }
    for (std::size_t t = 0; t < file_.tensors().size(); ++t) {
      bool mapped = false;
      for (const Map& map : rules_.maps)
        if (const auto match = map.parameter.match(file_.tensors()[t].name)) {
          mapped = true;
          if (auto added = add_map(map, *match, t); !added)
            return pass_on(std::move(added));
        }
      if (!mapped)
        add(file_.tensors()[t].name, {t, {}, {}});
    }
    for (Slot& slot : slots_)
      if (auto complete = complete_slot(slot); !complete)
        return pass_on(std::move(complete));
    return std::move(slots_);
  }

private:
  Result<void> add_map(const Map& map, const Match& match, std::size_t t) {
    const checkpoint::TensorView& tensor = file_.tensors()[t];
    return for_each_coordinate(rules_, axes_of(map, tensor.name), [&](const Shape& coordinates) -> Result<void> {
      Names names = match.names;
      if (!rules_.holds(tensor.name, coordinates) || !add_coordinates(rules_, map, coordinates, names))
        return {};
      return for_each_value(map, tensor.shape, 0, names, [&](const Names& all) -> Result<void> {
        auto of_tensor = numbers_of(map.of_parameter, all);
        auto of_slot = numbers_of(map.of_slot, all);
        if (!of_tensor || !of_slot)
          return fail(Code::invalid_topology, "{}: '{}' gives the slice a name that is no number in its range",
                      map.where, tensor.name);
        auto name = map.slot.fill(all, match.stars);
        if (!name)
          return at(map.where, name);
        add(*name, {t, {&map.of_parameter, std::move(*of_tensor)}, {&map.of_slot, std::move(*of_slot)}});
        return {};
      });
    });
  }

  /// Axes that make a difference: those that the map names, and those that decide who holds the parameter.
  std::vector<std::size_t> axes_of(const Map& map, const std::string& parameter) const {
    std::set<std::size_t> axes(map.axes.begin(), map.axes.end());
    if (const Placement* placement = rules_.placement_of(parameter); placement != nullptr)
      for (const auto& on : placement->cuts.on)
        axes.insert(on.first.begin(), on.first.end());
    return {axes.begin(), axes.end()};
  }

  void add(const std::string& name, Filling filling) {
    const auto [known, added] = numbers_.emplace(name, slots_.size());
    if (added)
      slots_.push_back({name, dtypes_[filling.tensor], {}, {}});
    std::vector<Filling>& fillings = slots_[known->second].fillings;
    // Two ranks that differ in an axis which only decides who holds it say the same.
    for (const Filling& other : fillings)
      if (other.tensor == filling.tensor && other.of_tensor.selection == filling.of_tensor.selection &&
          other.of_tensor.numbers == filling.of_tensor.numbers && other.of_slot.numbers == filling.of_slot.numbers)
        return;
    fillings.push_back(std::move(filling));
  }

  /// Works out the slot's shape, and checks that it is filled, each element once.
  Result<void> complete_slot(Slot& slot) const {
    std::vector<Demand> demands;
    for (const Filling& filling : slot.fillings) {
      const checkpoint::TensorView& tensor = file_.tensors()[filling.tensor];
      auto kept = keep(filling.of_tensor, tensor.shape);
      if (!kept)
        return at(where(filling), kept);
      if (dtypes_[filling.tensor] != slot.dtype)
        return fail(Code::invalid_topology, "slot '{}' is filled by tensors of different dtypes", slot.name);
      demands.push_back({filling.of_slot, kept->result()});
    }
    auto shape = fitting_shape(demands);
    if (!shape)
      return at(fmt::format("slot '{}'", slot.name), shape);
    slot.shape = std::move(*shape);

    std::vector<Kept> parts;
    Index filled = 0;
    for (std::size_t f = 0; f < slot.fillings.size(); ++f) {
      auto part = keep(slot.fillings[f].of_slot, slot.shape);
      if (!part)
        return at(where(slot.fillings[f]), part);
      if (part->result() != demands[f].result)
        return fail(Code::invalid_topology, "{}: it keeps {}, and slot '{}' takes {}", where(slot.fillings[f]),
                    text_of(demands[f].result), slot.name, text_of(part->result()));
      for (std::size_t other = 0; other < f; ++other)
        if (!surely_disjoint(*part, parts[other]) &&
            size_of(join(relate(*part, *part), relate(parts[other], parts[other]))) > 0)
          return fail(Code::invalid_topology, "slot '{}' is filled by tensor '{}' and by tensor '{}'", slot.name,
                      file_.tensors()[slot.fillings[other].tensor].name, file_.tensors()[slot.fillings[f].tensor].name);
      filled += count_of(demands[f].result);
      parts.push_back(std::move(*part));
    }
    if (filled != count_of(slot.shape))
      return fail(Code::invalid_topology, "slot '{}' has {} elements, and tensors fill {} of them", slot.name,
                  count_of(slot.shape), filled);
    return {};
  }

  std::string where(const Filling& filling) const {
    std::string rule = file_.path();
    for (const Map& map : rules_.maps)
      if (&map.of_parameter == filling.of_tensor.selection)
        rule = map.where;
    return fmt::format("{}: tensor '{}'", rule, file_.tensors()[filling.tensor].name);
  }

  const Rules& rules_;
  const checkpoint::Checkpoint& file_;
  std::vector<DType> dtypes_; ///< of each tensor, on the wire
  std::vector<Slot> slots_;
  std::map<std::string, std::size_t> numbers_;
};

} // namespace

bool add_coordinates(const Rules& rules, const Map& map, const Shape& coordinates, Names& names) {
  for (std::size_t axis : map.axes) {
    const std::string coordinate = std::to_string(coordinates[axis]);
    if (names.emplace(rules.mesh[axis].first, coordinate).first->second != coordinate)
      return false;
  }
  return true;
}

Result<std::vector<Slot>> slots_of(const Rules& trainer, const checkpoint::Checkpoint& file) {
  return Filler(trainer, file).run();
}

} // namespace deltawire::replay::proof
