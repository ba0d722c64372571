// Export rules: blocks that the embedding program lists. Random packings of random boxes against explicit coordinates,
// what one rank can see to be wrong, and what only all ranks together can.
#include "catch.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include <algorithm>
#include <map>

using namespace deltawire;
using namespace deltawire::layout;
using test::contains;

namespace {

using Random = std::mt19937_64;

Index pick(Random& random, Index low, Index high) {
  return std::uniform_int_distribution<Index>(low, high)(random);
}

Side trainer(Index ranks, std::vector<ParameterRule> parameters = {}) {
  SideRules rules;
  auto mesh = Mesh::make({{"r", ranks}});
  REQUIRE(mesh);
  rules.mesh = *mesh;
  rules.parameters = std::move(parameters);
  auto side = Side::compile(std::move(rules), Side::Role::trainer);
  if (!side)
    FAIL(side.error().message);
  return *side;
}

LocalTensor exported(const std::string& name, Index elements, std::vector<ExportedSlot> slots) {
  LocalTensor tensor{name, DType::f32, {elements}, {}};
  tensor.exported = std::move(slots);
  return tensor;
}

/// Where a region has each slot element, by the definition in region.hpp.
void add_elements(const Region& region, const Shape& shape, std::map<std::pair<std::uint32_t, Index>, Index>& found) {
  std::vector<std::pair<Index, Index>> elements{{0, region.base}}; // flat, local
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::pair<Index, Index>> longer;
    for (const auto& [flat, local] : elements)
      for (const Segment& segment : region.dims[d])
        for (Index i = 0; i < segment.length; ++i)
          longer.emplace_back(flat * shape[d] + segment.slot + i, local + segment.local + i * segment.stride);
    elements = std::move(longer);
  }
  for (const auto& [flat, local] : elements)
    REQUIRE(found.emplace(std::pair{region.slot, flat}, local).second);
}

/// Boxes that tile a slot: every dim is cut into ranges, or dealt to blocks that step.
std::vector<ExportedBlock> random_boxes(Random& random, const Shape& shape) {
  std::vector<ExportedBlock> boxes(1);
  for (const Index extent : shape) {
    struct Range {
      Index begin, extent, step;
    };
    std::vector<Range> ranges;
    if (pick(random, 0, 2) == 0) {
      const Index step = pick(random, 1, 3);
      for (Index begin = 0; begin < std::min(step, extent); ++begin)
        ranges.push_back({begin, (extent - begin + step - 1) / step, step});
    } else {
      for (Index begin = 0; begin < extent;) {
        const Index length = pick(random, 1, extent - begin);
        ranges.push_back({begin, length, 1});
        begin += length;
      }
    }
    std::vector<ExportedBlock> longer;
    for (const ExportedBlock& box : boxes)
      for (const Range& range : ranges) {
        longer.push_back(box);
        longer.back().begin.push_back(range.begin);
        longer.back().extents.push_back(range.extent);
        longer.back().steps.push_back(range.step);
      }
    boxes = std::move(longer);
  }
  return boxes;
}

/// Packs a box densely at `offset`, dims in a random order. Returns its elements.
Index pack(Random& random, ExportedBlock& box, Index offset) {
  std::vector<std::size_t> order(box.extents.size());
  for (std::size_t d = 0; d < order.size(); ++d)
    order[d] = d;
  std::shuffle(order.begin(), order.end(), random);
  box.local_offset = offset;
  box.local_strides.resize(box.extents.size());
  Index stride = 1;
  for (const std::size_t d : order) {
    box.local_strides[d] = stride;
    stride *= box.extents[d];
  }
  return stride;
}

struct Packing {
  std::vector<std::vector<ExportedSlot>> ranks; ///< of each
  std::vector<Index> elements;                  ///< of each rank's memory
};

Packing random_packing(Random& random) {
  Packing packing;
  packing.ranks.resize(static_cast<std::size_t>(pick(random, 1, 3)));
  packing.elements.resize(packing.ranks.size(), 0);
  struct Piece {
    std::size_t slot, rank;
    ExportedBlock box;
  };
  std::vector<Piece> pieces;
  for (Index s = pick(random, 1, 3); s > 0; --s) {
    Shape shape(static_cast<std::size_t>(pick(random, 0, 3)));
    for (Index& extent : shape)
      extent = pick(random, 1, 6);
    for (auto& slots : packing.ranks)
      slots.push_back({"slot" + std::to_string(s), shape, {}});
    for (ExportedBlock& box : random_boxes(random, shape))
      pieces.push_back({packing.ranks[0].size() - 1,
                        static_cast<std::size_t>(pick(random, 0, static_cast<Index>(packing.ranks.size()) - 1)),
                        std::move(box)});
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  for (Piece& piece : pieces) {
    packing.elements[piece.rank] += pack(random, piece.box, packing.elements[piece.rank]);
    packing.ranks[piece.rank][piece.slot].blocks.push_back(std::move(piece.box));
  }
  return packing;
}

Result<std::vector<Declaration>> declare(const Packing& packing) {
  const Side side = trainer(static_cast<Index>(packing.ranks.size()));
  std::vector<Declaration> ranks;
  for (std::size_t r = 0; r < packing.ranks.size(); ++r) {
    const std::vector<LocalTensor> tensors{exported("odd", packing.elements[r], packing.ranks[r])};
    auto declared = side.declare_trainer(tensors, static_cast<Index>(r));
    if (!declared)
      return tl::make_unexpected(declared.error());
    ranks.push_back(std::move(*declared));
  }
  return ranks;
}

/// The plan for one worker that holds every slot.
Result<Plan> plan_of(const std::vector<Declaration>& ranks) {
  auto slots = catalogue(ranks);
  if (!slots)
    return tl::make_unexpected(slots.error());
  auto reader = Side::compile({}, Side::Role::worker);
  REQUIRE(reader);
  std::vector<LocalTensor> bound;
  for (const SlotSpec& slot : *slots)
    bound.push_back({slot.name, slot.dtype, slot.shape, {}});
  auto worker = reader->declare_worker(*slots, bound, 0);
  if (!worker)
    return tl::make_unexpected(worker.error());
  return compile_plan(ranks, std::vector<Declaration>{*worker}, {}, 1 << 20);
}

/// What is refused, and where: by a rank or by the plan.
std::string refusal(const Packing& packing) {
  const auto ranks = declare(packing);
  if (!ranks)
    return ranks.error().message;
  const auto plan = plan_of(*ranks);
  return plan ? "" : plan.error().message;
}

/// 4 x 4 tiles of one slot [8, 8] behind each other, every other row of tiles from right to left.
Packing snake() {
  Packing packing;
  packing.elements = {32, 32};
  for (Index rank = 0; rank < 2; ++rank) {
    ExportedSlot slot{"w", {8, 8}, {}};
    for (Index tile = 0; tile < 2; ++tile)
      slot.blocks.push_back({{4 * rank, 4 * (rank == 1 ? 1 - tile : tile)}, {4, 4}, {4, 1}, 16 * tile, {}});
    packing.ranks.push_back({slot});
  }
  return packing;
}

} // namespace

TEST_CASE("exported blocks lie where they say, and a plan takes them", "[layout][exported]") {
  Random random = test::generator(501);
  int stepped = 0;
  int scalars = 0;
  for (int round = 0; round < 1500; ++round) {
    const Packing packing = random_packing(random);
    CAPTURE(test::seed(), round);
    const auto ranks = declare(packing);
    if (!ranks)
      FAIL(ranks.error().message);
    for (std::size_t r = 0; r < packing.ranks.size(); ++r) {
      std::map<std::pair<std::uint32_t, Index>, Index> found;
      for (const Region& region : (*ranks)[r].regions)
        add_elements(region, (*ranks)[r].slots[region.slot].shape, found);
      REQUIRE(static_cast<Index>(found.size()) == packing.elements[r]);
      for (std::uint32_t s = 0; s < packing.ranks[r].size(); ++s) {
        const ExportedSlot& slot = packing.ranks[r][s];
        REQUIRE((*ranks)[r].slots[s] == SlotSpec{slot.name, DType::f32, slot.shape});
        scalars += slot.shape.empty() ? 1 : 0;
        for (const ExportedBlock& block : slot.blocks) {
          stepped += std::any_of(block.steps.begin(), block.steps.end(), [](Index step) { return step > 1; }) ? 1 : 0;
          std::vector<Index> x(slot.shape.size(), 0);
          for (bool more = true; more;) {
            Index flat = 0;
            Index local = block.local_offset;
            for (std::size_t d = 0; d < x.size(); ++d) {
              flat = flat * slot.shape[d] + block.begin[d] + x[d] * block.steps[d];
              local += x[d] * block.local_strides[d];
            }
            REQUIRE(found.at({s, flat}) == local);
            more = false;
            for (std::size_t d = x.size(); !more && d-- > 0;) {
              more = ++x[d] < block.extents[d];
              if (!more)
                x[d] = 0;
            }
          }
        }
      }
    }
    const auto plan = plan_of(*ranks);
    if (!plan)
      FAIL(plan.error().message);
  }
  CHECK(stepped > 100);
  CHECK(scalars > 100);
}

TEST_CASE("any number of a rule that is wrong is found, by the rank or by all of them", "[layout][exported]") {
  Random random = test::generator(502);
  std::map<int, int> planted;
  for (int round = 0; round < 3000; ++round) {
    Packing packing = random_packing(random);
    CAPTURE(test::seed(), round);
    auto& slots =
      packing.ranks[static_cast<std::size_t>(pick(random, 0, static_cast<Index>(packing.ranks.size()) - 1))];
    ExportedSlot& slot = slots[static_cast<std::size_t>(pick(random, 0, static_cast<Index>(slots.size()) - 1))];
    if (slot.blocks.empty())
      continue;
    const auto b = static_cast<std::size_t>(pick(random, 0, static_cast<Index>(slot.blocks.size()) - 1));
    ExportedBlock& block = slot.blocks[b];
    const auto d =
      slot.shape.empty() ? 0 : static_cast<std::size_t>(pick(random, 0, static_cast<Index>(slot.shape.size()) - 1));
    const int fault = static_cast<int>(pick(random, 0, 7));
    if (fault >= 4 && slot.shape.empty())
      continue;
    switch (fault) {
    case 0:
      block.local_offset += pick(random, 0, 1) == 0 ? 1 : -1;
      break;
    case 1:
      block.local_offset = pick(random, 0, 1) == 0 ? std::numeric_limits<Index>::max() : -5;
      break;
    case 2:
      slot.blocks.erase(slot.blocks.begin() + static_cast<std::ptrdiff_t>(b));
      break;
    case 3:
      slot.blocks.push_back(block);
      break;
    case 4:
      block.begin[d] += pick(random, 0, 1) == 0 ? 1 : -1;
      break;
    case 5:
      block.extents[d] += pick(random, 0, 1) == 0 ? 1 : -1;
      break;
    case 6:
      block.steps[d] = block.extents[d] == 1 ? 0 : block.steps[d] + 1;
      break;
    case 7:
      block.local_strides.pop_back();
      break;
    }
    ++planted[fault];
    CAPTURE(fault);
    const std::string message = refusal(packing);
    REQUIRE_THAT(message, contains("odd") || contains(slot.name));
  }
  for (int fault = 0; fault < 8; ++fault) {
    CAPTURE(fault);
    CHECK(planted[fault] > 50);
  }
}

TEST_CASE("refusals of a rule name rank, parameter, slot, block and range, all at once", "[layout][exported]") {
  CHECK(refusal(snake()) == "");

  Packing packing = snake();
  packing.ranks[1][0].blocks[0].begin = {4, 5};
  packing.ranks[1][0].blocks[1].local_offset = 17;
  CHECK(
    refusal(packing) ==
    "rank 1: parameter 'odd', exported by rule: block 0 of slot 'w' [8, 8]: [4:8, 5:9] leaves the slot in dim 1\n"
    "rank 1: parameter 'odd', exported by rule: block 1 of slot 'w' [8, 8]: [4:8, 0:4] lies at local elements 17 to "
    "32, the shard has 32");

  packing = snake();
  packing.ranks[0][0].blocks[1].local_offset = 12;
  CHECK(
    refusal(packing) ==
    "rank 0: parameter 'odd', exported by rule: block 1 of slot 'w' [8, 8]: [0:4, 4:8] takes local element 12, which "
    "a block before it or this one has taken\n"
    "rank 0: parameter 'odd', exported by rule: 4 of 32 local elements are in no block, the first are 28:32; add "
    "them, or a [[trainer.parameter]] with padding = true");

  packing = snake();
  packing.ranks[0][0].blocks[0].local_strides = {4, 0};
  packing.ranks[0][0].blocks[1].steps = {1};
  CHECK_THAT(refusal(packing), contains("dim 1 has extent 4, step 1 and local stride 0") &&
                                 contains("2 begins, 2 extents, 2 local strides and 1 steps"));

  // One rank cannot see that the other one has the same tile: that the two have all of it, all ranks see.
  packing = snake();
  packing.ranks[1][0].blocks[0].begin = {0, 4};
  const std::string message = refusal(packing);
  CHECK_THAT(message, contains("slot \"w\" [8, 8]: no rank provides [4:8, 4:8] (16 elements in all)") &&
                        contains("slot \"w\" [8, 8]: [0:4, 4:8] is provided 2 times (16 elements in all): by rank 0 "
                                 "(parameter \"odd\"), rank 1 (parameter \"odd\")"));
}

TEST_CASE("exported parameters stand beside mapped ones, with padding where it is declared", "[layout][exported]") {
  const Side side = trainer(1, {{"odd", std::nullopt, true, "t.toml:3"}});
  std::vector<LocalTensor> tensors{exported("odd", 6, {{"w", {4}, {{{0}, {4}, {1}, 1, {}}}}}),
                                   {"plain", DType::bf16, {3}, {}}};
  const auto declared = side.declare_trainer(tensors, 0);
  if (!declared)
    FAIL(declared.error().message);
  CHECK(declared->slots == std::vector<SlotSpec>{{"w", DType::f32, {4}}, {"plain", DType::bf16, {3}}});
  CHECK(plan_of({*declared}));

  // A slot has one shape and one dtype, whoever gives it; and what is wrong with others is told too.
  tensors.push_back({"w", DType::bf16, {4}, {}});
  tensors.push_back({"plain", DType::bf16, {3}, {}});
  const auto refused = side.declare_trainer(tensors, 0);
  REQUIRE(!refused);
  CHECK_THAT(refused.error().message, contains("slot 'w' has two sources: parameter 'odd' gives float32 [4], parameter "
                                               "'w' gives bfloat16 [4]") &&
                                        contains("tensor 'plain' is added twice"));

  tensors = {exported("odd", 4, {{"w", {4}, {{{0}, {4}, {1}, 0, {}}}}})};
  tensors[0].strides = {2};
  const auto strided = side.declare_trainer(tensors, 0);
  REQUIRE(!strided);
  CHECK_THAT(strided.error().message, contains("parameter 'odd', exported by rule: strides and flat intervals"));
}
