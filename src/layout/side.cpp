#include "layout/side.hpp"

#include "layout/compose.hpp"
#include "layout/kept_elements.hpp"
#include "layout/map.hpp"
#include "layout/placement.hpp"
#include "layout/problems.hpp"
#include "layout/wire_dtype.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

namespace deltawire::layout {
namespace {

struct ParameterFact {
  Pattern name;
  const ParameterRule* rule = nullptr;
};

/// A map applied to one parameter, with the number of its slot.
struct SlotPart {
  AppliedMap applied;
  std::uint32_t slot = 0;
  bool owned = true; ///< trainer: this rank contributes it
};

/// A worker's parameter: what it is, what this worker holds, and the slots it is made of.
struct WorkerParameter {
  ParameterSpec spec;
  Shard shard;
  std::vector<SlotPart> parts;
  std::string not_held{}; ///< where `on` leaves this worker out: says so
};

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

/// The rank that is at 0 on these axes, and where `rank` is on the others.
Index rank_at_zero(const Mesh& mesh, Index rank, std::span<const std::string> axes) {
  const std::vector<Index> coordinates = mesh.coordinates(rank);
  Index result = 0;
  for (std::size_t a = 0; a < coordinates.size(); ++a) {
    const bool zero = std::find(axes.begin(), axes.end(), mesh.axes()[a].name) != axes.end();
    result = result * mesh.axes()[a].size + (zero ? 0 : coordinates[a]);
  }
  return result;
}

std::string place_of(const Map& map) {
  return map.where.empty() ? std::string{} : map.where + ": ";
}

/// Local strides of a tensor, checked: one a dim, positive, no two elements in one place. `where` opens the message.
Result<std::vector<Index>> local_strides(const LocalTensor& tensor, const Shape& local_shape) {
  auto count = element_count(local_shape);
  if (!count)
    return fail(count.error().code, "tensor '{}': {}", tensor.name, count.error().message);
  if (tensor.strides.empty())
    return row_major_strides(local_shape);
  if (tensor.strides.size() != local_shape.size())
    return fail(Code::invalid_argument, "tensor '{}': {} strides for a local shape of {} dims {}", tensor.name,
                tensor.strides.size(), local_shape.size(), to_string(local_shape));
  std::vector<std::size_t> order(local_shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair{tensor.strides[a], local_shape[a]} < std::pair{tensor.strides[b], local_shape[b]};
  });
  constexpr Index limit = Index{1} << 62;
  Index last = 0; // offset of the furthest element over the dims so far
  for (std::size_t d : order) {
    if (*count == 0 || local_shape[d] == 1)
      continue;
    const Index stride = tensor.strides[d];
    if (stride <= last)
      return fail(Code::invalid_argument,
                  "tensor '{}': strides {} of local shape {} put two elements in one place (or may); pass memory that "
                  "does not overlap itself",
                  tensor.name, to_string(tensor.strides), to_string(local_shape));
    if (local_shape[d] - 1 > (limit - last) / stride)
      return fail(Code::limit_exceeded, "tensor '{}': strides {} reach past 2^62 elements", tensor.name,
                  to_string(tensor.strides));
    last += (local_shape[d] - 1) * stride;
  }
  return tensor.strides;
}

} // namespace

struct Side::Compiled {
  SideRules rules;
  Role role = Role::trainer;
  std::vector<Map> maps;
  std::vector<std::optional<Cuts>> map_cuts; ///< of each map: its own
  std::vector<Placement> placements;
  std::vector<ParameterFact> facts;
  std::vector<Pattern> unused;

  [[nodiscard]] const char* side() const { return role == Role::trainer ? "trainer" : "worker"; }
  [[nodiscard]] const ParameterRule* fact(const std::string& name) const;
  [[nodiscard]] Result<std::vector<MapUse>> uses(const std::string& name, const Shape& shape, Index rank) const;
  [[nodiscard]] const Cuts* own_cuts(const Map& map) const;
  [[nodiscard]] Result<std::vector<DimSegment>> segments(const std::string& name, const Shape& shape,
                                                         std::size_t dim) const;
  [[nodiscard]] Result<PlacedParameter> placed(const std::string& name, const Shape& shape) const;
  [[nodiscard]] Result<DType> wire_dtype(const LocalTensor& tensor, const Placement* placement) const;
  [[nodiscard]] std::string not_held(const PlacedParameter& parameter, Index rank) const;
  [[nodiscard]] Result<bool> owns(const Map& map, const PlacedParameter& parameter, const Shard& here,
                                  Index rank) const;
  [[nodiscard]] std::vector<Index> readers_of(const Map& map) const;
  [[nodiscard]] std::vector<std::string> worker_names(std::span<const SlotSpec> catalogue) const;
  [[nodiscard]] Result<bool> read_elsewhere(const Map& map, const SlotSpec& slot) const;
  [[nodiscard]] Result<void> check_place(Role wanted, Index rank, const char* call) const;
  [[nodiscard]] bool check_coverage(const std::string& name, const Shape& shape, std::span<const SlotPart> parts,
                                    std::span<const SlotSpec> slots, Problems& problems) const;
  [[nodiscard]] Result<Shape> worker_shape(const std::string& name, std::span<const MapUse> uses,
                                           std::span<const std::uint32_t> slots,
                                           std::span<const SlotSpec> catalogue) const;
  [[nodiscard]] Result<std::vector<WorkerParameter>> worker(std::span<const SlotSpec> catalogue, Index index) const;
};

const ParameterRule* Side::Compiled::fact(const std::string& name) const {
  for (const ParameterFact& known : facts)
    if (known.name.match(name))
      return known.rule;
  return nullptr;
}

/// All uses of all maps that match; the identity where none does.
Result<std::vector<MapUse>> Side::Compiled::uses(const std::string& name, const Shape& shape, Index rank) const {
  std::vector<MapUse> result;
  for (const Map& map : maps) {
    auto some = uses_for_parameter(map, name, shape, rules.mesh, rank);
    if (!some)
      return some;
    result.insert(result.end(), std::make_move_iterator(some->begin()), std::make_move_iterator(some->end()));
  }
  if (result.empty())
    result.push_back({&Map::identity(), name, name, {}, {}, {}});
  return result;
}

/// The cuts that a map has of its own; null where it has none.
const Cuts* Side::Compiled::own_cuts(const Map& map) const {
  if (&map == &Map::identity())
    return nullptr;
  const std::optional<Cuts>& own = map_cuts[static_cast<std::size_t>(&map - maps.data())];
  return own ? &*own : nullptr;
}

/// What a by-slice cut of `dim` treats on its own: each interval that a map keeps, and each gap between them (padding).
Result<std::vector<DimSegment>> Side::Compiled::segments(const std::string& name, const Shape& shape,
                                                         std::size_t dim) const {
  std::vector<MapUse> all;
  for (const Map& map : maps) {
    auto some = selections_of_parameter(map, name, shape);
    if (!some)
      return pass_on(std::move(some));
    all.insert(all.end(), std::make_move_iterator(some->begin()), std::make_move_iterator(some->end()));
  }
  struct Kept {
    Span span;
    const MapUse* use;
  };
  std::vector<Kept> kept;
  for (const MapUse& use : all) {
    auto positions = kept_positions(use, shape);
    if (!positions)
      return pass_on(std::move(positions));
    const auto& spans = (*positions)[dim];
    if (spans.size() > 1)
      return fail(Code::invalid_topology, "the map {} to slot '{}' keeps {} intervals of this dim, not one",
                  use.map->where, use.slot, spans.size());
    if (!spans.empty())
      kept.push_back({spans.front(), &use});
  }
  std::stable_sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) {
    return std::pair{a.span.begin, a.span.end} < std::pair{b.span.begin, b.span.end};
  });
  std::vector<DimSegment> result;
  Index at = 0;
  const MapUse* before = nullptr;
  for (const Kept& next : kept) {
    const Cuts* own = own_cuts(*next.use->map);
    if (!result.empty() && next.span == result.back().span) {
      const Cuts* other = result.back().own;
      if (own != other && (own == nullptr || other == nullptr || !own->same_on(*other, dim)))
        return fail(Code::invalid_topology,
                    "the maps to slots '{}' and '{}' keep the same interval {}:{} of this dim, but cut it in ways of "
                    "their own",
                    before->slot, next.use->slot, next.span.begin, next.span.end);
      continue;
    }
    if (next.span.begin < at)
      return fail(Code::invalid_topology,
                  "the maps to slots '{}' and '{}' keep intervals of this dim that overlap but differ ({}:{} and "
                  "{}:{})",
                  before->slot, next.use->slot, result.back().span.begin, result.back().span.end, next.span.begin,
                  next.span.end);
    if (next.span.begin > at)
      result.push_back({{at, next.span.begin}, nullptr});
    result.push_back({next.span, own});
    at = next.span.end;
    before = next.use;
  }
  if (at < shape[dim])
    result.push_back({{at, shape[dim]}, nullptr});
  return result;
}

/// What the rules say of a parameter. Borrows `name` and `shape`.
Result<PlacedParameter> Side::Compiled::placed(const std::string& name, const Shape& shape) const {
  if (auto count = element_count(shape); !count)
    return fail(count.error().code, "parameter '{}': {}", name, count.error().message);
  const auto placement = std::find_if(placements.begin(), placements.end(), [&](const Placement& candidate) {
    return candidate.parameter.match(name).has_value();
  });
  PlacedParameter parameter{name,
                            shape,
                            placement == placements.end() ? nullptr : &*placement,
                            {},
                            [this, &name, &shape](std::size_t dim) { return segments(name, shape, dim); },
                            std::nullopt};
  for (const Map& map : maps) {
    const Cuts* own = own_cuts(map);
    if (own == nullptr)
      continue;
    auto some = selections_of_parameter(map, name, shape);
    if (!some)
      return pass_on(std::move(some));
    if (!some->empty())
      parameter.own.push_back(own);
  }
  return parameter;
}

/// What a trainer parameter is on the wire.
Result<DType> Side::Compiled::wire_dtype(const LocalTensor& tensor, const Placement* placement) const {
  const bool own = placement != nullptr && placement->wire_dtype;
  auto wire = wire_dtype_of(tensor.dtype, own ? *placement->wire_dtype : rules.wire_dtype,
                            own ? AskedBy::placement : AskedBy::update);
  if (!wire)
    return fail(wire.error().code, "{}: parameter '{}': {}", own ? placement->cuts.where : "update.wire_dtype",
                tensor.name, wire.error().message);
  return wire;
}

/// Says that `on` leaves this rank or worker out.
std::string Side::Compiled::not_held(const PlacedParameter& parameter, Index rank) const {
  return fmt::format("{}: `on` of the placement leaves out {} {}, which has no parameter '{}'",
                     parameter.placement != nullptr ? parameter.placement->cuts.where : "",
                     role == Role::trainer ? "rank" : "worker", rank, parameter.name);
}

/// Whether this rank contributes what the map makes of a shard. An axis that the slot's name counts with gives each of
/// its coordinates a parameter of its own under the same name: it does not replicate, and cannot cut.
Result<bool> Side::Compiled::owns(const Map& map, const PlacedParameter& parameter, const Shard& here,
                                  Index rank) const {
  if (map.axes.empty())
    return layout::owns(parameter, own_cuts(map), rules.mesh, rank);
  const auto first = shard_by(parameter, rules.mesh, rank_at_zero(rules.mesh, rank, map.axes));
  if (!first)
    return pass_on(Result<Shard>(first));
  if (first->held && here.held && (first->dims != here.dims || first->flat != here.flat))
    return fail(Code::invalid_topology,
                "{}slot '{}' counts with the coordinate of axis {}, and a placement cuts parameter '{}' along it; each "
                "coordinate has a parameter of its own there, so drop one of the two",
                place_of(map), map.slot.text(), list_of(map.axes), parameter.name);
  std::vector<std::size_t> counted;
  for (const std::string& axis : map.axes)
    if (const auto found = rules.mesh.find(axis))
      counted.push_back(*found);
  return layout::owns(parameter, own_cuts(map), rules.mesh, rank, counted);
}

/// The workers, one for each that the map's axes tell apart.
std::vector<Index> Side::Compiled::readers_of(const Map& map) const {
  std::vector<std::string> others;
  for (const Axis& axis : rules.mesh.axes())
    if (std::find(map.axes.begin(), map.axes.end(), axis.name) == map.axes.end())
      others.push_back(axis.name);
  std::vector<Index> readers;
  for (Index worker = 0; worker < rules.mesh.size(); ++worker)
    if (rank_at_zero(rules.mesh, worker, others) == worker)
      readers.push_back(worker);
  return readers;
}

/// Whether a worker at other coordinates of the map's axes reads the slot.
Result<bool> Side::Compiled::read_elsewhere(const Map& map, const SlotSpec& slot) const {
  if (map.axes.empty() || !map.slot.match(slot.name))
    return false;
  for (const Index worker : readers_of(map)) {
    auto uses = uses_for_slot(map, slot.name, slot.shape, rules.mesh, worker);
    if (!uses)
      return pass_on(std::move(uses));
    if (!uses->empty())
      return true;
  }
  return false;
}

/// Names of the parameters that the slots lead to on any worker. What is wrong with a use is told where it is declared.
std::vector<std::string> Side::Compiled::worker_names(std::span<const SlotSpec> catalogue) const {
  std::vector<std::string> names;
  std::vector<bool> mapped(catalogue.size(), false);
  for (const Map& map : maps) {
    const std::vector<Index> readers = readers_of(map);
    for (std::size_t s = 0; s < catalogue.size(); ++s)
      for (const Index worker : readers)
        if (auto uses = uses_for_slot(map, catalogue[s].name, catalogue[s].shape, rules.mesh, worker))
          for (MapUse& use : *uses) {
            names.push_back(std::move(use.parameter));
            mapped[s] = true;
          }
  }
  for (std::size_t s = 0; s < catalogue.size(); ++s)
    if (!mapped[s])
      names.push_back(catalogue[s].name);
  return names;
}

Result<void> Side::Compiled::check_place(Role wanted, Index rank, const char* call) const {
  if (role != wanted)
    return fail(Code::internal, "{} on the {}'s side of the topology", call, side());
  if (rank < 0 || rank >= rules.mesh.size())
    return fail(Code::invalid_argument, "{} {} is not in the {}'s mesh of {}",
                role == Role::trainer ? "rank" : "worker", rank, side(), rules.mesh.size());
  return {};
}

/// Whether every element belongs to one slot, or to none where the parameter may have padding.
bool Side::Compiled::check_coverage(const std::string& name, const Shape& shape, std::span<const SlotPart> parts,
                                    std::span<const SlotSpec> slots, Problems& problems) const {
  std::vector<KeptElements> kept;
  for (const SlotPart& part : parts)
    kept.push_back({&slots[part.slot].name, &part.applied.kept});
  if (const auto overlap = find_overlap(kept)) {
    problems.add(Code::invalid_topology, "{} parameter '{}' {}: {}", side(), name, to_string(shape), *overlap);
    return false;
  }
  const ParameterRule* rule = fact(name);
  if (rule != nullptr && rule->padding)
    return true;
  if (const auto uncovered = find_uncovered(kept, shape)) {
    problems.add(Code::invalid_topology,
                 "{} parameter '{}' {}: {}; add a map, or a [[{}.parameter]] with padding = true", side(), name,
                 to_string(shape), *uncovered, side());
    return false;
  }
  return true;
}

Result<Side> Side::compile(SideRules rules, Role role) {
  auto compiled = std::make_shared<Compiled>();
  compiled->rules = std::move(rules);
  compiled->role = role;
  Problems problems;
  const auto direction = role == Role::trainer ? Direction::from_parameter : Direction::from_slot;
  const Mesh& mesh = compiled->rules.mesh;
  auto joined = join_axes(compiled->rules.axes, mesh);
  if (!joined) {
    problems.add(joined.error().code, "{}.{}", compiled->side(), joined.error().message);
    joined.emplace(); // cuts of these axes are not known then: the messages say so too
  }
  for (const MapRule& rule : compiled->rules.maps) {
    if (auto map = Map::compile(rule, direction, mesh))
      compiled->maps.push_back(std::move(*map));
    else
      problems.add(std::move(map).error());
    compiled->map_cuts.emplace_back();
    if (!rule.shard)
      continue;
    auto cuts = Cuts::compile(*rule.shard, rule.options, mesh, *joined, Cuts::For::slice,
                              fmt::format("map of '{}'", rule.parameter), rule.where);
    if (cuts)
      compiled->map_cuts.back() = std::move(*cuts);
    else
      problems.add(std::move(cuts).error());
  }
  for (const PlacementRule& rule : compiled->rules.placements) {
    if (auto placement = Placement::compile(rule, mesh, *joined))
      compiled->placements.push_back(std::move(*placement));
    else
      problems.add(std::move(placement).error());
  }
  for (const ParameterRule& rule : compiled->rules.parameters) {
    auto pattern = Pattern::parse(rule.name);
    if (!pattern) {
      problems.add(pattern.error().code, "{}: {}", rule.where, pattern.error().message);
      continue;
    }
    if (rule.shape)
      if (auto count = element_count(*rule.shape); !count)
        problems.add(count.error().code, "{}: {}", rule.where, count.error().message);
    compiled->facts.push_back({std::move(*pattern), &rule});
  }
  for (const std::string& text : compiled->rules.unused) {
    if (auto pattern = Pattern::parse(text))
      compiled->unused.push_back(std::move(*pattern));
    else
      problems.add(pattern.error().code, "{} unused: {}", compiled->side(), pattern.error().message);
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  Side side;
  side.compiled_ = std::move(compiled);
  return side;
}

const Mesh& Side::mesh() const noexcept {
  return compiled_->rules.mesh;
}

const SideRules& Side::rules() const noexcept {
  return compiled_->rules;
}

Result<Shard> Side::shard(const std::string& name, const Shape& full_shape, Index rank) const {
  if (auto place = compiled_->check_place(compiled_->role, rank, "shard"); !place)
    return pass_on(std::move(place));
  const auto parameter = compiled_->placed(name, full_shape);
  if (!parameter)
    return tl::make_unexpected(parameter.error());
  return shard_by(*parameter, compiled_->rules.mesh, rank);
}

Result<Declaration> Side::declare_trainer(std::span<const LocalTensor> tensors, Index rank) const {
  const Compiled& side = *compiled_;
  if (auto place = side.check_place(Role::trainer, rank, "declare_trainer"); !place)
    return pass_on(std::move(place));
  Declaration result;
  Problems problems;
  std::unordered_map<std::string, std::uint32_t> parameters;
  /// What the maps tell of a slot before its shape is known.
  struct Source {
    std::uint32_t slot;
    std::string parameter;
    bool whole; ///< one parameter is all of it
    std::vector<ShapeHint> shapes;
  };
  std::unordered_map<std::string, Source> sources;
  struct Provided {
    std::uint32_t parameter;
    PlacedParameter placed;
    Shard shard;
    std::vector<MapUse> uses;
    const std::vector<ExportedSlot>* exported = nullptr; ///< in place of uses
  };
  std::vector<Provided> provided;
  /// Notes one source of a slot; false where it is at odds with another one.
  const auto add_source = [&](const LocalTensor& tensor, DType wire, const std::string& slot,
                              std::vector<ShapeHint> shapes, bool whole, const std::string& place) {
    const auto [known, added] =
      sources.try_emplace(slot, Source{static_cast<std::uint32_t>(result.slots.size()), tensor.name, whole, {}});
    Source& source = known->second;
    if (added) {
      result.slots.push_back({slot, wire, {}});
      source.shapes = std::move(shapes);
      return true;
    }
    const DType dtype = result.slots[source.slot].dtype;
    std::vector<ShapeHint> common = common_shapes(source.shapes, shapes);
    if (!common.empty() && dtype == wire && !whole && !source.whole) {
      source.shapes = std::move(common);
      return true;
    }
    problems.add(
      Code::invalid_topology, "{}slot '{}' has two sources: parameter '{}' gives {} {}, parameter '{}' gives {} {}{}{}",
      place, slot, source.parameter, to_string(dtype), to_string(source.shapes.front().shape), tensor.name,
      to_string(wire), to_string(shapes.front().shape), common.empty() || dtype != wire ? " (and they differ)" : "",
      whole || source.whole ? "; where several parameters fill a slot, slot_slice says which part each is"
                            : "; slot_view can tell the extents of the slot");
    return false;
  };
  for (const LocalTensor& tensor : tensors) {
    const auto number = static_cast<std::uint32_t>(result.parameters.size());
    if (!parameters.emplace(tensor.name, number).second) {
      problems.add(Code::invalid_argument, "tensor '{}' is added twice", tensor.name);
      continue;
    }
    if (const ParameterRule* rule = side.fact(tensor.name); rule && rule->shape && *rule->shape != tensor.shape)
      problems.add(Code::invalid_topology, "{}: parameter '{}' is declared as {}, but was added as {}", rule->where,
                   tensor.name, to_string(*rule->shape), to_string(tensor.shape));
    auto placed = side.placed(tensor.name, tensor.shape);
    if (!placed) {
      problems.add(std::move(placed).error());
      continue;
    }
    placed->flat = tensor.flat;
    auto shard = shard_by(*placed, mesh(), rank);
    if (!shard) {
      problems.add(std::move(shard).error());
      continue;
    }
    if (!shard->held) {
      problems.add(Code::invalid_argument, "{}; do not add it there", side.not_held(*placed, rank));
      continue;
    }
    auto strides = local_strides(tensor, shard->local_shape);
    if (!strides) {
      problems.add(std::move(strides).error());
      continue;
    }
    const auto wire = side.wire_dtype(tensor, placed->placement);
    if (!wire) {
      problems.add(wire.error());
      continue;
    }
    if (tensor.exported) {
      const std::string who = fmt::format("rank {}: parameter '{}', exported by rule", rank, tensor.name);
      if (!tensor.strides.empty() || tensor.flat) {
        problems.add(Code::invalid_argument, "{}: strides and flat intervals are for the rule to tell: leave them out",
                     who);
        continue;
      }
      const ParameterRule* rule = side.fact(tensor.name);
      bool fits = check_exported(*tensor.exported, *element_count(shard->local_shape), rule != nullptr && rule->padding,
                                 who, problems);
      result.parameters.push_back({tensor.name, tensor.dtype, tensor.shape, shard->local_shape, *strides});
      for (const ExportedSlot& slot : *tensor.exported)
        fits = add_source(tensor, *wire, slot.name, {{slot.shape, std::vector<bool>(slot.shape.size(), false)}}, false,
                          "") &&
               fits;
      if (fits)
        provided.push_back({number, std::move(*placed), std::move(*shard), {}, &*tensor.exported});
      continue;
    }
    auto uses = side.uses(tensor.name, tensor.shape, rank);
    if (!uses) {
      problems.add(std::move(uses).error());
      continue;
    }
    result.parameters.push_back({tensor.name, tensor.dtype, tensor.shape, shard->local_shape, *strides});
    bool fits = true;
    for (const MapUse& use : *uses) {
      auto shapes = slot_shapes(use, tensor.shape);
      if (!shapes) {
        problems.add(std::move(shapes).error());
        fits = false;
        continue;
      }
      if (!add_source(tensor, *wire, use.slot, std::move(*shapes), use.map->of_slot.takes_all(), place_of(*use.map)))
        fits = false;
    }
    if (fits)
      provided.push_back({number, std::move(*placed), std::move(*shard), std::move(*uses), nullptr});
  }
  for (const auto& [name, source] : sources)
    // Viewed numbers that nothing tells to be parts of one dim are dims.
    result.slots[source.slot].shape =
      std::max_element(source.shapes.begin(), source.shapes.end(), [](const ShapeHint& a, const ShapeHint& b) {
        return a.shape.size() < b.shape.size();
      })->shape;
  for (const Provided& tensor : provided) {
    const ParameterSpec& parameter = result.parameters[tensor.parameter];
    if (tensor.exported != nullptr) {
      for (const ExportedSlot& slot : *tensor.exported)
        for (const ExportedBlock& block : slot.blocks)
          if (auto region = region_of(block)) {
            region->parameter = tensor.parameter;
            region->slot = sources.at(slot.name).slot;
            result.regions.push_back(std::move(*region));
          }
      continue;
    }
    std::vector<SlotPart> parts;
    bool fits = true;
    for (const MapUse& use : tensor.uses) {
      const std::uint32_t slot = sources.at(use.slot).slot;
      auto applied = apply(use, parameter.full_shape, result.slots[slot].shape);
      auto owner = side.owns(*use.map, tensor.placed, tensor.shard, rank);
      if (!applied || !owner) {
        problems.add(applied ? std::move(owner).error() : std::move(applied).error());
        fits = false;
        continue;
      }
      parts.push_back({std::move(*applied), slot, *owner});
    }
    if (!fits || !side.check_coverage(parameter.name, parameter.full_shape, parts, result.slots, problems))
      continue;
    for (const SlotPart& part : parts) {
      if (!part.owned)
        continue;
      for (Region& region : compose(part.applied, tensor.shard, parameter.strides)) {
        region.parameter = tensor.parameter;
        region.slot = part.slot;
        result.regions.push_back(std::move(region));
      }
    }
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return result;
}

/// The full shape of a worker's parameter: declared, or what all its uses agree on.
Result<Shape> Side::Compiled::worker_shape(const std::string& name, std::span<const MapUse> uses,
                                           std::span<const std::uint32_t> slots,
                                           std::span<const SlotSpec> catalogue) const {
  if (const ParameterRule* rule = fact(name); rule && rule->shape)
    return *rule->shape;
  std::vector<ShapeHint> agreed; // what all uses so far allow
  for (std::size_t i = 0; i < uses.size(); ++i) {
    auto hints = parameter_shapes(uses[i], catalogue[slots[i]].shape);
    if (!hints)
      return pass_on(std::move(hints));
    std::vector<ShapeHint> both = i == 0 ? *hints : common_shapes(agreed, *hints);
    if (both.empty())
      return fail(Code::disagreement,
                  "worker parameter '{}': its maps agree on no shape: slot '{}' {} makes it {}, slot '{}' {} makes it "
                  "{}",
                  name, uses.front().slot, to_string(catalogue[slots.front()].shape), to_string(agreed.front().shape),
                  uses[i].slot, to_string(catalogue[slots[i]].shape), to_string(hints->front().shape));
    agreed = std::move(both);
  }
  if (agreed.size() > 1) {
    std::string candidates;
    for (const ShapeHint& hint : agreed)
      candidates += (candidates.empty() ? "" : " or ") + to_string(hint.shape);
    return fail(Code::invalid_topology,
                "worker parameter '{}': its views leave open which dims are one ({}); put parentheses around the parts "
                "of a dim in the view, or add a [[worker.parameter]] with its shape",
                name, candidates);
  }
  return agreed.front().shape;
}

/// All parameters that the slots lead to here, in order of their first slot, with what this worker holds of each.
Result<std::vector<WorkerParameter>> Side::Compiled::worker(std::span<const SlotSpec> catalogue, Index index) const {
  struct Group {
    std::string name;
    std::vector<MapUse> uses;
    std::vector<std::uint32_t> slots;
  };
  std::vector<Group> groups;
  std::unordered_map<std::string, std::size_t> known;
  std::unordered_map<std::string, std::uint32_t> slot_names;
  Problems problems;
  auto add = [&](MapUse use, std::uint32_t slot) {
    const auto [place, added] = known.emplace(use.parameter, groups.size());
    if (added)
      groups.push_back({use.parameter, {}, {}});
    groups[place->second].uses.push_back(std::move(use));
    groups[place->second].slots.push_back(slot);
  };
  for (std::size_t s = 0; s < catalogue.size(); ++s) {
    const auto slot = static_cast<std::uint32_t>(s);
    const std::string& name = catalogue[s].name;
    if (!slot_names.emplace(name, slot).second) {
      problems.add(Code::invalid_argument, "slot '{}' is in the catalogue twice", name);
      continue;
    }
    if (auto count = element_count(catalogue[s].shape); !count) {
      problems.add(count.error().code, "slot '{}': {}", name, count.error().message);
      continue;
    }
    bool mapped = false;
    for (const Map& map : maps) {
      auto uses = uses_for_slot(map, name, catalogue[s].shape, rules.mesh, index);
      auto elsewhere = uses && uses->empty() && !mapped ? read_elsewhere(map, catalogue[s]) : Result<bool>(false);
      if (!uses || !elsewhere) {
        problems.add(uses ? std::move(elsewhere).error() : std::move(uses).error());
        mapped = true;
        continue;
      }
      mapped = mapped || !uses->empty() || *elsewhere;
      for (MapUse& use : *uses)
        add(std::move(use), slot);
    }
    const bool listed = std::any_of(unused.begin(), unused.end(),
                                    [&](const Pattern& pattern) { return pattern.match(name).has_value(); });
    if (!mapped && !listed)
      add({&Map::identity(), name, name, {}, {}, {}}, slot);
  }

  std::vector<WorkerParameter> result;
  for (const Group& group : groups) {
    auto shape = worker_shape(group.name, group.uses, group.slots, catalogue);
    if (!shape) {
      problems.add(std::move(shape).error());
      continue;
    }
    const SlotSpec& first = catalogue[group.slots.front()];
    WorkerParameter parameter;
    parameter.spec.name = group.name;
    parameter.spec.dtype = first.dtype;
    parameter.spec.full_shape = *shape;
    bool fits = true;
    for (std::size_t i = 0; i < group.uses.size(); ++i) {
      const SlotSpec& slot = catalogue[group.slots[i]];
      if (slot.dtype != first.dtype) {
        problems.add(Code::disagreement, "worker parameter '{}': slot '{}' is {}, but slot '{}' is {}", group.name,
                     first.name, to_string(first.dtype), slot.name, to_string(slot.dtype));
        fits = false;
      }
      auto applied = apply(group.uses[i], *shape, slot.shape);
      if (!applied) {
        problems.add(std::move(applied).error());
        fits = false;
        continue;
      }
      parameter.parts.push_back({std::move(*applied), group.slots[i], true});
    }
    if (!fits || !check_coverage(group.name, *shape, parameter.parts, catalogue, problems))
      continue;
    auto placed_here = placed(group.name, *shape);
    if (!placed_here) {
      problems.add(std::move(placed_here).error());
      continue;
    }
    auto shard_here = shard_by(*placed_here, rules.mesh, index);
    if (!shard_here) {
      problems.add(std::move(shard_here).error());
      continue;
    }
    if (!shard_here->held)
      parameter.not_held = not_held(*placed_here, index);
    for (const MapUse& use : group.uses)
      if (auto cut = owns(*use.map, *placed_here, *shard_here, index); !cut) {
        problems.add(std::move(cut).error());
        fits = false;
        break;
      }
    if (!fits)
      continue;
    parameter.shard = std::move(*shard_here);
    parameter.spec.local_shape = parameter.shard.local_shape;
    parameter.spec.strides = row_major_strides(parameter.spec.local_shape);
    result.push_back(std::move(parameter));
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return result;
}

Result<std::vector<ParameterSpec>> Side::worker_parameters(std::span<const SlotSpec> catalogue, Index index) const {
  if (auto place = compiled_->check_place(Role::worker, index, "worker_parameters"); !place)
    return pass_on(std::move(place));
  auto parameters = compiled_->worker(catalogue, index);
  if (!parameters)
    return pass_on(std::move(parameters));
  std::vector<ParameterSpec> specs;
  for (WorkerParameter& parameter : *parameters)
    if (parameter.shard.held)
      specs.push_back(std::move(parameter.spec));
  return specs;
}

Result<void> Side::check_names(std::span<const std::string> parameters, std::span<const SlotSpec> catalogue) const {
  std::unordered_set<std::string> names(parameters.begin(), parameters.end());
  if (compiled_->role == Role::worker) // this worker may lack what others hold; the slots lead to all of it
    for (std::string& name : compiled_->worker_names(catalogue))
      names.insert(std::move(name));
  std::unordered_set<std::string> slots;
  for (const SlotSpec& slot : catalogue)
    slots.insert(slot.name);
  Problems problems;
  const auto check = [&](const std::string& text, const std::unordered_set<std::string>& known, const char* what,
                         const std::string& where) {
    const bool pattern = text.find_first_of("*{") != std::string::npos;
    if (!pattern && !known.contains(text))
      problems.add(Code::disagreement, "{}: no {} is named '{}'", where, what, text);
  };
  const SideRules& rules = compiled_->rules;
  const bool trainer = compiled_->role == Role::trainer;
  for (const PlacementRule& rule : rules.placements)
    check(rule.parameter, names, "parameter", rule.where);
  for (const ParameterRule& rule : rules.parameters)
    check(rule.name, names, "parameter", rule.where);
  for (const MapRule& rule : rules.maps) {
    check(rule.parameter, names, "parameter", rule.where);
    if (!trainer && !rule.slot.empty())
      check(rule.slot, slots, "slot", rule.where);
  }
  for (const std::string& unused : rules.unused)
    check(unused, slots, "slot", "worker.unused");
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return {};
}

Result<Declaration> Side::declare_worker(std::span<const SlotSpec> catalogue, std::span<const LocalTensor> tensors,
                                         Index index) const {
  if (auto place = compiled_->check_place(Role::worker, index, "declare_worker"); !place)
    return pass_on(std::move(place));
  auto parameters = compiled_->worker(catalogue, index);
  if (!parameters)
    return pass_on(std::move(parameters));
  std::unordered_map<std::string, const WorkerParameter*> known;
  for (const WorkerParameter& parameter : *parameters)
    known.emplace(parameter.spec.name, &parameter);

  Problems problems;
  Declaration result;
  std::unordered_map<std::string, std::uint32_t> bound;
  std::map<std::uint32_t, std::uint32_t> slots; // of the catalogue -> of the declaration, ascending
  std::vector<std::string> unknown;
  std::vector<const WorkerParameter*> order;
  for (const LocalTensor& tensor : tensors) {
    const auto number = static_cast<std::uint32_t>(result.parameters.size());
    if (!bound.emplace(tensor.name, number).second) {
      problems.add(Code::invalid_argument, "worker {}: tensor '{}' is bound twice", index, tensor.name);
      continue;
    }
    const auto found = known.find(tensor.name);
    if (found == known.end()) {
      unknown.push_back(tensor.name);
      continue;
    }
    const WorkerParameter& parameter = *found->second;
    if (!parameter.shard.held) {
      problems.add(Code::invalid_argument, "{}; do not bind it there", parameter.not_held);
      continue;
    }
    ParameterSpec spec = parameter.spec;
    if (tensor.dtype != spec.dtype)
      problems.add(Code::disagreement, "worker {}: tensor '{}' is bound as {}, the trainer sends {}{}", index,
                   tensor.name, to_string(tensor.dtype), to_string(spec.dtype),
                   casts_to(spec.dtype, tensor.dtype)
                     ? fmt::format(" (workers do not cast: the trainer does, where its "
                                   "wire_dtype says {})",
                                   to_string(tensor.dtype))
                     : "");
    if (tensor.shape != spec.local_shape) {
      problems.add(Code::disagreement,
                   "worker {}: tensor '{}' is bound with local shape {}, the topology gives this worker {} of {}",
                   index, tensor.name, to_string(tensor.shape), to_string(spec.local_shape),
                   to_string(spec.full_shape));
      continue;
    }
    auto strides = local_strides(tensor, spec.local_shape);
    if (!strides) {
      problems.add(std::move(strides).error());
      continue;
    }
    spec.strides = std::move(*strides);
    result.parameters.push_back(std::move(spec));
    order.push_back(&parameter);
    for (const SlotPart& part : parameter.parts)
      slots.emplace(part.slot, 0);
  }
  if (!unknown.empty())
    problems.add(Code::disagreement, "worker {}: no slot or map leads to the bound tensors {}", index,
                 list_of(unknown));
  std::vector<std::string> missing;
  for (const WorkerParameter& parameter : *parameters)
    if (parameter.shard.held && !bound.contains(parameter.spec.name))
      missing.push_back(parameter.spec.name);
  if (!missing.empty())
    problems.add(
      Code::disagreement,
      "worker {}: these parameters are not bound: {} (bind them, map their slots elsewhere, or list the slots "
      "in worker.unused)",
      index, list_of(missing));
  if (problems.any())
    return tl::make_unexpected(problems.failure());

  for (auto& [catalogued, declared] : slots) {
    declared = static_cast<std::uint32_t>(result.slots.size());
    result.slots.push_back(catalogue[catalogued]);
  }
  for (std::size_t p = 0; p < order.size(); ++p)
    for (const SlotPart& part : order[p]->parts)
      for (Region& region : compose(part.applied, order[p]->shard, result.parameters[p].strides)) {
        region.parameter = static_cast<std::uint32_t>(p);
        region.slot = slots.at(part.slot);
        result.regions.push_back(std::move(region));
      }
  return result;
}

} // namespace deltawire::layout
