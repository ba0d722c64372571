// Random placements on both sides, from the rules to the plan's blocks, against an oracle that knows only full tensors:
// every element has a number, and cuts deal lists of positions, one position at a time. It shares no code with
// src/layout. Every block element must be the element that the oracle says lies there; every element of a slot is sent
// once, by the lowest of those that hold it; every place of every worker is filled once.

#include "catch.hpp"
#include "counting.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "random.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <numeric>
#include <set>

using namespace deltawire;
using namespace deltawire::layout;
using test::advance;
using test::product;

namespace {

using Positions = std::vector<Index>;

/// What the oracle gets wrong on purpose, to see that it would be noticed.
enum class Fault { none, cut_order, floor_pieces, forgotten_by_slice };

enum class Kind { whole, cyclic, by_slice, by_segments, flat };

struct Group {
  std::string name;
  std::vector<std::size_t> axes;
  Index size = 1;
};

struct OracleCut {
  Group group;
  Kind kind = Kind::whole;
  std::size_t dim = 0;
  std::vector<Index> segments;
  std::vector<Index> sizes;
};

/// What a map keeps of the sliced dim, and the cuts it has of its own.
struct OracleSlice {
  Index begin = 0, end = 0;
  std::string slot;
  std::optional<std::vector<OracleCut>> own;
};

struct OracleParameter {
  std::string name;
  Shape shape;
  Positions numbers; ///< of each element, row-major; -1: padding
  std::size_t sliced = 0;
  std::vector<OracleSlice> slices; ///< empty: one slot of the same name
  std::vector<OracleCut> cuts;
  std::vector<std::pair<Group, std::vector<Index>>> on;
  std::vector<Index> flat_weights; ///< trainer: the process declares its flat intervals, by these; empty: it does not
};

struct OracleSide {
  Shape mesh;
  SideRules rules;
  std::vector<OracleParameter> parameters;
};

struct Layout {
  DType dtype = DType::f32;
  std::vector<SlotSpec> slots;
  std::map<std::string, Positions> slot_numbers; ///< row-major over the slot
  Index elements = 0;
  OracleSide trainer, worker;
  std::set<std::string> features;
};

Shape coordinates_of(const Shape& mesh, Index rank) {
  Shape at(mesh.size(), 0);
  for (Index r = 0; r < rank; ++r)
    advance(at, mesh);
  return at;
}

Index coordinate_of(const Group& group, const Shape& mesh, const Shape& at) {
  Index coordinate = 0;
  for (const std::size_t axis : group.axes)
    coordinate = coordinate * mesh[axis] + at[axis];
  return coordinate;
}

/// One cut of a list of anything, by dealing its entries one at a time.
template <class T>
std::vector<T> deal(const std::vector<T>& from, const OracleCut& cut, Index coordinate, Fault fault) {
  const auto n = static_cast<Index>(from.size());
  const Index world = cut.group.size;
  std::vector<T> kept;
  Index size = 0; // torch.chunk
  while (size * world < n)
    ++size;
  if (fault == Fault::floor_pieces)
    size = std::max<Index>(n / world, 1);
  std::vector<Index> ends; // declared
  for (const Index declared : cut.sizes)
    ends.push_back((ends.empty() ? 0 : ends.back()) + declared);
  for (Index i = 0; i < n; ++i) {
    Index owner = cut.kind == Kind::cyclic ? i % world : i / size;
    if (fault == Fault::floor_pieces && cut.kind != Kind::cyclic)
      owner = std::min(owner, world - 1);
    if (!ends.empty()) {
      owner = 0;
      while (i >= ends[static_cast<std::size_t>(owner)])
        ++owner;
    }
    if (owner == coordinate)
      kept.push_back(from[static_cast<std::size_t>(i)]);
  }
  return kept;
}

/// What a member holds: its memory's shape and the number of each element, row-major. Nothing: no such parameter.
struct Memory {
  Shape shape;
  Positions numbers;
  std::optional<FlatRange> declared;
};

std::optional<Memory> memory_of(const OracleParameter& parameter, const Shape& mesh, Index rank, Fault fault) {
  const Shape at = coordinates_of(mesh, rank);
  for (const auto& [group, coordinates] : parameter.on)
    if (std::count(coordinates.begin(), coordinates.end(), coordinate_of(group, mesh, at)) == 0)
      return std::nullopt;
  std::vector<OracleCut> cuts = parameter.cuts;
  if (fault == Fault::cut_order)
    std::reverse(cuts.begin(), cuts.end());
  std::vector<Positions> held;
  for (std::size_t d = 0; d < parameter.shape.size(); ++d) {
    std::vector<OracleCut> by_slice, whole;
    for (const OracleCut& cut : cuts)
      if (cut.kind != Kind::flat && cut.dim == d) {
        const bool segmented = cut.kind == Kind::by_slice || cut.kind == Kind::by_segments;
        (segmented && fault != Fault::forgotten_by_slice ? by_slice : whole).push_back(cut);
      }
    // every position of the dim with the segment it belongs to
    std::vector<std::pair<int, const OracleSlice*>> tag(static_cast<std::size_t>(parameter.shape[d]), {0, nullptr});
    const bool own =
      d == parameter.sliced && std::any_of(parameter.slices.begin(), parameter.slices.end(),
                                           [](const OracleSlice& slice) { return slice.own.has_value(); });
    if (!by_slice.empty() && by_slice.front().kind == Kind::by_segments) {
      std::size_t p = 0;
      for (std::size_t s = 0; s < by_slice.front().segments.size(); ++s)
        for (Index i = 0; i < by_slice.front().segments[s]; ++i)
          tag[p++].first = static_cast<int>(s);
    } else if ((!by_slice.empty() || own) && d == parameter.sliced) {
      for (std::size_t s = 0; s < parameter.slices.size(); ++s)
        for (Index i = parameter.slices[s].begin; i < parameter.slices[s].end; ++i)
          tag[static_cast<std::size_t>(i)] = {static_cast<int>(s) + 1, &parameter.slices[s]};
    }
    Positions packed;
    for (std::size_t p = 0; p < tag.size();) {
      Positions piece;
      const auto here = tag[p];
      for (; p < tag.size() && tag[p] == here; ++p)
        piece.push_back(static_cast<Index>(p));
      const bool its_own = here.second != nullptr && here.second->own && fault != Fault::forgotten_by_slice;
      for (const OracleCut& cut : its_own ? *here.second->own : by_slice)
        piece = deal(piece, cut, coordinate_of(cut.group, mesh, at), fault);
      packed.insert(packed.end(), piece.begin(), piece.end());
    }
    for (const OracleCut& cut : whole)
      packed = deal(packed, cut, coordinate_of(cut.group, mesh, at), fault);
    held.push_back(std::move(packed));
  }
  Memory memory;
  for (const Positions& positions : held)
    memory.shape.push_back(static_cast<Index>(positions.size()));
  std::vector<Index> digit(held.size(), 0);
  if (product(memory.shape) > 0)
    do {
      Index flat = 0;
      for (std::size_t d = 0; d < held.size(); ++d)
        flat = flat * parameter.shape[d] + held[d][static_cast<std::size_t>(digit[d])];
      memory.numbers.push_back(parameter.numbers[static_cast<std::size_t>(flat)]);
    } while (advance(digit, memory.shape));
  if (parameter.shape.empty()) // never cut
    return memory;
  for (const OracleCut& cut : cuts) {
    if (cut.kind != Kind::flat)
      continue;
    if (!parameter.flat_weights.empty()) {
      const auto n = static_cast<Index>(memory.numbers.size());
      const auto c = coordinate_of(cut.group, mesh, at);
      const auto border = [&](Index before) {
        const auto& w = parameter.flat_weights;
        return n * std::accumulate(w.begin(), w.begin() + before, Index{0}) /
               std::accumulate(w.begin(), w.end(), Index{0});
      };
      memory.declared = FlatRange{border(c), border(c + 1)};
      memory.numbers = {memory.numbers.begin() + border(c), memory.numbers.begin() + border(c + 1)};
    } else {
      memory.numbers = deal(memory.numbers, cut, coordinate_of(cut.group, mesh, at), fault);
    }
    memory.shape = {static_cast<Index>(memory.numbers.size())};
  }
  return memory;
}

// Random layouts
// --------------------------------------------------------------------------------------------------------------

class Generator {
public:
  explicit Generator(std::mt19937_64& random) : random_(random) {}

  Layout make() {
    const Index dims = below(15) == 0 ? 0 : 1 + below(4);
    Index budget = 240;
    Shape shape;
    for (Index d = 0; d < dims; ++d) {
      shape.push_back(below(40) == 0 ? 0 : 1 + below(std::min<Index>(12, budget)));
      budget = std::max<Index>(budget / std::max<Index>(shape.back(), 1), 1);
    }
    feature(dims == 0, "scalar");
    feature(dims == 4, "four dims");
    feature(dims > 0 && product(shape) == 0, "zero-size tensor");
    OracleParameter whole = make_slots(shape);
    layout_.trainer = make_side("trainer ", {whole});
    if (whole.slices.empty() || below(2) == 0) {
      layout_.worker = make_side("worker ", {whole});
    } else { // the slots one by one
      std::vector<OracleParameter> slots;
      for (const SlotSpec& slot : layout_.slots)
        slots.push_back({slot.name, slot.shape, layout_.slot_numbers[slot.name], 0, {}, {}, {}, {}});
      layout_.worker = make_side("worker ", std::move(slots));
    }
    return std::move(layout_);
  }

private:
  Index below(Index n) { return static_cast<Index>(random_() % static_cast<std::uint64_t>(n)); }
  void feature(bool used, const std::string& name) {
    if (used)
      layout_.features.insert(name);
  }

  /// `parts` numbers that sum to `total`.
  std::vector<Index> composition(Index total, Index parts, Index least) {
    std::vector<Index> result(static_cast<std::size_t>(parts), least);
    for (Index left = total - parts * least; left > 0; --left)
      ++result[static_cast<std::size_t>(below(parts))];
    return result;
  }

  /// One parameter "p", and the slots that slices of one of its dims make.
  OracleParameter make_slots(const Shape& shape) {
    OracleParameter p{"p", shape, {}, 0, {}, {}, {}, {}};
    const bool sliced = !shape.empty() && product(shape) > 0 && below(3) != 0;
    p.numbers.assign(static_cast<std::size_t>(product(shape)), -1);
    if (!sliced) {
      std::iota(p.numbers.begin(), p.numbers.end(), Index{0});
      layout_.slots.push_back({"p", layout_.dtype, shape});
      layout_.slot_numbers["p"] = p.numbers;
      layout_.elements = product(shape);
      return p;
    }
    p.sliced = static_cast<std::size_t>(below(static_cast<Index>(shape.size())));
    const Index extent = shape[p.sliced];
    indexed_ = below(4) == 0;
    feature(indexed_, "experts by index");
    Index at = 0;
    while (at < extent) {
      const Index length = indexed_ ? 1 : 1 + below(extent - at);
      if (indexed_ || at + length == extent || below(5) != 0 || p.slices.empty())
        p.slices.push_back({at, at + length, "s" + std::to_string(p.slices.size()), std::nullopt});
      else
        padding_ = true;
      at += length;
    }
    feature(padding_, "padding");
    for (const OracleSlice& slice : p.slices) {
      Shape kept = shape;
      kept[p.sliced] = slice.end - slice.begin;
      std::vector<Index> digit(shape.size(), 0);
      Positions& numbers = layout_.slot_numbers[slice.slot];
      do {
        Index flat = 0;
        for (std::size_t d = 0; d < shape.size(); ++d)
          flat = flat * shape[d] + digit[d] + (d == p.sliced ? slice.begin : 0);
        numbers.push_back(layout_.elements);
        p.numbers[static_cast<std::size_t>(flat)] = layout_.elements++;
      } while (advance(digit, kept));
      if (indexed_)
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(p.sliced));
      layout_.slots.push_back({slice.slot, layout_.dtype, kept});
    }
    return p;
  }

  OracleSide make_side(const std::string& who, std::vector<OracleParameter> parameters) {
    OracleSide side;
    const Index axes = below(4);
    std::vector<Axis> mesh;
    for (Index a = 0; a < axes; ++a) {
      const Index size = 1 + below(4);
      if (product(side.mesh) * size > 16)
        continue;
      mesh.push_back({std::string(1, static_cast<char>('x' + a)), size});
      side.mesh.push_back(size);
    }
    feature(mesh.size() == 3, who + "three axes");
    side.rules.mesh = *Mesh::make(mesh);
    for (OracleParameter& parameter : parameters)
      place(who, side, parameter);
    side.parameters = std::move(parameters);
    return side;
  }

  std::vector<Group> groups_of(const SideRules& rules, std::vector<JoinedAxis>& joined) {
    std::vector<std::size_t> order(rules.mesh.axes().size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<Group> groups;
    if (order.size() > 1 && below(3) == 0) {
      Group group{"j" + std::to_string(joined_++), {}, 1};
      const std::size_t parts = order.size() == 3 && below(2) == 0 ? 3 : 2;
      joined.push_back({group.name, {}});
      for (std::size_t i = 0; i < parts; ++i) {
        group.axes.push_back(order.back());
        group.size *= rules.mesh.axes()[order.back()].size;
        joined.back().axes.push_back(rules.mesh.axes()[order.back()].name);
        order.pop_back();
      }
      groups.push_back(std::move(group));
    }
    for (const std::size_t axis : order)
      groups.push_back({rules.mesh.axes()[axis].name, {axis}, rules.mesh.axes()[axis].size});
    std::shuffle(groups.begin(), groups.end(), random_);
    return groups;
  }

  void place(const std::string& who, OracleSide& side, OracleParameter& p) {
    PlacementRule rule{p.name, {}, "t:" + std::to_string(2 + side.rules.placements.size()), {}};
    std::vector<JoinedAxis> joined;
    std::vector<Group> groups = groups_of(side.rules, joined);
    std::vector<Group> for_maps; // what the maps' own cuts may use
    const auto dims = static_cast<Index>(p.shape.size());
    std::vector<std::vector<Index>> segments(p.shape.size()); // named, where a dim is cut so
    std::vector<int> segmenting(p.shape.size(), -1);          // 0: by slice, 1: by segments
    for (Group& group : groups) {
      const Index use = below(10);
      if (use == 0) {
        std::vector<Index> some;
        for (Index c = 0; c < group.size; ++c)
          if (below(2) == 0)
            some.push_back(c);
        if (some.empty())
          some.push_back(below(group.size));
        if (static_cast<Index>(some.size()) < group.size)
          feature(true, who + "on");
        p.on.emplace_back(group, some);
        rule.options.on.push_back({group.name, some});
        continue;
      }
      if (use < 3 || dims == 0) {
        feature(group.size > 1, who + "replicas");
        for_maps.push_back(group);
        if (use > 5)
          rule.shard.push_back(group.name + ":0"); // named, and a scalar is never cut
        continue;
      }
      OracleCut cut{group, Kind::whole, static_cast<std::size_t>(below(dims)), {}, {}};
      const Index extent = p.shape[cut.dim];
      const Index kind = below(9);
      if (kind < 2) {
        cut.kind = Kind::flat;
      } else if (kind == 2) {
        cut.kind = Kind::cyclic;
      } else if (kind < 6 && extent > 0) {
        int& how = segmenting[cut.dim];
        if (how < 0)
          how = below(3) == 0 ? 1 : 0;
        if (how == 1 && segments[cut.dim].empty())
          segments[cut.dim] = composition(extent, 1 + below(std::min<Index>(extent, 3)), 1);
        cut.kind = how == 1 ? Kind::by_segments : Kind::by_slice;
        cut.segments = segments[cut.dim];
      }
      p.cuts.push_back(std::move(cut));
    }
    const auto rank_of = [](const OracleCut& cut) {
      return cut.kind >= Kind::flat ? 2 : cut.kind >= Kind::by_slice ? 0 : 1;
    };
    std::stable_sort(p.cuts.begin(), p.cuts.end(),
                     [&](const OracleCut& a, const OracleCut& b) { return rank_of(a) < rank_of(b); });
    std::vector<int> cuts_of(p.shape.size(), 0);
    int flats = 0, others = 0;
    for (OracleCut& cut : p.cuts) {
      const bool flat = cut.kind == Kind::flat;
      int& before = flat ? flats : cuts_of[cut.dim];
      const bool declarable = flat ? flats == 0 && others == 0 && product(p.shape) > 0
                                   : before == 0 && cut.kind == Kind::whole && p.shape[cut.dim] > 0;
      if (declarable && below(3) == 0) {
        cut.sizes = composition(flat ? product(p.shape) : p.shape[cut.dim], cut.group.size, 0);
        rule.options.sizes.push_back({cut.group.name, cut.sizes});
        feature(true, who + "declared sizes");
      }
      rule.shard.push_back(text_of(cut));
      ++before;
      others += flat ? 0 : 1;
      feature(flat, who + "flat");
      feature(flat && others > 0, who + "flat behind other cuts");
      feature(cut.kind == Kind::cyclic, who + "cyclic");
      feature(cut.kind == Kind::by_slice, who + "by slice");
      feature(cut.kind == Kind::by_segments, who + "by named segments");
      feature(!flat && before == 2, who + "two cuts of one dim");
      feature(cut.group.axes.size() > 1, who + "joined axes");
    }
    feature(std::count_if(cuts_of.begin(), cuts_of.end(), [](int n) { return n > 0; }) > 1,
            who + "cuts of several dims");
    if (who == "trainer " && flats == 1 && p.cuts.back().sizes.empty() && below(3) == 0) {
      p.flat_weights = composition(10, p.cuts.back().group.size, 0);
      feature(true, who + "flat intervals of its own");
    }
    const bool for_all = below(2) == 0; // joined for the whole side, or for this rule
    if (for_all)
      side.rules.axes.insert(side.rules.axes.end(), joined.begin(), joined.end());
    else
      rule.options.axes = joined;
    own_cuts(who, p, for_maps);
    write_maps(side.rules, p, rule.options.axes);
    side.rules.placements.push_back(std::move(rule));
    if (!p.slices.empty())
      side.rules.parameters.push_back({p.name, p.shape, padding_, "t:1"});
  }

  static std::string text_of(const OracleCut& cut) {
    std::string text = cut.group.name + ":" + (cut.kind == Kind::flat ? "flat" : std::to_string(cut.dim));
    if (cut.kind == Kind::cyclic)
      text += " cyclic";
    if (cut.kind == Kind::by_slice)
      text += " by slice";
    if (cut.kind == Kind::by_segments)
      text += " by " + to_string(cut.segments);
    return text;
  }

  /// Cuts of their own for some slices, over axes that the parameter's by-slice cuts use or that replicate.
  void own_cuts(const std::string& who, OracleParameter& p, std::vector<Group> free) {
    if (p.slices.empty() || below(2) == 0)
      return;
    bool by_slice = false;
    for (const OracleCut& cut : p.cuts) {
      if (cut.kind == Kind::by_slice || cut.kind == Kind::by_segments) {
        if (cut.dim != p.sliced)
          return; // of a dim that all maps keep: no two can differ
        free.push_back(cut.group);
      }
      if (cut.kind == Kind::flat && !cut.sizes.empty())
        return; // they sum to all elements
      if (cut.kind == Kind::flat || cut.dim != p.sliced)
        continue;
      by_slice = by_slice || cut.kind == Kind::by_slice;
      if (!by_slice)
        return; // whole, or by named segments
    }
    std::vector<OracleCut> shared;
    for (OracleSlice& slice : p.slices) {
      std::vector<OracleCut> cuts;
      std::shuffle(free.begin(), free.end(), random_);
      for (const Group& group : free)
        if (below(2) == 0)
          cuts.push_back({group, below(4) == 0 ? Kind::cyclic : Kind::whole, p.sliced, {}, {}});
      if (indexed_) { // one rule for all
        if (&slice == &p.slices.front())
          shared = cuts;
        slice.own = shared;
      } else if (below(3) != 0) {
        slice.own = cuts;
      }
      feature(slice.own.has_value(), who + "cuts of a map's own");
    }
  }

  void write_maps(SideRules& rules, const OracleParameter& p, const std::vector<JoinedAxis>& joined) {
    for (const OracleSlice& slice : p.slices) {
      MapRule rule{
        p.name, indexed_ ? "s{e}" : slice.slot, "", "[", false, "t:" + std::to_string(50 + rules.maps.size())};
      for (std::size_t d = 0; d < p.shape.size(); ++d) {
        rule.slice += d == 0 ? "" : ", ";
        rule.slice += d != p.sliced ? ":"
                      : indexed_    ? "e"
                                    : std::to_string(slice.begin) + ":" + std::to_string(slice.end);
      }
      rule.slice += "]";
      if (slice.own) {
        rule.shard.emplace();
        for (const OracleCut& cut : *slice.own)
          rule.shard->push_back(text_of(cut));
        rule.options.axes = joined;
      }
      rules.maps.push_back(std::move(rule));
      if (indexed_)
        return;
    }
  }

  std::mt19937_64& random_;
  Layout layout_;
  bool padding_ = false;
  bool indexed_ = false;
  int joined_ = 0;
};

// Comparison
// ------------------------------------------------------------------------------------------------------------------

/// Strides of a random memory order with gaps; sometimes none (row-major).
std::vector<Index> random_strides(const Shape& local, std::mt19937_64& random, std::set<std::string>& features) {
  if (random() % 3 != 0 || local.empty() || product(local) == 0)
    return {};
  std::vector<std::size_t> order(local.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Index> strides(local.size());
  Index next = 1 + static_cast<Index>(random() % 2);
  for (const std::size_t d : order) {
    strides[d] = next;
    next = next * local[d] + static_cast<Index>(random() % 3);
  }
  features.insert("strided memory");
  return strides;
}

/// The number of the element at each address of a member's parameters.
struct Addresses {
  std::vector<std::map<Index, Index>> parameters;
  std::vector<Positions> unstrided; ///< flat positions in the full parameter, in local order

  void add(const Memory& memory, const std::vector<Index>& strides) {
    auto& numbers = parameters.emplace_back();
    std::vector<Index> digit(memory.shape.size(), 0);
    for (std::size_t i = 0; i < memory.numbers.size(); ++i) {
      Index address = strides.empty() ? static_cast<Index>(i) : 0;
      for (std::size_t d = 0; d < strides.size(); ++d)
        address += digit[d] * strides[d];
      numbers[address] = memory.numbers[i];
      advance(digit, memory.shape);
    }
  }
};

/// Flat positions in the full parameter that a member holds, in local order.
Positions positions_of(OracleParameter parameter, const Shape& mesh, Index member, Fault fault) {
  std::iota(parameter.numbers.begin(), parameter.numbers.end(), Index{0});
  return memory_of(parameter, mesh, member, fault)->numbers;
}

/// Whether a shard's boxes are these positions.
bool holds(const Shard& shard, const Positions& positions) {
  std::map<Index, Index> found;
  for (const ShardBox& box : boxes_of(shard, row_major_strides(shard.local_shape))) {
    const auto walk = [&](const auto& self, std::size_t d, Index local, Index flat) -> void {
      if (d == box.dims.size()) {
        found[local] = flat;
        return;
      }
      for (const Interval& interval : box.dims[d])
        for (Index i = 0; i < interval.length; ++i)
          self(self, d + 1, local + (interval.local + i) * box.strides[d],
               flat * shard.full_shape[d] + interval.global + i * interval.step);
    };
    walk(walk, 0, box.base, 0);
  }
  std::map<Index, Index> expected;
  for (std::size_t i = 0; i < positions.size(); ++i)
    expected[static_cast<Index>(i)] = positions[i];
  return found == expected;
}

struct Made {
  std::vector<Declaration> ranks, workers;
  std::vector<Addresses> rank_memory, worker_memory;
  std::string refused;
};

/// Declares both sides with the memory that the oracle gives them.
Made declare(Layout& layout, std::mt19937_64& random, Fault fault) {
  Made made;
  const auto trainer = Side::compile(layout.trainer.rules, Side::Role::trainer);
  const auto worker = Side::compile(layout.worker.rules, Side::Role::worker);
  if (!trainer || !worker) {
    made.refused = trainer ? worker.error().message : trainer.error().message;
    return made;
  }
  for (const bool is_trainer : {true, false}) {
    const OracleSide& side = is_trainer ? layout.trainer : layout.worker;
    for (Index member = 0; member < product(side.mesh); ++member) {
      std::vector<LocalTensor> tensors;
      std::vector<Shape> shapes;
      Addresses addresses;
      for (const OracleParameter& parameter : side.parameters) {
        const auto memory = memory_of(parameter, side.mesh, member, fault);
        if (!memory)
          continue;
        const std::vector<Index> strides = random_strides(memory->shape, random, layout.features);
        if (memory->numbers.empty() && product(parameter.shape) > 0)
          layout.features.insert("empty shard");
        shapes.push_back(parameter.shape);
        addresses.unstrided.push_back(positions_of(parameter, side.mesh, member, fault));
        tensors.push_back({parameter.name, layout.dtype, is_trainer ? parameter.shape : memory->shape, strides,
                           is_trainer ? memory->declared : std::nullopt});
        addresses.add(*memory, strides);
      }
      auto declaration =
        is_trainer ? trainer->declare_trainer(tensors, member) : worker->declare_worker(layout.slots, tensors, member);
      if (!declaration) {
        made.refused = declaration.error().message;
        return made;
      }
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto shard = (is_trainer ? *trainer : *worker).shard(tensors[i].name, shapes[i], member);
        if (shard && !tensors[i].flat && !holds(*shard, addresses.unstrided[i]))
          made.refused = "member " + std::to_string(member) + " holds other elements";
      }
      (is_trainer ? made.ranks : made.workers).push_back(std::move(*declaration));
      (is_trainer ? made.rank_memory : made.worker_memory).push_back(std::move(addresses));
    }
  }
  return made;
}

template <class Visit>
void each_element(const Block& block, const Visit& visit) {
  std::vector<Index> at(block.extents.size(), 0);
  do {
    Index local = block.local_offset, slot = block.slot_offset;
    for (std::size_t d = 0; d < at.size(); ++d) {
      local += at[d] * block.local_strides[d];
      slot += at[d] * block.slot_strides[d];
    }
    visit(local, slot);
  } while (advance(at, block.extents));
}

/// Empty, or the first thing that is wrong with the plan.
std::string compare(const Layout& layout, const Made& made, const Plan& plan) {
  std::vector<Index> sent_by(static_cast<std::size_t>(layout.elements), -1);
  std::string wrong;
  const auto number_of = [&](const Block& block, Index slot) {
    return layout.slot_numbers.at(plan.slots[block.slot].name)[static_cast<std::size_t>(slot)];
  };
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (const Block& block : plan.ranks[rank])
      each_element(block, [&](Index local, Index slot) {
        const Index number = number_of(block, slot);
        const auto& memory = made.rank_memory[rank].parameters[block.parameter];
        const auto found = memory.find(local);
        if (found == memory.end() || found->second != number)
          wrong = "rank " + std::to_string(rank) + " has another element at " + std::to_string(local);
        if (sent_by[static_cast<std::size_t>(number)] >= 0)
          wrong = "element " + std::to_string(number) + " is sent twice";
        sent_by[static_cast<std::size_t>(number)] = static_cast<Index>(rank);
      });
  for (std::size_t worker = 0; worker < plan.workers.size(); ++worker) {
    auto left = made.worker_memory[worker].parameters;
    for (const Block& block : plan.workers[worker])
      each_element(block, [&](Index local, Index slot) {
        const auto found = left[block.parameter].find(local);
        if (found == left[block.parameter].end() || found->second != number_of(block, slot))
          wrong = "worker " + std::to_string(worker) + " has another element at " + std::to_string(local);
        else
          left[block.parameter].erase(found);
      });
    for (const auto& memory : left)
      for (const auto& [address, number] : memory)
        if (number >= 0)
          wrong = "worker " + std::to_string(worker) + " is not given element " + std::to_string(number);
  }
  if (std::count(sent_by.begin(), sent_by.end(), -1) > 0)
    wrong = "an element is not sent";
  // The lowest of those that hold it sends. (Where slices are cut on their own and packed again, or `on` joins axes,
  // who is lowest is another question.)
  const OracleParameter& p = layout.trainer.parameters.front();
  const bool plain = std::all_of(p.slices.begin(), p.slices.end(), [](const OracleSlice& s) { return !s.own; }) &&
                     std::all_of(p.on.begin(), p.on.end(), [](const auto& on) { return on.first.axes.size() == 1; });
  std::vector<Index> lowest(sent_by.size(), -1);
  for (std::size_t rank = made.rank_memory.size(); rank-- > 0;)
    for (const auto& memory : made.rank_memory[rank].parameters)
      for (const auto& [address, number] : memory)
        if (number >= 0)
          lowest[static_cast<std::size_t>(number)] = static_cast<Index>(rank);
  if (plain && wrong.empty() && lowest != sent_by)
    wrong = "another rank than the lowest sends";
  return wrong;
}

/// Empty, or what is wrong when the oracle has this fault.
std::string check(Layout& layout, std::mt19937_64& random, Fault fault) {
  const Made made = declare(layout, random, fault);
  if (!made.refused.empty())
    return made.refused;
  const auto plan = compile_plan(made.ranks, made.workers, {}, 1024);
  if (!plan)
    return plan.error().message;
  return compare(layout, made, *plan);
}

void describe(const Layout& layout) {
  for (const OracleSide* side : {&layout.trainer, &layout.worker}) {
    std::string text = "mesh " + to_string(side->mesh);
    for (const JoinedAxis& axis : side->rules.axes)
      text += fmt::format(" {}=", axis.name) + axis.axes.front() + "..";
    for (const OracleParameter& parameter : side->parameters)
      text += " " + parameter.name + to_string(parameter.shape);
    for (const PlacementRule& rule : side->rules.placements)
      for (const std::string& cut : rule.shard)
        text += " | " + rule.parameter + " " + cut;
    for (const MapRule& rule : side->rules.maps) {
      text += " # " + rule.slot + rule.slice;
      if (rule.shard)
        for (const std::string& cut : *rule.shard)
          text += " own " + cut;
    }
    UNSCOPED_INFO(text);
  }
}

/// Whether the fault changes what anyone holds.
bool matters(const Layout& layout, Fault fault) {
  for (const OracleSide* side : {&layout.trainer, &layout.worker})
    for (const OracleParameter& parameter : side->parameters)
      for (Index member = 0; member < product(side->mesh); ++member) {
        const auto right = memory_of(parameter, side->mesh, member, Fault::none);
        const auto wrong = memory_of(parameter, side->mesh, member, fault);
        if (right && right->numbers != wrong->numbers)
          return true;
      }
  return false;
}

} // namespace

TEST_CASE("blocks of random placements are the oracle's elements, on both sides, each sent once") {
  constexpr int layouts = 3000;
  std::map<std::string, int> features;
  auto random = test::generator(21);
  const auto begin = std::chrono::steady_clock::now();
  for (int n = 0; n < layouts; ++n) {
    Layout layout = Generator(random).make();
    CAPTURE(test::seed(), n);
    describe(layout);
    REQUIRE(check(layout, random, Fault::none) == "");
    for (const std::string& feature : layout.features)
      ++features[feature];
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::cout << "placements: seed " << test::seed() << ", " << layouts << " random layouts in " << seconds
            << " s; used:";
  for (const auto& [feature, count] : features)
    std::cout << " [" << feature << " " << count << "]";
  std::cout << "\n";
  std::vector<std::string> expected{
    "scalar",         "four dims",        "zero-size tensor", "padding",
    "strided memory", "experts by index", "empty shard",      "trainer flat intervals of its own"};
  for (const std::string who : {"trainer ", "worker "})
    for (const char* feature :
         {"three axes", "replicas", "on", "joined axes", "cyclic", "by slice", "by named segments", "declared sizes",
          "flat", "flat behind other cuts", "two cuts of one dim", "cuts of several dims", "cuts of a map's own"})
      expected.push_back(who + feature);
  for (const std::string& feature : expected) {
    CAPTURE(feature);
    CHECK(features[feature] >= 50);
  }
}

TEST_CASE("an oracle that cuts in another order, rounds down or forgets slices disagrees wherever it matters") {
  for (const auto& [fault, name] :
       {std::pair{Fault::cut_order, "cut order"}, std::pair{Fault::floor_pieces, "floor instead of ceil"},
        std::pair{Fault::forgotten_by_slice, "forgotten by-slice"}}) {
    auto random = test::generator(22);
    int mattered = 0;
    for (int n = 0; n < 4000 && mattered < 200; ++n) {
      Layout layout = Generator(random).make();
      CAPTURE(test::seed(), n, name);
      if (!matters(layout, fault))
        continue;
      ++mattered;
      describe(layout);
      REQUIRE(check(layout, random, fault) != "");
    }
    std::cout << "planted fault '" << name << "': caught in all " << mattered << " layouts where it matters\n";
    CHECK(mattered >= 50);
  }
}

TEST_CASE("a replica that also sends is refused wherever there is one") {
  auto random = test::generator(23);
  int replicas = 0;
  for (int n = 0; n < 400; ++n) {
    Layout layout = Generator(random).make();
    CAPTURE(test::seed(), n);
    describe(layout);
    Made made = declare(layout, random, Fault::none);
    REQUIRE(made.refused == "");
    for (std::size_t rank = 0; rank < made.ranks.size(); ++rank) {
      if (!made.ranks[rank].regions.empty() || made.rank_memory[rank].parameters.empty() ||
          made.rank_memory[rank].parameters[0].empty())
        continue; // it sends, or holds nothing
      // what an owner with the same memory sends
      for (std::size_t other = 0; other < rank; ++other)
        if (!made.ranks[other].regions.empty() &&
            made.rank_memory[other].parameters == made.rank_memory[rank].parameters) {
          made.ranks[rank] = made.ranks[other];
          const auto plan = compile_plan(made.ranks, made.workers, {}, 1024);
          REQUIRE(!plan);
          CHECK(plan.error().message.find("is provided 2 times") != std::string::npos);
          ++replicas;
          rank = made.ranks.size() - 1; // one a layout
          break;
        }
    }
  }
  std::cout << "planted fault 'replica sent twice': caught in all " << replicas << " layouts that have one\n";
  CHECK(replicas >= 20);
}
