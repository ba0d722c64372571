// Side against brute force: random meshes, cuts, views, slices and transposes. The oracle labels every element of the
// full parameter with its flat number, cuts and slices by explicit loops over lists of positions, and compares, element
// by element, with what the regions say. It shares no code with src/layout.

#include "catch.hpp"
#include "counting.hpp"
#include "layout/side.hpp"
#include "random.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <set>

using namespace deltawire;
using namespace deltawire::layout;
using test::advance;
using test::product;

namespace {

using Positions = std::vector<Index>;

/// One map of a random layout; all are made by hand-written choices, so the oracle never parses text.
struct RandomMap {
  std::string slot;
  std::vector<std::pair<Index, Index>> kept; // digits of each viewed dim
  std::vector<bool> dropped;
  bool transpose = false;
};

struct RandomCut {
  std::size_t axis = 0;
  std::size_t dim = 0;
  bool by_slice = false;
};

struct RandomLayout {
  std::vector<Index> mesh;
  Shape shape;
  Shape view;                       // of all dims
  std::vector<std::size_t> view_of; // the parameter dim of each viewed dim
  std::vector<RandomMap> maps;      // expanded: one a slot; empty: identity
  std::vector<RandomCut> cuts;
  bool padding = false;
  SideRules rules;
  std::set<std::string> features;
};

/// A slot by the oracle: its shape and the label of each element, row-major.
struct LabelledSlot {
  Shape shape;
  std::vector<Index> labels;
};

LabelledSlot slice_by_loops(const RandomLayout& layout, const RandomMap& map) {
  // kept viewed dims, in the order of the slot
  std::vector<std::size_t> order;
  for (std::size_t v = 0; v < layout.view.size(); ++v)
    if (!map.dropped[v])
      order.push_back(v);
  std::vector<std::size_t> rank_among_kept(layout.view.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    rank_among_kept[order[i]] = i;
  if (map.transpose)
    std::swap(order[order.size() - 1], order[order.size() - 2]);
  Shape kept;
  for (std::size_t v : order)
    kept.push_back(map.kept[v].second - map.kept[v].first);

  LabelledSlot slot;
  std::vector<Index> at(order.size(), 0);
  if (product(kept) > 0)
    do {
      std::vector<Index> digit(layout.view.size());
      for (std::size_t v = 0; v < layout.view.size(); ++v)
        digit[v] = map.kept[v].first;
      for (std::size_t i = 0; i < order.size(); ++i)
        digit[order[i]] += at[i];
      Index label = 0;
      for (std::size_t v = 0; v < layout.view.size(); ++v)
        label = label * layout.view[v] + digit[v];
      slot.labels.push_back(label);
    } while (advance(at, kept));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool merges = i > 0 && layout.view_of[order[i - 1]] == layout.view_of[order[i]] &&
                        rank_among_kept[order[i - 1]] + 1 == rank_among_kept[order[i]];
    if (merges)
      slot.shape.back() *= kept[i];
    else
      slot.shape.push_back(kept[i]);
  }
  return slot;
}

/// Positions of `dim` that a map keeps anything of, by marking.
std::set<Index> marked(const RandomLayout& layout, const LabelledSlot& slot, std::size_t dim) {
  Index below = 1;
  for (std::size_t d = dim + 1; d < layout.shape.size(); ++d)
    below *= layout.shape[d];
  std::set<Index> result;
  for (Index label : slot.labels)
    result.insert(label / below % layout.shape[dim]);
  return result;
}

/// torch.chunk by dealing: `size` positions at a time.
Positions chunk(const Positions& positions, Index world, Index coordinate) {
  const auto n = static_cast<Index>(positions.size());
  Index size = 0;
  while (size * world < n)
    ++size;
  Positions result;
  for (Index i = 0; i < n; ++i)
    if (i / size == coordinate)
      result.push_back(positions[static_cast<std::size_t>(i)]);
  return result;
}

/// Global positions held of each dim, in local order.
std::vector<Positions> cut_by_loops(const RandomLayout& layout, const std::vector<LabelledSlot>& slots,
                                    const std::vector<Index>& coordinates) {
  std::vector<std::vector<Positions>> segments; // a dim: its segments
  for (std::size_t d = 0; d < layout.shape.size(); ++d) {
    const bool by_slice = std::any_of(layout.cuts.begin(), layout.cuts.end(),
                                      [&](const RandomCut& cut) { return cut.by_slice && cut.dim == d; });
    // each position's segment: the slot that keeps it, or a run of positions that none keeps
    std::vector<Positions> pieces;
    std::vector<int> tag(static_cast<std::size_t>(layout.shape[d]), by_slice ? -1 : 0);
    if (by_slice)
      for (std::size_t s = 0; s < slots.size(); ++s)
        for (Index position : marked(layout, slots[s], d))
          if (tag[static_cast<std::size_t>(position)] < 0)
            tag[static_cast<std::size_t>(position)] = static_cast<int>(s);
    for (std::size_t p = 0; p < tag.size(); ++p) {
      if (p == 0 || tag[p] != tag[p - 1])
        pieces.emplace_back();
      pieces.back().push_back(static_cast<Index>(p));
    }
    segments.push_back(pieces);
  }
  for (const RandomCut& cut : layout.cuts) {
    auto& pieces = segments[cut.dim];
    if (!cut.by_slice) {
      Positions packed;
      for (const Positions& piece : pieces)
        packed.insert(packed.end(), piece.begin(), piece.end());
      pieces = {packed};
    }
    for (Positions& piece : pieces)
      piece = chunk(piece, layout.mesh[cut.axis], coordinates[cut.axis]);
  }
  std::vector<Positions> held;
  for (const auto& pieces : segments) {
    held.emplace_back();
    for (const Positions& piece : pieces)
      held.back().insert(held.back().end(), piece.begin(), piece.end());
  }
  return held;
}

RandomLayout random_layout(std::mt19937_64& random) {
  auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<std::uint64_t>(n)); };
  RandomLayout layout;
  const std::string axis_names[] = {"a", "b", "c"};
  const Index axes = below(4);
  std::vector<Axis> mesh;
  for (Index a = 0; a < axes; ++a) {
    layout.mesh.push_back(1 + below(4));
    mesh.push_back({axis_names[a], layout.mesh.back()});
  }
  layout.rules.mesh = *Mesh::make(mesh);
  if (axes == 3)
    layout.features.insert("three mesh axes");

  const Index dims = below(20) == 0 ? 0 : 1 + below(4);
  if (dims == 0)
    layout.features.insert("scalar");
  if (dims == 4)
    layout.features.insert("four dims");
  const bool viewed = dims > 0 && below(2) == 0;
  Index budget = 600; // elements: brute force touches each several times
  for (Index d = 0; d < dims; ++d) {
    const Index factors = !viewed ? 1 : d + 1 == dims ? 2 + below(2) : 1 + below(3);
    Index extent = 1;
    for (Index f = 0; f < factors; ++f) {
      const Index n = 1 + below(std::min<Index>(factors == 1 ? 9 : 5, budget));
      budget /= n;
      layout.view.push_back(n);
      layout.view_of.push_back(static_cast<std::size_t>(d));
      extent *= n;
    }
    layout.shape.push_back(extent);
  }
  // A factor of 1 behind a complete dim belongs to the next dim (the rule that layout/map.hpp states).
  for (std::size_t v = 1; v + 1 < layout.view.size(); ++v) {
    const std::size_t dim = layout.view_of[v];
    const bool rest_is_ones = [&] {
      for (std::size_t later = v; later < layout.view.size() && layout.view_of[later] == dim; ++later)
        if (layout.view[later] != 1)
          return false;
      return true;
    }();
    if (rest_is_ones && layout.view_of[v - 1] == dim && dim + 1 < layout.shape.size())
      for (std::size_t later = v; later < layout.view.size() && layout.view_of[later] == dim; ++later)
        layout.view_of[later] = dim + 1;
  }
  if (!viewed && dims > 0 && below(25) == 0) {
    layout.shape[0] = layout.view[0] = 0;
    layout.features.insert("empty parameter");
  }
  const std::size_t n = layout.view.size();
  const bool empty = product(layout.shape) == 0;

  // maps: one viewed dim is dealt to several slots, perhaps one of those again along another dim
  const Index kind = dims == 0 || empty ? 0 : std::min<Index>(below(6), 4); // 0: identity
  auto whole = [&] {
    RandomMap map;
    for (Index extent : layout.view)
      map.kept.emplace_back(0, extent);
    map.dropped.assign(n, false);
    return map;
  };
  auto to_text = [](const Shape& shape) {
    std::string text;
    for (Index extent : shape)
      text += (text.empty() ? "[" : ", ") + std::to_string(extent);
    return text + "]";
  };
  auto item = [](std::pair<Index, Index> kept, Index extent, bool dropped, bool spelled) -> std::string {
    if (dropped)
      return std::to_string(kept.first);
    if (kept.first == 0 && kept.second == extent && !spelled)
      return ":";
    return std::to_string(kept.first) + ":" + std::to_string(kept.second);
  };
  auto write_rule = [&](const RandomMap& map, const std::string& bound, std::size_t bound_dim) {
    MapRule rule;
    rule.parameter = "p";
    rule.slot = map.slot;
    rule.where = "t:1";
    rule.transpose = map.transpose;
    if (viewed)
      rule.view = to_text(layout.view);
    for (std::size_t v = 0; v < n; ++v)
      rule.slice += (v == 0 ? "[" : ", ") +
                    (bound_dim == v ? bound : item(map.kept[v], layout.view[v], map.dropped[v], below(2) == 0));
    rule.slice += "]";
    layout.rules.maps.push_back(rule);
  };
  if (viewed && kind > 0)
    layout.features.insert("view");
  std::size_t dealt = 0;
  if (kind == 1 || kind == 2) { // ranges
    dealt = static_cast<std::size_t>(below(static_cast<Index>(n)));
    Index at = 0;
    int count = 0;
    while (at < layout.view[dealt]) {
      const Index length = 1 + below(layout.view[dealt] - at);
      RandomMap map = whole();
      map.kept[dealt] = {at, at + length};
      at += length;
      if (below(8) == 0 && (at < layout.view[dealt] || count > 0)) {
        layout.padding = true;
        layout.features.insert("padding");
        continue;
      }
      if (length == 1 && below(2) == 0) {
        map.dropped[dealt] = true;
        layout.features.insert("index");
      }
      const auto kept_dims = std::count(map.dropped.begin(), map.dropped.end(), false);
      if (kept_dims >= 2 && below(3) == 0) {
        map.transpose = true;
        layout.features.insert("transpose");
      }
      const auto second = static_cast<std::size_t>(below(static_cast<Index>(n)));
      if (second != dealt && layout.view[second] > 1 && below(3) == 0) {
        const Index middle = 1 + below(layout.view[second] - 1);
        RandomMap rest = map;
        map.kept[second].second = middle;
        rest.kept[second].first = middle;
        rest.slot = "s" + std::to_string(count++);
        layout.maps.push_back(rest);
        layout.features.insert("slices of two dims");
      }
      map.slot = "s" + std::to_string(count++);
      layout.maps.push_back(map);
    }
    layout.features.insert("slice");
    for (const RandomMap& map : layout.maps)
      write_rule(map, "", n);
    if (layout.maps.empty())
      layout.padding = false;
  } else if (kind == 3) { // a bound name, and another dim in two ranges
    dealt = static_cast<std::size_t>(below(static_cast<Index>(n)));
    const auto second = static_cast<std::size_t>(below(static_cast<Index>(n)));
    std::vector<std::pair<Index, Index>> halves{{0, layout.view[second]}};
    if (second != dealt && layout.view[second] > 1) {
      const Index middle = 1 + below(layout.view[second] - 1);
      halves = {{0, middle}, {middle, layout.view[second]}};
    }
    int count = 0;
    for (auto half : halves) {
      RandomMap map = whole();
      if (second != dealt)
        map.kept[second] = half;
      map.dropped[dealt] = true;
      map.transpose = n >= 3 && below(3) == 0;
      if (map.transpose)
        layout.features.insert("transpose");
      const std::string stem = "half" + std::to_string(count++) + ".";
      map.slot = stem + "{e}.w";
      const bool limited = below(2) == 0;
      write_rule(map, limited ? "e=0:" + std::to_string(layout.view[dealt]) : "e", dealt);
      for (Index e = 0; e < layout.view[dealt]; ++e) {
        map.kept[dealt] = {e, e + 1};
        map.slot = stem + std::to_string(e) + ".w";
        layout.maps.push_back(map);
      }
    }
    layout.features.insert("bound name");
  } else if (kind == 4) { // one slot, maybe transposed
    RandomMap map = whole();
    map.slot = "other";
    map.transpose = n >= 2 && below(4) != 0;
    if (map.transpose)
      layout.features.insert("transpose");
    layout.maps.push_back(map);
    write_rule(map, "", n);
  }
  if (layout.maps.empty()) {
    layout.features.insert("identity");
    RandomMap map = whole();
    map.slot = "p";
    layout.maps.push_back(map);
    // the identity does not view
    layout.view = layout.shape;
    layout.view_of.clear();
    layout.maps.front().kept.clear();
    layout.maps.front().dropped.assign(layout.shape.size(), false);
    for (std::size_t d = 0; d < layout.shape.size(); ++d) {
      layout.view_of.push_back(d);
      layout.maps.front().kept.emplace_back(0, layout.shape[d]);
    }
  }
  if (layout.padding || below(3) == 0) {
    ParameterRule rule;
    rule.name = "p";
    rule.shape = layout.shape;
    rule.padding = layout.padding;
    layout.rules.parameters.push_back(rule);
  }

  // cuts: axes in any order
  std::vector<std::size_t> axis_order(layout.mesh.size());
  for (std::size_t a = 0; a < axis_order.size(); ++a)
    axis_order[a] = a;
  std::shuffle(axis_order.begin(), axis_order.end(), random);
  std::vector<LabelledSlot> slots;
  for (const RandomMap& map : layout.maps)
    slots.push_back(slice_by_loops(layout, map));
  std::vector<int> cuts_of(layout.shape.size(), 0);
  std::vector<bool> whole_cut(layout.shape.size(), false);
  PlacementRule placement;
  placement.parameter = "p";
  placement.where = "t:2";
  for (std::size_t axis : axis_order) {
    if (below(4) == 0) {
      if (layout.mesh[axis] > 1)
        layout.features.insert("replicating axis");
      continue;
    }
    RandomCut cut;
    cut.axis = axis;
    const std::size_t dim =
      layout.shape.empty() ? 0 : static_cast<std::size_t>(below(static_cast<Index>(layout.shape.size())));
    cut.dim = dim;
    placement.shard.push_back(axis_names[axis] + ":" + std::to_string(dim));
    if (layout.shape.empty()) // named, but a scalar is never cut
      continue;
    if (!whole_cut[dim] && !empty && below(2) == 0) {
      // each map keeps one interval, and any two intervals are equal or disjoint
      bool fit = true;
      std::vector<std::set<Index>> sets;
      for (const LabelledSlot& slot : slots)
        sets.push_back(marked(layout, slot, dim));
      for (const auto& set : sets) {
        fit = fit && *set.rbegin() - *set.begin() + 1 == static_cast<Index>(set.size());
        for (const auto& other : sets) {
          const bool disjoint = *set.rbegin() < *other.begin() || *other.rbegin() < *set.begin();
          fit = fit && (set == other || disjoint);
        }
      }
      if (fit) {
        cut.by_slice = true;
        placement.shard.back() += " by slice";
        layout.features.insert("by slice");
        if (std::set<std::set<Index>>(sets.begin(), sets.end()).size() > 1)
          layout.features.insert("by slice over several intervals");
      }
    }
    if (!cut.by_slice) {
      whole_cut[dim] = true;
      const bool after = std::any_of(layout.cuts.begin(), layout.cuts.end(),
                                     [&](const RandomCut& c) { return c.dim == dim && c.by_slice; });
      if (after)
        layout.features.insert("whole cut after by slice");
    }
    if (++cuts_of[dim] > 1)
      layout.features.insert("two cuts of one dim");
    layout.cuts.push_back(cut);
  }
  if (std::count_if(cuts_of.begin(), cuts_of.end(), [](int c) { return c > 0; }) > 1)
    layout.features.insert("cuts of several dims");
  layout.rules.placements.push_back(placement);
  return layout;
}

/// Strides of a random memory order with gaps; sometimes empty (row-major).
std::vector<Index> random_strides(const Shape& local, std::mt19937_64& random, std::set<std::string>& features) {
  if (random() % 2 == 0 || local.empty())
    return {};
  std::vector<std::size_t> order(local.size());
  for (std::size_t d = 0; d < order.size(); ++d)
    order[d] = d;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Index> strides(local.size());
  Index next = 1 + static_cast<Index>(random() % 2);
  for (std::size_t d : order) {
    strides[d] = next;
    next *= std::max<Index>(local[d], 1);
    next += static_cast<Index>(random() % 3);
  }
  features.insert("strided memory");
  return strides;
}

using Element = std::pair<std::string, std::vector<Index>>; // slot, coordinate

/// Local offset -> element, as the regions say. Fails the test on a malformed region and where two regions name one
/// offset. (One assertion a region, not an element: there are millions of elements.)
std::map<Index, Element> read_regions(const Declaration& declaration) {
  std::map<Index, Element> result;
  for (const Region& region : declaration.regions) {
    const SlotSpec& slot = declaration.slots.at(region.slot);
    REQUIRE(region.dims.size() == slot.shape.size());
    bool well_formed = true;
    for (std::size_t d = 0; d < region.dims.size(); ++d) {
      Index end = 0;
      for (const Segment& segment : region.dims[d]) {
        well_formed = well_formed && segment.length > 0 && segment.slot >= end;
        end = segment.slot + segment.length;
      }
      well_formed = well_formed && end > 0 && end <= slot.shape[d];
    }
    REQUIRE(well_formed);
    bool distinct = true;
    std::vector<Index> coordinate(region.dims.size());
    auto walk = [&](auto& self, std::size_t d, Index offset) -> void {
      if (d == region.dims.size()) {
        distinct = result.emplace(offset, Element{slot.name, coordinate}).second && distinct;
        return;
      }
      for (const Segment& segment : region.dims[d])
        for (Index i = 0; i < segment.length; ++i) {
          coordinate[d] = segment.slot + i;
          self(self, d + 1, offset + segment.local + i * segment.stride);
        }
    };
    walk(walk, 0, region.base);
    REQUIRE(distinct);
  }
  return result;
}

/// Local offset -> element, by the oracle.
std::map<Index, Element> expected_elements(const RandomLayout& layout, const std::vector<LabelledSlot>& slots,
                                           const std::vector<Positions>& held, const std::vector<Index>& strides) {
  std::vector<Element> by_label(static_cast<std::size_t>(product(layout.shape)));
  for (std::size_t s = 0; s < slots.size(); ++s) {
    std::vector<Index> at(slots[s].shape.size(), 0);
    for (Index label : slots[s].labels) {
      by_label[static_cast<std::size_t>(label)] = {layout.maps[s].slot, at};
      advance(at, slots[s].shape);
    }
  }
  Shape local;
  for (const Positions& positions : held)
    local.push_back(static_cast<Index>(positions.size()));
  std::map<Index, Element> result;
  if (product(local) == 0)
    return result;
  std::vector<Index> at(local.size(), 0);
  do {
    Index label = 0;
    Index offset = 0;
    for (std::size_t d = 0; d < local.size(); ++d) {
      label = label * layout.shape[d] + held[d][static_cast<std::size_t>(at[d])];
      Index below = 1; // row-major where no strides were given
      for (std::size_t later = d + 1; later < local.size(); ++later)
        below *= local[later];
      offset += at[d] * (strides.empty() ? below : strides[d]);
    }
    if (const Element& element = by_label[static_cast<std::size_t>(label)]; !element.first.empty())
      result.emplace(offset, element);
  } while (advance(at, local));
  return result;
}

std::vector<Index> coordinates_of(const RandomLayout& layout, Index rank) {
  std::vector<Index> coordinates;
  Index inner = 1;
  for (Index n : layout.mesh)
    inner *= n;
  for (Index n : layout.mesh) {
    inner /= n;
    coordinates.push_back(rank / inner);
    rank %= inner;
  }
  return coordinates;
}

} // namespace

TEST_CASE("regions of random layouts equal brute force over every element, on both sides") {
  constexpr int layouts = 4000;
  std::map<std::string, int> features;
  auto random = test::generator(11);
  const auto begin = std::chrono::steady_clock::now();
  int open_shapes = 0;
  for (int n = 0; n < layouts; ++n) {
    CAPTURE(test::seed(), n);
    RandomLayout layout = random_layout(random);
    std::vector<LabelledSlot> slots;
    for (const RandomMap& map : layout.maps)
      slots.push_back(slice_by_loops(layout, map));
    const bool plain = std::count(layout.features.begin(), layout.features.end(), "view") == 0;

    INFO("shape " << to_string(layout.shape) << " view " << to_string(layout.view) << " mesh "
                  << to_string(layout.mesh));
    for (const MapRule& rule : layout.rules.maps)
      UNSCOPED_INFO(rule.slot << " " << rule.view << " " << rule.slice << " " << rule.transpose);
    for (const std::string& cut : layout.rules.placements.front().shard)
      UNSCOPED_INFO(cut);

    const auto trainer = Side::compile(layout.rules, Side::Role::trainer);
    INFO((trainer ? "" : trainer.error().message));
    REQUIRE(trainer);
    auto worker = Side::compile(layout.rules, Side::Role::worker);
    REQUIRE(worker);
    std::vector<SlotSpec> catalogue;
    for (std::size_t s = 0; s < slots.size(); ++s)
      catalogue.push_back({layout.maps[s].slot, DType::f32, slots[s].shape});

    for (Index rank = 0; rank < trainer->mesh().size(); ++rank) {
      CAPTURE(rank);
      const std::vector<Index> coordinates = coordinates_of(layout, rank);
      const std::vector<Positions> held = cut_by_loops(layout, slots, coordinates);
      Shape local;
      for (const Positions& positions : held)
        local.push_back(static_cast<Index>(positions.size()));
      if (product(local) == 0 && product(layout.shape) > 0)
        layout.features.insert("empty shard");
      bool owner = true;
      for (std::size_t a = 0; a < coordinates.size(); ++a) {
        const bool cuts =
          std::any_of(layout.cuts.begin(), layout.cuts.end(), [&](const RandomCut& cut) { return cut.axis == a; });
        owner = owner && (cuts || coordinates[a] == 0);
      }
      const std::vector<Index> strides = random_strides(local, random, layout.features);
      const auto expected = expected_elements(layout, slots, held, strides);

      const auto shard = trainer->shard("p", layout.shape, rank);
      REQUIRE(shard);
      CHECK(shard->local_shape == local);
      CHECK(shard->owner == owner);
      for (std::size_t d = 0; d < held.size(); ++d) {
        Positions said;
        for (const Interval& interval : shard->dims[d]) {
          CHECK(interval.local == static_cast<Index>(said.size()));
          for (Index i = 0; i < interval.length; ++i)
            said.push_back(interval.global + i);
        }
        CHECK(said == held[d]);
      }

      const std::vector<LocalTensor> provided{{"p", DType::f32, layout.shape, strides}};
      const auto provides = trainer->declare_trainer(provided, rank);
      INFO((provides ? "" : provides.error().message));
      REQUIRE(provides);
      REQUIRE(provides->slots.size() == catalogue.size());
      for (const SlotSpec& slot : provides->slots)
        CHECK(std::count(catalogue.begin(), catalogue.end(), slot) == 1);
      CHECK(provides->parameters.front().local_shape == local);
      const bool provides_right = read_regions(*provides) == (owner ? expected : std::map<Index, Element>{});
      CHECK(provides_right);
      if (plain) // without views a dim is never split: one region a slot
        CHECK(provides->regions.size() <= slots.size());

      auto implied = worker->worker_parameters(catalogue, rank);
      if (!implied) {
        // views may leave open which dims are one: the message says so, and the shape settles it
        INFO(implied.error().message);
        REQUIRE(implied.error().message.find("leave open") != std::string::npos);
        REQUIRE(!plain);
        ++open_shapes;
        ParameterRule rule;
        rule.name = "p";
        rule.shape = layout.shape;
        layout.rules.parameters = {rule};
        worker = Side::compile(layout.rules, Side::Role::worker);
        REQUIRE(worker);
        implied = worker->worker_parameters(catalogue, rank);
      }
      INFO((implied ? "" : implied.error().message));
      REQUIRE(implied);
      REQUIRE(implied->size() == 1);
      CHECK(implied->front().name == "p");
      CHECK(implied->front().full_shape == layout.shape);
      CHECK(implied->front().local_shape == local);
      const std::vector<LocalTensor> bound{{"p", DType::f32, local, strides}};
      const auto reads = worker->declare_worker(catalogue, bound, rank);
      REQUIRE(reads);
      const bool reads_right = read_regions(*reads) == expected; // replicas read all the same
      CHECK(reads_right);
      std::vector<int> regions_of(slots.size(), 0);
      for (const Region& region : reads->regions)
        if (++regions_of[region.slot] > 1)
          layout.features.insert("several regions a slot");
    }
    for (const std::string& feature : layout.features)
      ++features[feature];
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::cout << layouts << " random layouts in " << seconds << " s; used:";
  for (const auto& [feature, count] : features)
    std::cout << " [" << feature << " " << count << "]";
  std::cout << " (shape left open by views: " << open_shapes << ")\n";
  for (const char* feature : {"three mesh axes",
                              "scalar",
                              "four dims",
                              "empty parameter",
                              "view",
                              "slice",
                              "index",
                              "padding",
                              "transpose",
                              "slices of two dims",
                              "bound name",
                              "identity",
                              "replicating axis",
                              "by slice",
                              "by slice over several intervals",
                              "whole cut after by slice",
                              "two cuts of one dim",
                              "cuts of several dims",
                              "empty shard",
                              "strided memory",
                              "several regions a slot"}) {
    CAPTURE(feature);
    CHECK(features[feature] >= 50);
  }
}
