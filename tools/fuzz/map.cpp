// Maps. Input, a line each: "worker" for that side's direction, "mesh pp=2", the rule ("parameter ..", "slot ..",
// "view ..", "slice ..", "slot_view ..", "slot_slice ..", "permute 1 0", "transpose"), and what it is applied to:
// "name ..", "shape 4 6" and "slot_shape 4 6".
#include "layout/map.hpp"

#include "target.hpp"

#include <algorithm>

namespace deltawire::fuzz {
namespace {

constexpr layout::Index most_positions = 4096;

struct Rules {
  bool worker = false;
  std::vector<layout::Axis> axes;
  layout::MapRule map;
  std::string name;
  layout::Shape shape;
  layout::Shape slot_shape;
  bool many_uses = false; ///< a number that makes the product go through very many uses, which is legal and slow
};

bool is_many(std::int64_t values) {
  return values > 64 && values <= 1 << 20;
}

Rules read(std::string_view text) {
  Rules rules;
  rules.map.where = "topology.toml:1";
  for (const Line& line : lines_of(text)) {
    const auto numbers = line.key == "mesh" ? std::vector<std::int64_t>{} : numbers_of(line.value);
    for (const auto number : numbers)
      rules.many_uses = rules.many_uses || is_many(number);
    for (std::size_t i = 1; i < numbers.size(); ++i) { // limits, as in e=5000:6000
      std::int64_t values = 0;
      rules.many_uses =
        rules.many_uses || (!__builtin_sub_overflow(numbers[i], numbers[i - 1], &values) && is_many(values));
    }
    const std::string value(line.value);
    if (line.key == "worker")
      rules.worker = true;
    else if (line.key == "mesh" && value.find('=') != std::string::npos && !numbers_of(value).empty())
      rules.axes.push_back({value.substr(0, value.find('=')), numbers_of(value).back()});
    else if (line.key == "parameter")
      rules.map.parameter = value;
    else if (line.key == "slot")
      rules.map.slot = value;
    else if (line.key == "view")
      rules.map.view = value;
    else if (line.key == "slice")
      rules.map.slice = value;
    else if (line.key == "slot_view")
      rules.map.slot_view = value;
    else if (line.key == "slot_slice")
      rules.map.slot_slice = value;
    else if (line.key == "permute")
      rules.map.permute = numbers_of(value);
    else if (line.key == "transpose")
      rules.map.transpose = true;
    else if (line.key == "name")
      rules.name = value;
    else if (line.key == "shape")
      rules.shape = numbers_of(value);
    else if (line.key == "slot_shape")
      rules.slot_shape = numbers_of(value);
  }
  return rules;
}

/// Row-major flat positions on both sides of everything that a map makes common, by brute force.
struct Pairs {
  std::vector<layout::Index> parameter;
  std::vector<layout::Index> slot;
};

Pairs pairs_of(const layout::AppliedMap& applied, const layout::Shape& shape, const layout::Shape& slot_shape) {
  using Coordinates = std::vector<layout::Index>;
  std::vector<std::pair<Coordinates, Coordinates>> points{{applied.base, applied.slot_base}};
  for (const layout::CommonDim& common : applied.common) {
    std::vector<std::pair<Coordinates, Coordinates>> finer;
    for (const auto& point : points)
      for (const layout::Stretch& stretch : common.stretches) {
        std::vector<std::pair<Coordinates, Coordinates>> walked{point};
        walked.front().first[common.dim] += stretch.offset;
        walked.front().second[common.slot_dim] += stretch.slot_offset;
        for (const layout::Digit& digit : stretch.digits) {
          std::vector<std::pair<Coordinates, Coordinates>> steps;
          for (const auto& from : walked)
            for (layout::Index k = 0; k < digit.count; ++k) {
              steps.push_back(from);
              steps.back().first[common.dim] += k * digit.stride;
              steps.back().second[common.slot_dim] += k * digit.slot_stride;
            }
          walked = std::move(steps);
        }
        finer.insert(finer.end(), walked.begin(), walked.end());
      }
    points = std::move(finer);
  }
  const auto flat = [](const Coordinates& at, const layout::Shape& of) {
    layout::Index result = 0;
    for (std::size_t d = 0; d < of.size(); ++d) {
      require(at[d] >= 0 && at[d] < of[d], "what a map keeps lies in the tensor");
      result = result * of[d] + at[d];
    }
    return result;
  };
  Pairs pairs;
  for (const auto& [here, there] : points) {
    pairs.parameter.push_back(flat(here, shape));
    pairs.slot.push_back(flat(there, slot_shape));
  }
  return pairs;
}

/// Elements of the product of what is kept, a list a dim.
layout::Index kept_count(const std::vector<std::vector<layout::Span>>& kept) {
  layout::Index count = 1;
  for (const auto& spans : kept) {
    layout::Index positions = 0;
    for (const layout::Span& span : spans)
      positions += span.end - span.begin;
    count *= positions;
  }
  return count;
}

bool all_distinct(std::vector<layout::Index> positions) {
  std::ranges::sort(positions);
  return std::ranges::adjacent_find(positions) == positions.end();
}

/// Can be walked, dim by dim: no extent is long beside one of 0 either.
bool is_small(const layout::Shape& shape) {
  const auto count = layout::element_count(shape);
  return count && *count <= most_positions &&
         std::ranges::all_of(shape, [](layout::Index extent) { return extent <= most_positions; });
}

/// A use on two shapes keeps as many elements of one as of the other, each once, and what it says it keeps.
bool check_use(const layout::MapUse& use, const layout::Shape& shape, const layout::Shape& slot_shape) {
  const auto kept = layout::kept_positions(use, shape);
  const auto applied = layout::apply(use, shape, slot_shape);
  if (!applied)
    return false;
  require(kept && *kept == applied->kept, "what a use keeps does not depend on its slot's shape");
  if (!is_small(shape) || !is_small(slot_shape))
    return true;
  if (kept_count(applied->kept) == 0) { // steps say nothing where there is nothing to walk
    require(kept_count(applied->slot_kept) == 0, "nothing is nothing on both sides");
    return true;
  }
  const Pairs pairs = pairs_of(*applied, shape, slot_shape);
  require(static_cast<layout::Index>(pairs.parameter.size()) == kept_count(applied->kept),
          "all that is kept is mapped");
  require(static_cast<layout::Index>(pairs.slot.size()) == kept_count(applied->slot_kept), "on both sides");
  require(all_distinct(pairs.parameter) && all_distinct(pairs.slot), "an element is mapped once");
  return true;
}

/// A shape that is told by the other side is one that the map fits, where nothing about it is left open.
void check_hints(const layout::MapUse& use, const layout::Shape& known, bool from_slot) {
  const auto hints = from_slot ? layout::parameter_shapes(use, known) : layout::slot_shapes(use, known);
  if (!hints)
    return;
  for (const layout::ShapeHint& hint : *hints) {
    require(hint.open.size() == hint.shape.size(), "every extent says whether it is open");
    require(layout::element_count(hint.shape).has_value(), "a shape that is told is countable");
  }
}

} // namespace

bool accepts(std::span<const std::byte> input) {
  const Rules rules = read(as_text(input));
  const auto mesh = layout::Mesh::make(rules.axes);
  if (!mesh)
    return false;
  const auto direction = rules.worker ? layout::Direction::from_slot : layout::Direction::from_parameter;
  Result<layout::Map> map;
  {
    const AllocationBound bound(65536 + 1024 * input.size());
    map = layout::Map::compile(rules.map, direction, *mesh);
  }
  if (!map) {
    require(map.error().message.starts_with(rules.map.where), "the error names its rule");
    return false;
  }
  if (rules.name.empty())
    return true;
  const bool countable = layout::element_count(rules.shape) && layout::element_count(rules.slot_shape);
  if (!countable || rules.many_uses || rules.name.size() > 100)
    return false;
  bool accepted = false;
  for (const layout::Index rank : {layout::Index{0}, mesh->size() - 1}) {
    const auto uses = rules.worker ? layout::uses_for_slot(*map, rules.name, rules.slot_shape, *mesh, rank)
                                   : layout::uses_for_parameter(*map, rules.name, rules.shape, *mesh, rank);
    for (std::size_t i = 0; uses && i < std::min<std::size_t>(uses->size(), 64); ++i) {
      const layout::MapUse& use = (*uses)[i];
      require(map->parameter.match(use.parameter) && map->slot.match(use.slot), "a use has names that its map matches");
      accepted = check_use(use, rules.shape, rules.slot_shape) || accepted;
      check_hints(use, rules.worker ? rules.slot_shape : rules.shape, rules.worker);
    }
  }
  return accepted;
}

} // namespace deltawire::fuzz
