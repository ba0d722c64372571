// Random plans against brute force: every element of every region is walked one at a time, with nothing but the
// definition of a region, and compared with what the blocks say.
#include "catch.hpp"
#include "layout/plan.hpp"
#include "random.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

using namespace deltawire;
using namespace deltawire::layout;

namespace {

using Random = std::mt19937_64;

Index pick(Random& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}
bool chance(Random& random, double p) {
  return std::bernoulli_distribution(p)(random);
}

/// Calls visit(coordinates) for every element of the product of index lists.
template <class Visit>
void each_product(const std::vector<std::vector<Index>>& lists, const Visit& visit) {
  if (std::any_of(lists.begin(), lists.end(), [](const auto& list) { return list.empty(); }))
    return;
  std::vector<std::size_t> at(lists.size(), 0);
  for (;;) {
    std::vector<Index> coordinates;
    for (std::size_t d = 0; d < lists.size(); ++d)
      coordinates.push_back(lists[d][at[d]]);
    visit(coordinates);
    std::size_t d = lists.size();
    while (d > 0 && ++at[d - 1] == lists[d - 1].size())
      at[--d] = 0;
    if (d == 0)
      return;
  }
}

Index flat_of(const Shape& shape, const std::vector<Index>& coordinates) {
  Index flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d)
    flat = flat * shape[d] + coordinates[d];
  return flat;
}

std::vector<Index> indices_of(const std::vector<Segment>& segments) {
  std::vector<Index> indices;
  for (const Segment& segment : segments)
    for (Index i = 0; i < segment.length; ++i)
      indices.push_back(segment.slot + i);
  return indices;
}

/// Calls visit(slot flat position, local element) for each element of a region, by the definition in region.hpp.
template <class Visit>
void each_element(const Region& region, const Shape& shape, const Visit& visit) {
  std::vector<std::vector<Index>> lists;
  for (const auto& segments : region.dims)
    lists.push_back(indices_of(segments));
  each_product(lists, [&](const std::vector<Index>& coordinates) {
    Index local = region.base;
    for (std::size_t d = 0; d < coordinates.size(); ++d)
      for (const Segment& s : region.dims[d])
        if (coordinates[d] >= s.slot && coordinates[d] < s.slot + s.length)
          local += s.local + (coordinates[d] - s.slot) * s.stride;
    visit(flat_of(shape, coordinates), local);
  });
}

template <class Visit>
void each_element(const Block& block, const Visit& visit) {
  std::vector<std::vector<Index>> lists;
  for (Index extent : block.extents) {
    lists.emplace_back();
    for (Index i = 0; i < extent; ++i)
      lists.back().push_back(i);
  }
  each_product(lists, [&](const std::vector<Index>& x) {
    Index local = block.local_offset;
    Index slot = block.slot_offset;
    for (std::size_t d = 0; d < x.size(); ++d) {
      local += x[d] * block.local_strides[d];
      slot += x[d] * block.slot_strides[d];
    }
    visit(slot, local);
  });
}

/// Lays the product of index lists into fresh memory at the end of a parameter: dims in random order of stride, gaps,
/// backwards now and then, runs in random order, segments cut where they need not be.
Region lay_out(Random& random, const std::vector<std::vector<Index>>& lists, std::uint32_t parameter,
               std::uint32_t slot, Index& size) {
  Region region{parameter, slot, size + pick(random, 0, 2), std::vector<std::vector<Segment>>(lists.size())};
  std::vector<std::size_t> order(lists.size());
  for (std::size_t d = 0; d < order.size(); ++d)
    order[d] = d;
  if (chance(random, 0.4))
    std::shuffle(order.begin(), order.end(), random);
  Index stride = chance(random, 0.2) ? 2 : 1;
  for (std::size_t k = order.size(); k-- > 0;) {
    const std::size_t d = order[k];
    const auto count = static_cast<Index>(lists[d].size());
    // Places of the indices: in order, rotated, or backwards.
    const Index shift = chance(random, 0.2) ? pick(random, 0, std::max<Index>(count - 1, 0)) : 0;
    const bool backwards = chance(random, 0.1);
    const auto place = [&](std::size_t i) {
      const Index at = (static_cast<Index>(i) + shift) % count;
      return (backwards ? count - 1 - at : at) * stride;
    };
    for (std::size_t i = 0; i < lists[d].size(); ++i) {
      auto& segments = region.dims[d];
      const bool joins = !segments.empty() && segments.back().slot + segments.back().length == lists[d][i] &&
                         (segments.back().length == 1 ||
                          place(i) == segments.back().local + segments.back().length * segments.back().stride);
      if (joins && !chance(random, 0.1)) {
        if (segments.back().length == 1)
          segments.back().stride = place(i) - segments.back().local;
        ++segments.back().length;
      } else {
        segments.push_back({lists[d][i], 1, place(i), pick(random, -9, 9)});
      }
    }
    stride *= std::max<Index>(count, 1);
    if (chance(random, 0.2))
      stride += pick(random, 1, 3);
  }
  size = region.base + stride;
  return region;
}

/// A process under construction: parameters are flat buffers that grow.
struct Process {
  Declaration declaration;
  std::vector<Index> sizes;

  std::uint32_t parameter(const std::string& name) {
    for (std::uint32_t p = 0; p < declaration.parameters.size(); ++p)
      if (declaration.parameters[p].name == name)
        return p;
    declaration.parameters.push_back({name, DType::bf16, {}, {}, {}});
    sizes.push_back(0);
    return static_cast<std::uint32_t>(sizes.size() - 1);
  }
  std::uint32_t slot(const SlotSpec& spec) {
    for (std::uint32_t s = 0; s < declaration.slots.size(); ++s)
      if (declaration.slots[s].name == spec.name)
        return s;
    declaration.slots.push_back(spec);
    return static_cast<std::uint32_t>(declaration.slots.size() - 1);
  }
  Declaration finish() {
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      declaration.parameters[p].full_shape = {sizes[p]};
      declaration.parameters[p].local_shape = {sizes[p]};
      declaration.parameters[p].strides = {1};
    }
    return std::move(declaration);
  }
};

std::vector<Index> all_indices(Index extent) {
  std::vector<Index> result;
  for (Index i = 0; i < extent; ++i)
    result.push_back(i);
  return result;
}

/// A random set of indices: all, a range, or any.
std::vector<Index> some_indices(Random& random, Index extent) {
  const Index kind = pick(random, 0, 3);
  if (kind <= 1 || extent == 0)
    return all_indices(extent);
  std::vector<Index> result;
  const Index begin = pick(random, 0, extent - 1);
  const Index end = pick(random, begin + 1, extent);
  for (Index i = 0; i < extent; ++i)
    if (kind == 2 ? i >= begin && i < end : chance(random, 0.5))
      result.push_back(i);
  return result;
}

/// Groups of indices that make up 0..extent: runs or dealt.
std::vector<std::vector<Index>> partition(Random& random, Index extent) {
  const Index groups = pick(random, 1, 3);
  std::vector<std::vector<Index>> result(static_cast<std::size_t>(groups));
  const bool dealt = chance(random, 0.3);
  for (Index i = 0; i < extent; ++i)
    result[static_cast<std::size_t>(dealt ? pick(random, 0, groups - 1) : i * groups / extent)].push_back(i);
  return result;
}

struct Case {
  std::vector<SlotSpec> slots;
  std::vector<Declaration> ranks;
  std::vector<Declaration> workers;
};

Case random_case(Random& random) {
  Case made;
  const Index slots = pick(random, 1, 3);
  for (Index s = 0; s < slots; ++s) {
    Shape shape(static_cast<std::size_t>(pick(random, 0, 3)));
    for (Index& extent : shape)
      extent = chance(random, 0.03) ? 0 : pick(random, 1, 6);
    made.slots.push_back({"slot." + std::to_string(s), DType::bf16, shape});
  }
  std::vector<Process> ranks(static_cast<std::size_t>(pick(random, 1, 4)));
  std::vector<Process> workers(static_cast<std::size_t>(pick(random, 1, 4)));

  for (const SlotSpec& slot : made.slots) {
    ranks[0].slot(slot); // a slot without elements has no owner, but exists
    std::vector<std::vector<std::vector<Index>>> groups;
    for (Index extent : slot.shape)
      groups.push_back(partition(random, extent));
    std::vector<std::vector<Index>> choices;
    for (const auto& dim : groups)
      choices.push_back(all_indices(static_cast<Index>(dim.size())));
    each_product(choices, [&](const std::vector<Index>& choice) {
      std::vector<std::vector<Index>> lists;
      for (std::size_t d = 0; d < choice.size(); ++d)
        lists.push_back(groups[d][static_cast<std::size_t>(choice[d])]);
      Process& rank = ranks[static_cast<std::size_t>(pick(random, 0, static_cast<Index>(ranks.size()) - 1))];
      const std::uint32_t p = rank.parameter("parameter." + std::to_string(pick(random, 0, 3)));
      rank.declaration.regions.push_back(lay_out(random, lists, p, rank.slot(slot), rank.sizes[p]));
    });
    for (Process& worker : workers)
      for (Index times = pick(random, 0, 2); times > 0; --times) {
        std::vector<std::vector<Index>> lists;
        for (Index extent : slot.shape)
          lists.push_back(some_indices(random, extent));
        const std::uint32_t p = worker.parameter("bound." + std::to_string(pick(random, 0, 2)));
        worker.declaration.regions.push_back(lay_out(random, lists, p, worker.slot(slot), worker.sizes[p]));
      }
  }
  for (Process& rank : ranks)
    made.ranks.push_back(rank.finish());
  for (Process& worker : workers)
    made.workers.push_back(worker.finish());
  return made;
}

std::size_t slot_index(const Plan& plan, const std::string& name) {
  for (std::size_t s = 0; s < plan.slots.size(); ++s)
    if (plan.slots[s].name == name)
      return s;
  FAIL("slot " << name << " is not in the catalogue");
  return 0;
}

/// A block element or region element: parameter, slot name, slot position, local element.
using Element = std::tuple<std::uint32_t, std::string, Index, Index>;

std::vector<Element> elements_of(const Declaration& declaration) {
  std::vector<Element> elements;
  for (const Region& region : declaration.regions) {
    const SlotSpec& slot = declaration.slots[region.slot];
    each_element(region, slot.shape,
                 [&](Index flat, Index local) { elements.emplace_back(region.parameter, slot.name, flat, local); });
  }
  std::sort(elements.begin(), elements.end());
  return elements;
}

std::vector<Element> elements_of(const Plan& plan, const std::vector<Block>& blocks) {
  std::vector<Element> elements;
  for (const Block& block : blocks)
    each_element(block, [&](Index flat, Index local) {
      elements.emplace_back(block.parameter, plan.slots[block.slot].name, flat, local);
    });
  std::sort(elements.begin(), elements.end());
  return elements;
}

/// For each element of a slot, by its flat position: the worker regions that contain its index, dim by dim.
std::vector<std::vector<std::vector<std::pair<std::size_t, std::size_t>>>> signatures(const Case& made,
                                                                                      const SlotSpec& slot) {
  std::vector<std::vector<std::vector<std::pair<std::size_t, std::size_t>>>> result;
  std::vector<std::vector<Index>> lists;
  for (Index extent : slot.shape)
    lists.push_back(all_indices(extent));
  each_product(lists, [&](const std::vector<Index>& coordinates) {
    result.emplace_back(coordinates.size());
    for (std::size_t w = 0; w < made.workers.size(); ++w)
      for (std::size_t g = 0; g < made.workers[w].regions.size(); ++g) {
        const Region& region = made.workers[w].regions[g];
        if (made.workers[w].slots[region.slot].name != slot.name)
          continue;
        if (std::any_of(region.dims.begin(), region.dims.end(), [](const auto& dim) { return dim.empty(); }))
          continue; // reads nothing, so it divides nothing
        for (std::size_t d = 0; d < coordinates.size(); ++d)
          for (Index i : indices_of(region.dims[d]))
            if (i == coordinates[d])
              result.back()[d].emplace_back(w, g);
      }
  });
  return result;
}

void check_cells(const Case& made, const Plan& plan) {
  for (const SlotSpec& slot : made.slots) {
    const std::size_t s = slot_index(plan, slot.name);
    const auto signature_of = signatures(made, slot);
    std::vector<std::uint32_t> cell_of(signature_of.size());
    for (const auto& blocks : plan.ranks)
      for (const Block& block : blocks)
        if (block.slot == s)
          each_element(block, [&](Index flat, Index) { cell_of[static_cast<std::size_t>(flat)] = block.cell; });
    std::map<std::uint32_t, std::size_t> first_of_cell;
    std::map<std::vector<std::vector<std::pair<std::size_t, std::size_t>>>, std::uint32_t> cell_of_signature;
    std::map<std::uint32_t, Index> elements;
    for (std::size_t flat = 0; flat < cell_of.size(); ++flat) {
      const auto first = first_of_cell.emplace(cell_of[flat], flat).first;
      REQUIRE(signature_of[first->second] == signature_of[flat]);
      REQUIRE(cell_of_signature.emplace(signature_of[flat], cell_of[flat]).first->second == cell_of[flat]);
      ++elements[cell_of[flat]];
    }
    for (const auto& [cell, count] : elements) {
      REQUIRE(plan.cells.at(cell).slot == s);
      REQUIRE(plan.cells[cell].elements == count);
    }
    REQUIRE(static_cast<std::size_t>(std::count_if(plan.cells.begin(), plan.cells.end(), [&](const Cell& cell) {
              return cell.slot == s;
            })) == elements.size());
  }
}

void check_numbering(const Case& made, const Plan& plan, std::uint64_t window_bytes) {
  std::vector<std::string> walk; // parameters by first appearance
  for (const Declaration& rank : made.ranks)
    for (const ParameterSpec& parameter : rank.parameters)
      if (std::find(walk.begin(), walk.end(), parameter.name) == walk.end())
        walk.push_back(parameter.name);
  std::map<std::uint32_t, std::tuple<std::size_t, std::size_t, Index>> keys;
  std::map<std::uint32_t, std::uint32_t> window_of;
  std::vector<std::uint64_t> bytes(walk.size(), 0);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    REQUIRE(std::is_sorted(plan.ranks[r].begin(), plan.ranks[r].end(),
                           [](const Block& a, const Block& b) { return a.id < b.id; }));
    for (const Block& block : plan.ranks[r]) {
      const std::string& name = made.ranks[r].parameters.at(block.parameter).name;
      const auto order = static_cast<std::size_t>(std::find(walk.begin(), walk.end(), name) - walk.begin());
      REQUIRE(keys.emplace(block.id, std::tuple(order, r, block.local_offset)).second);
      window_of[block.id] = block.window;
      bytes[order] += static_cast<std::uint64_t>(element_count(block)) * 2;
      REQUIRE(!block.extents.empty());
      REQUIRE(block.dtype == DType::bf16);
      for (std::size_t d = 1; d < block.extents.size(); ++d)
        REQUIRE(std::abs(block.local_strides[d - 1]) > std::abs(block.local_strides[d]));
    }
  }
  REQUIRE(keys.size() == plan.blocks);
  std::uint32_t window = 0;
  std::uint64_t filled = 0;
  std::size_t last = walk.size();
  std::uint32_t id = 0;
  for (const auto& [key_id, key] : keys) {
    REQUIRE(key_id == id);
    if (id > 0)
      REQUIRE(keys[id - 1] <= key);
    const std::size_t order = std::get<0>(key);
    if (order != last) {
      if (id > 0 && filled + bytes[order] > window_bytes) {
        ++window;
        filled = 0;
      }
      filled += bytes[order];
      last = order;
    }
    REQUIRE(window_of[id] == window);
    ++id;
  }
  REQUIRE(plan.windows == (keys.empty() ? 0 : window + 1));
}

void check_worker_views(const Plan& plan) {
  std::map<std::uint32_t, const Block*> owners;
  for (const auto& blocks : plan.ranks)
    for (const Block& block : blocks)
      owners[block.id] = &block;
  for (const auto& blocks : plan.workers)
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block expected = *owners.at(blocks[i].id);
      expected.parameter = blocks[i].parameter;
      expected.local_offset = blocks[i].local_offset;
      expected.local_strides = blocks[i].local_strides;
      REQUIRE(blocks[i] == expected);
      REQUIRE(blocks[i].local_strides.size() == blocks[i].extents.size());
      if (i > 0)
        REQUIRE(std::pair(blocks[i - 1].id, blocks[i - 1].parameter) <= std::pair(blocks[i].id, blocks[i].parameter));
    }
}

} // namespace

TEST_CASE("a plan maps every element of every region to where the region says, once", "[layout][plan]") {
  Random random = test::generator(101);
  const std::vector<std::string> unused = {"*"};
  for (int round = 0; round < 3000; ++round) {
    const Case made = random_case(random);
    const std::uint64_t window_bytes =
      chance(random, 0.3) ? UINT64_MAX : static_cast<std::uint64_t>(pick(random, 0, 200));
    CAPTURE(test::seed(), round, window_bytes);
    auto compiled = compile_plan(made.ranks, made.workers, unused, window_bytes);
    if (!compiled)
      FAIL(compiled.error().message);
    const Plan& plan = *compiled;
    REQUIRE(plan.slots == *catalogue(made.ranks));
    for (std::size_t r = 0; r < made.ranks.size(); ++r)
      REQUIRE(elements_of(plan, plan.ranks[r]) == elements_of(made.ranks[r]));
    for (std::size_t w = 0; w < made.workers.size(); ++w)
      REQUIRE(elements_of(plan, plan.workers[w]) == elements_of(made.workers[w]));
    check_cells(made, plan);
    check_numbering(made, plan, window_bytes);
    check_worker_views(plan);
  }
}

TEST_CASE("a slot that is read in part is refused with the first element that nobody reads", "[layout][plan]") {
  Random random = test::generator(102);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    const Case made = random_case(random);
    CAPTURE(test::seed(), round);
    std::set<std::pair<std::string, Index>> read;
    for (const Declaration& worker : made.workers)
      for (const Element& element : elements_of(worker))
        read.emplace(std::get<1>(element), std::get<2>(element));
    std::vector<std::string> counts; // "slot "x" ... (n elements in all)"
    auto compiled = compile_plan(made.ranks, made.workers, {}, UINT64_MAX);
    const std::string message = compiled ? "" : compiled.error().message;
    bool whole = true;
    for (const SlotSpec& slot : made.slots) {
      const auto all = static_cast<std::size_t>(*element_count(slot.shape));
      const auto have = static_cast<std::size_t>(
        std::count_if(read.begin(), read.end(), [&](const auto& element) { return element.first == slot.name; }));
      whole = whole && all == have;
      const auto line = message.find("slot \"" + slot.name + "\"");
      REQUIRE((line == std::string::npos) == (all == have));
      if (all != have)
        CHECK(message.find(fmt::format("({} elements in all)", all - have), line) != std::string::npos);
    }
    REQUIRE(compiled.has_value() == whole);
    if (!compiled)
      REQUIRE(compiled.error().code == Code::disagreement);
    refused += whole ? 0 : 1;
  }
  REQUIRE(refused > 100);
  REQUIRE(refused < 1000);
}

TEST_CASE("a planted hole or overlap of the owners is refused", "[layout][plan]") {
  Random random = test::generator(103);
  const std::vector<std::string> unused = {"*"};
  int planted = 0;
  for (int round = 0; round < 1000; ++round) {
    Case made = random_case(random);
    Declaration& rank =
      made.ranks[static_cast<std::size_t>(pick(random, 0, static_cast<Index>(made.ranks.size()) - 1))];
    if (rank.regions.empty())
      continue;
    const auto at = static_cast<std::size_t>(pick(random, 0, static_cast<Index>(rank.regions.size()) - 1));
    const SlotSpec slot = rank.slots[rank.regions[at].slot];
    std::size_t elements = 0;
    each_element(rank.regions[at], slot.shape, [&](Index, Index) { ++elements; });
    if (elements == 0)
      continue;
    const bool hole = chance(random, 0.5);
    if (hole)
      rank.regions.erase(rank.regions.begin() + static_cast<std::ptrdiff_t>(at));
    else
      rank.regions.push_back(Region(rank.regions[at]));
    ++planted;
    CAPTURE(test::seed(), round, hole);
    auto compiled = compile_plan(made.ranks, made.workers, unused, UINT64_MAX);
    REQUIRE(!compiled);
    CHECK(compiled.error().code == Code::disagreement);
    CHECK(compiled.error().message.find("slot \"" + slot.name + "\"") == 0);
    CHECK(compiled.error().message.find(hole ? "no rank provides [" : "is provided 2 times") != std::string::npos);
    CHECK(compiled.error().message.find(fmt::format("({} elements in all)", elements)) != std::string::npos);
    CHECK(std::count(compiled.error().message.begin(), compiled.error().message.end(), '\n') == 0);
  }
  REQUIRE(planted > 500);
}
