#include "proof.hpp"

#include "proof_text.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <set>

namespace deltawire::replay {

using proof::Cut;
using proof::Match;
using proof::NamePattern;
using proof::SliceItem;

namespace {

using Index = std::int64_t;
using Shape = std::vector<Index>;

// ------------------------------------------------------------------------------------------ row-major arithmetic

Index count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies<>());
}

/// How many elements lie between neighbours of dim `d`.
Index stride_of(const Shape& shape, std::size_t d) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(d) + 1, shape.end(), Index{1},
                         std::multiplies<>());
}

Shape coordinates_of(Index flat, const Shape& shape) {
  Shape coordinates(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    coordinates[d] = flat % shape[d];
    flat /= shape[d];
  }
  return coordinates;
}

/// Calls `visit` with the sum of one offset from each list, the last list running fastest.
template <class Visit>
void for_each_sum(const std::vector<std::vector<Index>>& offsets, std::size_t depth, Index base, const Visit& visit) {
  if (depth == offsets.size()) {
    visit(base);
    return;
  }
  for (Index offset : offsets[depth])
    for_each_sum(offsets, depth + 1, base + offset, visit);
}

std::string text_of(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// --------------------------------------------------------------------------------------------------------- rules

/// A map entry, read. Without view and slice it takes the parameter as it is.
struct Map {
  NamePattern parameter;
  NamePattern slot;
  std::optional<Shape> view;
  std::optional<std::vector<SliceItem>> slice;
  bool transpose = false;
  std::string where;
};

struct Placement {
  NamePattern parameter;
  std::vector<Cut> cuts;
  std::string where;
};

struct Fact {
  NamePattern name;
  std::optional<Shape> shape;
  bool padding = false;
};

struct Rules {
  std::vector<Map> maps;
  std::vector<Placement> placements;
  std::vector<Fact> facts;
  std::vector<NamePattern> unused;
};

template <class T>
tl::unexpected<Failure> at(const std::string& where, Result<T>&& result) {
  return fail(result.error().code, "{}: {}", where, result.error().message);
}

Result<Map> read_map(const layout::MapRule& rule) {
  Map map;
  map.where = rule.where;
  map.transpose = rule.transpose;
  auto parameter = NamePattern::parse(rule.parameter);
  if (!parameter)
    return at(rule.where, std::move(parameter));
  map.parameter = std::move(*parameter);
  auto slot = NamePattern::parse(rule.slot.empty() ? rule.parameter : rule.slot);
  if (!slot)
    return at(rule.where, std::move(slot));
  map.slot = std::move(*slot);
  if (!rule.view.empty()) {
    auto view = proof::parse_view(rule.view);
    if (!view)
      return at(rule.where, std::move(view));
    map.view = std::move(*view);
  }
  if (!rule.slice.empty()) {
    auto slice = proof::parse_slice(rule.slice);
    if (!slice)
      return at(rule.where, std::move(slice));
    map.slice = std::move(*slice);
  }
  return map;
}

Result<Rules> read_rules(const layout::SideRules& side) {
  Rules rules;
  for (const layout::MapRule& rule : side.maps) {
    auto map = read_map(rule);
    if (!map)
      return pass_on(std::move(map));
    rules.maps.push_back(std::move(*map));
  }
  for (const layout::PlacementRule& rule : side.placements) {
    auto pattern = NamePattern::parse(rule.parameter);
    if (!pattern)
      return at(rule.where, std::move(pattern));
    Placement placement{std::move(*pattern), {}, rule.where};
    for (const std::string& text : rule.shard) {
      auto cut = proof::parse_cut(text);
      if (!cut)
        return at(rule.where, std::move(cut));
      placement.cuts.push_back(std::move(*cut));
    }
    rules.placements.push_back(std::move(placement));
  }
  for (const layout::ParameterRule& rule : side.parameters) {
    auto pattern = NamePattern::parse(rule.name);
    if (!pattern)
      return at(rule.where, std::move(pattern));
    rules.facts.push_back({std::move(*pattern), rule.shape, rule.padding});
  }
  for (const std::string& text : side.unused) {
    auto pattern = NamePattern::parse(text);
    if (!pattern)
      return pass_on(std::move(pattern));
    rules.unused.push_back(std::move(*pattern));
  }
  return rules;
}

const Fact* fact_of(const Rules& rules, const std::string& name) {
  for (const Fact& fact : rules.facts)
    if (fact.name.match(name))
      return &fact;
  return nullptr;
}

// ------------------------------------------------------------------------------------- elements of a map's slot

/// A map with a number for each name of its slice; no map = the parameter as it is.
struct Use {
  const Map* map = nullptr;
  std::map<std::string, Index> numbers;
};

struct SlotElements {
  Shape shape;
  std::vector<Index> flat; ///< for each element of the slot, row-major: where it is in the parameter, row-major
};

/// Which dim of `shape` each viewed dim is a part of: each dim takes the fewest viewed dims that make up its extent, at
/// least one, and the last takes viewed ones that are left.
Result<std::vector<std::size_t>> dims_of_view(const Shape& view, const Shape& shape) {
  std::vector<std::size_t> dims;
  std::size_t v = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    Index product = 1;
    bool taken = false;
    while (v < view.size() && (!taken || product < shape[d])) {
      if (view[v] > 1 && product > shape[d] / view[v])
        return fail(Code::invalid_topology, "view {} does not split {}", text_of(view), text_of(shape));
      product *= view[v++];
      dims.push_back(d);
      taken = true;
    }
    if (!taken || product != shape[d])
      return fail(Code::invalid_topology, "view {} does not split {}", text_of(view), text_of(shape));
  }
  for (; v < view.size(); ++v) {
    if (view[v] != 1 || shape.empty())
      return fail(Code::invalid_topology, "view {} does not split {}", text_of(view), text_of(shape));
    dims.push_back(shape.size() - 1);
  }
  return dims;
}

/// Design, section 4: view splits dims, slice takes one item a viewed dim, indexed dims drop, transpose swaps the last
/// two, and parts of one dim that are still adjacent and in order merge back (which changes the shape, not the order).
Result<SlotElements> elements_of(const Use& use, const Shape& shape) {
  const Shape& viewed = use.map != nullptr && use.map->view ? *use.map->view : shape;
  std::vector<std::size_t> dims(shape.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  if (use.map != nullptr && use.map->view) {
    auto split = dims_of_view(viewed, shape);
    if (!split)
      return pass_on(std::move(split));
    dims = std::move(*split);
  }
  std::vector<SliceItem> items(viewed.size()); // all of every dim
  if (use.map != nullptr && use.map->slice)
    items = *use.map->slice;
  if (items.size() != viewed.size())
    return fail(Code::invalid_topology, "a slice of {} items on {}", items.size(), text_of(viewed));

  Index base = 0;                          // of the indexed dims
  std::vector<std::size_t> left;           // viewed dims that do not drop
  std::vector<std::vector<Index>> offsets; // one list for each of `left`: what each kept position adds
  for (std::size_t v = 0; v < viewed.size(); ++v) {
    const SliceItem& item = items[v];
    Index begin = 0;
    Index end = viewed[v];
    const bool drops = item.kind == SliceItem::Kind::index || item.kind == SliceItem::Kind::name;
    if (item.kind == SliceItem::Kind::range) {
      begin = item.begin;
      end = item.end;
    } else if (drops) {
      begin = item.kind == SliceItem::Kind::index ? item.begin : use.numbers.at(item.name);
      end = begin + 1;
    }
    if (end > viewed[v])
      return fail(Code::invalid_topology, "slice item {} reaches to {}, past the end of {}", v, end, text_of(viewed));
    if (drops) {
      base += begin * stride_of(viewed, v);
      continue;
    }
    left.push_back(v);
    std::vector<Index>& list = offsets.emplace_back();
    for (Index i = begin; i < end; ++i)
      list.push_back(i * stride_of(viewed, v));
  }
  if (use.map != nullptr && use.map->transpose) {
    if (left.size() < 2)
      return fail(Code::invalid_topology, "transpose of fewer than two dims");
    std::swap(left[left.size() - 1], left[left.size() - 2]);
    std::swap(offsets[offsets.size() - 1], offsets[offsets.size() - 2]);
  }

  SlotElements result;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto extent = static_cast<Index>(offsets[i].size());
    if (i > 0 && dims[left[i - 1]] == dims[left[i]] && left[i - 1] < left[i])
      result.shape.back() *= extent;
    else
      result.shape.push_back(extent);
  }
  result.flat.reserve(static_cast<std::size_t>(count_of(result.shape)));
  for_each_sum(offsets, 0, base, [&](Index flat) { result.flat.push_back(flat); });
  return result;
}

// ------------------------------------------------------------------------------------------- the trainer's slots

struct Slot {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;
  std::size_t tensor = 0; ///< of the checkpoint
  Use use;                ///< how that tensor holds it
};

/// Calls `visit` with the match, completed by every combination of values of the names that only the slice knows.
Result<void> for_each_number(const Map& map, const Shape& viewed, std::size_t item, const Match& match,
                             const std::function<Result<void>(const Match&)>& visit) {
  if (!map.slice || item == map.slice->size())
    return visit(match);
  const SliceItem& wanted = (*map.slice)[item];
  if (wanted.kind != SliceItem::Kind::name || match.names.contains(wanted.name))
    return for_each_number(map, viewed, item + 1, match, visit);
  if (item >= viewed.size())
    return fail(Code::invalid_topology, "{}: a slice of {} items on {}", map.where, map.slice->size(), text_of(viewed));
  const Index end = wanted.limited ? wanted.end : viewed[item];
  for (Index i = wanted.limited ? wanted.begin : 0; i < end; ++i) {
    Match more = match;
    more.names[wanted.name] = std::to_string(i);
    if (auto visited = for_each_number(map, viewed, item + 1, more, visit); !visited)
      return visited;
  }
  return {};
}

/// The numbers of the slice's names; nothing where a text is no number or outside what the slice allows.
std::optional<Use> use_of(const Map& map, const Match& match) {
  Use use{&map, {}};
  for (std::size_t i = 0; map.slice && i < map.slice->size(); ++i) {
    const SliceItem& item = (*map.slice)[i];
    if (item.kind != SliceItem::Kind::name)
      continue;
    const auto found = match.names.find(item.name);
    const auto value = found == match.names.end() ? std::nullopt : proof::number(found->second);
    if (!value || (item.limited && (*value < item.begin || *value >= item.end)))
      return std::nullopt;
    use.numbers[item.name] = *value;
  }
  return use;
}

Result<std::vector<Slot>> slots_of(const Rules& trainer, const checkpoint::Checkpoint& file) {
  std::vector<Slot> slots;
  std::map<std::string, std::string> sources;
  for (std::size_t t = 0; t < file.tensors().size(); ++t) {
    const checkpoint::TensorView& tensor = file.tensors()[t];
    const auto add = [&](const std::string& name, const Use& use) -> Result<void> {
      auto elements = elements_of(use, tensor.shape);
      if (!elements)
        return at(fmt::format("{}: tensor '{}'", use.map ? use.map->where : file.path(), tensor.name),
                  std::move(elements));
      if (const auto [known, added] = sources.emplace(name, tensor.name); !added)
        return fail(Code::invalid_topology, "slot '{}' is filled by tensor '{}' and by tensor '{}'", name,
                    known->second, tensor.name);
      slots.push_back({name, tensor.dtype, std::move(elements->shape), t, use});
      return {};
    };
    bool mapped = false;
    for (const Map& map : trainer.maps) {
      const auto match = map.parameter.match(tensor.name);
      if (!match)
        continue;
      mapped = true;
      const auto visited =
        for_each_number(map, map.view ? *map.view : tensor.shape, 0, *match, [&](const Match& all) -> Result<void> {
          const auto use = use_of(map, all);
          if (!use)
            return fail(Code::invalid_topology, "{}: '{}' gives the slice a name that is no number in its range",
                        map.where, tensor.name);
          auto name = map.slot.fill(all);
          if (!name)
            return at(map.where, std::move(name));
          return add(*name, *use);
        });
      if (!visited)
        return tl::make_unexpected(visited.error());
    }
    if (!mapped)
      if (auto added = add(tensor.name, {}); !added)
        return pass_on(std::move(added));
  }
  return slots;
}

// ------------------------------------------------------------------------------------- the worker's parameters

struct Read {
  const Slot* slot = nullptr;
  Use use; ///< how the worker's parameter holds it
};

/// Which slots each parameter of the worker is made of.
Result<std::map<std::string, std::vector<Read>>> reads_of(const Rules& worker, const std::vector<Slot>& slots) {
  std::map<std::string, std::vector<Read>> reads;
  for (const Slot& slot : slots) {
    bool named = false;
    for (const Map& map : worker.maps) {
      const auto match = map.slot.match(slot.name);
      if (!match)
        continue;
      const auto use = use_of(map, *match);
      if (!use)
        continue;
      auto parameter = map.parameter.fill(*match);
      if (!parameter)
        return at(map.where, std::move(parameter));
      if (!map.parameter.match(*parameter))
        continue; // a word where the parameter's pattern takes digits
      named = true;
      reads[*parameter].push_back({&slot, *use});
    }
    const bool unused = std::any_of(worker.unused.begin(), worker.unused.end(),
                                    [&](const NamePattern& pattern) { return pattern.match(slot.name).has_value(); });
    if (!named && !unused)
      reads[slot.name].push_back({&slot, {}});
  }
  return reads;
}

/// Without a view: the least shape that holds this slot. `:` takes the slot's extent, a range its end, a number itself.
Result<Shape> least_shape(const Read& read) {
  const Shape& slot = read.slot->shape;
  if (read.use.map == nullptr)
    return slot;
  const std::vector<SliceItem> items = read.use.map->slice ? *read.use.map->slice : std::vector<SliceItem>(slot.size());
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].kind == SliceItem::Kind::all || items[i].kind == SliceItem::Kind::range)
      left.push_back(i);
  if (left.size() != slot.size())
    return fail(Code::invalid_topology, "{}: the slice leaves {} dims, but slot '{}' is {}", read.use.map->where,
                left.size(), read.slot->name, text_of(slot));
  if (read.use.map->transpose && left.size() >= 2)
    std::swap(left[left.size() - 1], left[left.size() - 2]);
  Shape shape(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind == SliceItem::Kind::range)
      shape[i] = items[i].end;
    else if (items[i].kind == SliceItem::Kind::index)
      shape[i] = items[i].begin + 1;
    else if (items[i].kind == SliceItem::Kind::name)
      shape[i] = read.use.numbers.at(items[i].name) + 1;
  }
  for (std::size_t s = 0; s < left.size(); ++s)
    if (items[left[s]].kind == SliceItem::Kind::all)
      shape[left[s]] = slot[s];
  return shape;
}

/// With a view: every shape that the view splits and that gives this slot's shape. All ways to join neighbours are
/// tried.
Result<std::set<Shape>> viewed_shapes(const Read& read) {
  const Shape& view = *read.use.map->view;
  if (view.size() > 16)
    return fail(Code::unsupported, "{}: a view of {} dims", read.use.map->where, view.size());
  std::set<Shape> shapes;
  for (unsigned joins = 0; joins < 1U << (view.size() - 1); ++joins) {
    Shape shape = {view.front()};
    for (std::size_t v = 1; v < view.size(); ++v) {
      if ((joins >> (v - 1) & 1U) != 0)
        shape.back() *= view[v];
      else
        shape.push_back(view[v]);
    }
    const auto elements = elements_of(read.use, shape);
    if (elements && elements->shape == read.slot->shape)
      shapes.insert(shape);
  }
  return shapes;
}

Result<Shape> full_shape_of(const std::string& name, const std::vector<Read>& reads, const Fact* fact) {
  if (fact != nullptr && fact->shape)
    return *fact->shape;
  std::optional<Shape> least;
  std::optional<std::set<Shape>> possible;
  for (const Read& read : reads) {
    if (read.use.map != nullptr && read.use.map->view) {
      auto shapes = viewed_shapes(read);
      if (!shapes)
        return pass_on(std::move(shapes));
      if (!possible)
        possible = *shapes;
      std::erase_if(*possible, [&](const Shape& shape) { return !shapes->contains(shape); });
      continue;
    }
    auto shape = least_shape(read);
    if (!shape)
      return pass_on(std::move(shape));
    if (!least)
      least = *shape;
    if (least->size() != shape->size())
      return fail(Code::invalid_topology, "worker parameter '{}': its maps disagree on the number of dims", name);
    for (std::size_t d = 0; d < shape->size(); ++d)
      (*least)[d] = std::max((*least)[d], (*shape)[d]);
  }
  if (!possible)
    return *least;
  std::erase_if(*possible, [&](const Shape& shape) {
    if (!least)
      return false;
    if (least->size() != shape.size())
      return true;
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (shape[d] < (*least)[d])
        return true;
    return false;
  });
  if (possible->size() != 1)
    return fail(Code::invalid_topology, "worker parameter '{}': its views allow {} shapes; declare its shape", name,
                possible->size());
  return *possible->begin();
}

// ------------------------------------------------------------------------------------------------------- sharding

using Positions = std::vector<Index>;

/// Piece `coordinate` of `world` ceil pieces.
Positions piece_of(const Positions& positions, Index world, Index coordinate) {
  const auto length = static_cast<Index>(positions.size());
  const Index piece = (length + world - 1) / world;
  const Index begin = std::min(length, coordinate * piece);
  const Index end = std::min(length, begin + piece);
  return {positions.begin() + begin, positions.begin() + end};
}

/// The stretches of dim `dim` that maps keep, and those between them, in order.
Result<std::vector<Positions>> segments_of(const std::vector<Read>& reads, const Shape& shape, std::size_t dim) {
  std::set<std::pair<Index, Index>> kept;
  for (const Read& read : reads) {
    // Segments are a matter of the dim alone: a parameter that is empty in another dim is cut as if it had one element
    // there.
    Shape filled = shape;
    if (read.use.map == nullptr || !read.use.map->view)
      for (std::size_t d = 0; d < filled.size(); ++d)
        if (d != dim && filled[d] == 0)
          filled[d] = 1;
    const auto elements = elements_of(read.use, filled);
    if (!elements)
      return tl::make_unexpected(elements.error());
    std::set<Index> positions;
    const Index stride = stride_of(filled, dim);
    Index last = -1; // most neighbours share the position
    for (Index flat : elements->flat) {
      const Index position = flat / stride % filled[dim];
      if (position != last)
        positions.insert(position);
      last = position;
    }
    if (positions.empty())
      continue;
    const Index begin = *positions.begin();
    const Index end = *positions.rbegin() + 1;
    if (end - begin != static_cast<Index>(positions.size()))
      return fail(Code::invalid_topology, "slot '{}' keeps several intervals of the dim that is cut by slice",
                  read.slot->name);
    kept.emplace(begin, end);
  }
  std::vector<Positions> segments;
  const auto add = [&](Index begin, Index end) {
    if (begin == end)
      return;
    Positions& segment = segments.emplace_back(static_cast<std::size_t>(end - begin));
    std::iota(segment.begin(), segment.end(), begin);
  };
  Index covered = 0;
  for (const auto& [begin, end] : kept) {
    if (begin < covered)
      return fail(Code::invalid_topology,
                  "maps keep intervals that overlap but differ on the dim that is cut by slice");
    add(covered, begin);
    add(begin, end);
    covered = end;
  }
  add(covered, shape[dim]);
  return segments;
}

/// Which positions of each dim worker `index` holds, in the order it holds them.
Result<std::vector<Positions>> positions_of(const std::string& name, const Shape& shape, const std::vector<Read>& reads,
                                            const Rules& rules, const std::vector<layout::Axis>& axes, Index index) {
  std::vector<std::vector<Positions>> held; // for each dim its segments
  for (Index extent : shape) {
    Positions all(static_cast<std::size_t>(extent));
    std::iota(all.begin(), all.end(), Index{0});
    held.push_back({std::move(all)});
  }
  const auto placement = std::find_if(rules.placements.begin(), rules.placements.end(),
                                      [&](const Placement& rule) { return rule.parameter.match(name).has_value(); });
  std::set<std::size_t> segmented;
  std::set<std::size_t> cut_whole;
  std::set<std::string> used;
  if (placement != rules.placements.end() && !shape.empty()) { // a scalar is never cut
    for (const Cut& cut : placement->cuts) {
      Index coordinate = index; // workers count row-major over the axes
      const layout::Axis* axis = nullptr;
      for (std::size_t a = axes.size(); a-- > 0 && axis == nullptr;) {
        if (axes[a].name == cut.axis)
          axis = &axes[a];
        else
          coordinate /= axes[a].size;
      }
      if (axis == nullptr)
        return fail(Code::invalid_topology, "{}: the worker's mesh has no axis '{}'", placement->where, cut.axis);
      coordinate %= axis->size;
      if (!used.insert(cut.axis).second)
        return fail(Code::invalid_topology, "{}: axis '{}' cuts twice", placement->where, cut.axis);
      if (cut.dim >= shape.size())
        return fail(Code::invalid_topology, "{}: axis '{}' cuts dim {} of '{}', which is {}", placement->where,
                    cut.axis, cut.dim, name, text_of(shape));
      std::vector<Positions>& segments = held[cut.dim];
      if (cut.by_slice) {
        if (cut_whole.contains(cut.dim))
          return fail(Code::invalid_topology, "{}: axis '{}' cuts by slice after a whole cut", placement->where,
                      cut.axis);
        if (segmented.insert(cut.dim).second) {
          auto found = segments_of(reads, shape, cut.dim);
          if (!found)
            return at(fmt::format("{}: axis '{}' of '{}'", placement->where, cut.axis, name), std::move(found));
          segments = std::move(*found);
        }
      } else {
        cut_whole.insert(cut.dim);
        Positions joined;
        for (const Positions& segment : segments)
          joined.insert(joined.end(), segment.begin(), segment.end());
        segments = {std::move(joined)};
      }
      for (Positions& segment : segments)
        segment = piece_of(segment, axis->size, coordinate);
    }
  }
  std::vector<Positions> result;
  for (const std::vector<Positions>& segments : held) {
    Positions& joined = result.emplace_back();
    for (const Positions& segment : segments)
      joined.insert(joined.end(), segment.begin(), segment.end());
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------- what is kept

/// Where one element of a worker's parameter comes from.
struct Origin {
  std::ptrdiff_t tensor = -1; ///< of the checkpoint; -1: padding
  Index flat = 0;             ///< in that tensor, row-major
};

/// Consecutive local elements whose origins are consecutive too (or padding): as a list of origins, but shorter.
struct Run {
  Index local = 0;
  Index length = 0;
  Origin origin;
};

struct Parameter {
  std::vector<Positions> positions; ///< for each dim, which of the full tensor's the worker holds
  std::vector<Run> runs;            ///< cover the local elements in order
};

void append(std::vector<Run>& runs, Index local, const Origin& origin) {
  if (!runs.empty()) {
    Run& last = runs.back();
    const bool goes_on =
      last.origin.tensor == origin.tensor && (origin.tensor < 0 || last.origin.flat + last.length == origin.flat);
    if (goes_on) {
      ++last.length;
      return;
    }
  }
  runs.push_back({local, 1, origin});
}

/// The origin of every element of the full parameter.
Result<std::vector<Origin>> origins_of(const std::string& name, const Shape& shape, const std::vector<Read>& reads,
                                       bool may_have_padding, const checkpoint::Checkpoint& file) {
  std::vector<Origin> origins(static_cast<std::size_t>(count_of(shape)));
  for (const Read& read : reads) {
    auto here = elements_of(read.use, shape);
    if (!here)
      return at(fmt::format("worker parameter '{}', slot '{}'", name, read.slot->name), std::move(here));
    if (here->shape != read.slot->shape)
      return fail(Code::disagreement, "worker parameter '{}' {} takes {} from slot '{}', which is {}", name,
                  text_of(shape), text_of(here->shape), read.slot->name, text_of(read.slot->shape));
    auto there = elements_of(read.slot->use, file.tensors()[read.slot->tensor].shape);
    if (!there)
      return pass_on(std::move(there));
    for (std::size_t i = 0; i < here->flat.size(); ++i) {
      Origin& origin = origins[static_cast<std::size_t>(here->flat[i])];
      if (origin.tensor >= 0)
        return fail(Code::invalid_topology, "worker parameter '{}': element {} is given by two slots, one of them '{}'",
                    name, text_of(coordinates_of(here->flat[i], shape)), read.slot->name);
      origin = {static_cast<std::ptrdiff_t>(read.slot->tensor), there->flat[i]};
    }
  }
  if (!may_have_padding)
    for (std::size_t i = 0; i < origins.size(); ++i)
      if (origins[i].tensor < 0)
        return fail(Code::invalid_topology, "worker parameter '{}': no slot gives element {}", name,
                    text_of(coordinates_of(static_cast<Index>(i), shape)));
  return origins;
}

/// A checkpoint tensor that the worker's parameters come from.
struct Source {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;
};

std::string bits_of(const std::byte* element, std::size_t size) {
  std::string text = "0x";
  for (std::size_t i = size; i-- > 0;) // little-endian
    text += fmt::format("{:02x}", std::to_integer<unsigned>(element[i]));
  return text;
}

} // namespace

struct Proof::State {
  std::uint32_t worker = 0;
  std::vector<Source> sources; ///< by number in the first file
  std::vector<ExpectedTensor> expected;
  std::vector<Parameter> parameters; ///< parallel to `expected`

  static Result<std::shared_ptr<const State>> make(const config::Topology& topology,
                                                   const checkpoint::Checkpoint& first, std::uint32_t index);
};

Result<std::shared_ptr<const Proof::State>>
Proof::State::make(const config::Topology& topology, const checkpoint::Checkpoint& first, std::uint32_t index) {
  const std::vector<layout::Axis>& axes = topology.worker.mesh.axes();
  Index workers = 1;
  for (const layout::Axis& axis : axes)
    workers *= axis.size;
  if (static_cast<Index>(index) >= workers)
    return fail(Code::invalid_argument, "worker {} is not in the worker's mesh of {}", index, workers);

  auto trainer = read_rules(topology.trainer);
  if (!trainer)
    return pass_on(std::move(trainer));
  auto worker = read_rules(topology.worker);
  if (!worker)
    return pass_on(std::move(worker));
  const auto slots = slots_of(*trainer, first);
  if (!slots)
    return tl::make_unexpected(slots.error());
  const auto reads = reads_of(*worker, *slots);
  if (!reads)
    return tl::make_unexpected(reads.error());

  auto state = std::make_shared<State>();
  state->worker = index;
  for (const checkpoint::TensorView& tensor : first.tensors())
    state->sources.push_back({tensor.name, tensor.dtype, tensor.shape});
  for (const auto& [name, parts] : *reads) {
    const Fact* fact = fact_of(*worker, name);
    const DType dtype = parts.front().slot->dtype;
    for (const Read& part : parts)
      if (part.slot->dtype != dtype)
        return fail(Code::disagreement, "worker parameter '{}': slots '{}' and '{}' differ in dtype", name,
                    parts.front().slot->name, part.slot->name);
    auto shape = full_shape_of(name, parts, fact);
    if (!shape)
      return pass_on(std::move(shape));
    const auto origins = origins_of(name, *shape, parts, fact != nullptr && fact->padding, first);
    if (!origins)
      return tl::make_unexpected(origins.error());
    auto positions = positions_of(name, *shape, parts, *worker, axes, index);
    if (!positions)
      return pass_on(std::move(positions));

    Parameter parameter;
    Shape local_shape;
    std::vector<std::vector<Index>> offsets;
    for (std::size_t d = 0; d < shape->size(); ++d) {
      local_shape.push_back(static_cast<Index>((*positions)[d].size()));
      std::vector<Index>& list = offsets.emplace_back();
      for (Index position : (*positions)[d])
        list.push_back(position * stride_of(*shape, d));
    }
    Index local = 0;
    for_each_sum(offsets, 0, 0,
                 [&](Index flat) { append(parameter.runs, local++, (*origins)[static_cast<std::size_t>(flat)]); });
    parameter.positions = std::move(*positions);
    state->expected.push_back({name, dtype, std::move(local_shape), std::move(*shape)});
    state->parameters.push_back(std::move(parameter));
  }
  return state;
}

Result<Proof> Proof::make(const config::Topology& topology, const checkpoint::Checkpoint& first, std::uint32_t index) {
  try {
    auto state = State::make(topology, first, index);
    if (!state)
      return fail(state.error().code, "proof of worker {}: {}", index, state.error().message);
    Proof proof;
    proof.state_ = std::move(*state);
    return proof;
  } catch (const std::exception& error) { // no memory, or a pattern that the regular expressions give up on
    return fail(Code::limit_exceeded, "proof of worker {}: {}", index, error.what());
  }
}

const std::vector<ExpectedTensor>& Proof::expected() const noexcept {
  return state_->expected;
}

Result<std::uint64_t> Proof::compare(const checkpoint::Checkpoint& version, std::span<const WorkerTensor> held) const {
  const State& state = *state_;
  std::vector<const std::byte*> data;
  for (const Source& source : state.sources) {
    const checkpoint::TensorView* tensor = version.find(source.name);
    if (tensor == nullptr)
      return fail(Code::invalid_input, "{}: tensor '{}' is missing", version.path(), source.name);
    if (tensor->dtype != source.dtype || tensor->shape != source.shape)
      return fail(Code::invalid_input, "{}: tensor '{}' is {} {}, but was {} {} in the first file", version.path(),
                  source.name, to_string(tensor->dtype), text_of(tensor->shape), to_string(source.dtype),
                  text_of(source.shape));
    data.push_back(tensor->data.data());
  }
  std::map<std::string, const WorkerTensor*> by_name;
  for (const WorkerTensor& tensor : held)
    if (!by_name.emplace(tensor.name, &tensor).second)
      return fail(Code::verification_failed, "worker {}: tensor '{}' is held twice", state.worker, tensor.name);

  std::uint64_t compared = 0;
  std::uint64_t differing = 0;
  std::uint64_t tensors_differing = 0;
  std::string first_difference;
  for (std::size_t p = 0; p < state.expected.size(); ++p) {
    const ExpectedTensor& expected = state.expected[p];
    const Parameter& parameter = state.parameters[p];
    const auto found = by_name.find(expected.name);
    if (found == by_name.end())
      return fail(Code::verification_failed, "worker {}: tensor '{}' is missing", state.worker, expected.name);
    const WorkerTensor& tensor = *found->second;
    const std::size_t size = size_of(expected.dtype);
    const Index count = count_of(expected.shape);
    if (tensor.dtype != expected.dtype || tensor.shape != expected.shape ||
        tensor.data.size() != static_cast<std::size_t>(count) * size)
      return fail(Code::verification_failed, "worker {}: tensor '{}' is {} {} in {} bytes, and must be {} {}",
                  state.worker, expected.name, to_string(tensor.dtype), text_of(tensor.shape), tensor.data.size(),
                  to_string(expected.dtype), text_of(expected.shape));
    by_name.erase(found);
    const std::uint64_t differing_before = differing;

    static constexpr std::byte zero[8] = {};
    for (const Run& run : parameter.runs) {
      const bool padding = run.origin.tensor < 0;
      const std::byte* here = tensor.data.data() + static_cast<std::size_t>(run.local) * size;
      const std::byte* there =
        padding ? zero
                : data[static_cast<std::size_t>(run.origin.tensor)] + static_cast<std::size_t>(run.origin.flat) * size;
      compared += static_cast<std::uint64_t>(run.length);
      if (!padding && std::memcmp(here, there, static_cast<std::size_t>(run.length) * size) == 0)
        continue;
      for (Index i = 0; i < run.length; ++i) {
        const std::byte* is = here + static_cast<std::size_t>(i) * size;
        const std::byte* must = padding ? zero : there + static_cast<std::size_t>(i) * size;
        if (std::memcmp(is, must, size) == 0)
          continue;
        ++differing;
        if (!first_difference.empty())
          continue;
        const Shape local = coordinates_of(run.local + i, expected.shape);
        Shape full;
        for (std::size_t d = 0; d < local.size(); ++d)
          full.push_back(parameter.positions[d][static_cast<std::size_t>(local[d])]);
        std::string origin = "padding";
        if (!padding) {
          const Source& source = state.sources[static_cast<std::size_t>(run.origin.tensor)];
          origin = fmt::format("'{}' {} of {}", source.name, text_of(coordinates_of(run.origin.flat + i, source.shape)),
                               version.path());
        }
        first_difference =
          fmt::format("worker {}: tensor '{}' differs at local {}, full {}: holds {}, must be {} ({})", state.worker,
                      expected.name, text_of(local), text_of(full), bits_of(is, size), bits_of(must, size), origin);
      }
    }
    tensors_differing += differing == differing_before ? 0 : 1;
  }
  if (!by_name.empty())
    return fail(Code::verification_failed, "worker {}: tensor '{}' is held, but no rule leads to it", state.worker,
                by_name.begin()->first);
  if (differing > 0)
    return fail(Code::verification_failed, "{}; {} of {} elements differ, in {} of {} tensors", first_difference,
                differing, compared, tensors_differing, state.expected.size());
  return compared;
}

} // namespace deltawire::replay
