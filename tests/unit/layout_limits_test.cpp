// Maps whose numbers each fit and whose products or ranges do not: refused or right, and never an endless count.
#include "catch.hpp"
#include "layout/map.hpp"
#include "layout/plan.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include <algorithm>
#include <numeric>

using namespace deltawire;
using namespace deltawire::layout;

namespace {

Map compiled(const MapRule& rule, Direction direction, const Mesh& mesh = {}) {
  auto map = Map::compile(rule, direction, mesh);
  REQUIRE(map);
  return *map;
}

} // namespace

TEST_CASE("the step of a slice that keeps one position does not matter, however large") {
  const Map map = compiled({.parameter = "a",
                            .slot = "b",
                            .view = "[(2, 3000000)]",
                            .slice = "[1:2:999999999999999999, 0:3]",
                            .where = "t.toml:1"},
                           Direction::from_parameter);
  const Shape shape{6'000'000};
  const auto uses = uses_for_parameter(map, "a", shape, {}, 0);
  REQUIRE(uses);
  REQUIRE(uses->size() == 1);
  const auto applied = apply(uses->front(), shape, {3});
  REQUIRE(applied);
  CHECK(applied->kept == std::vector<std::vector<Span>>{{{3'000'000, 3'000'003}}});
}

TEST_CASE("a slice of more elements than there are numbers tells no shape") {
  const Map map = compiled({.parameter = "a",
                            .slot = "b",
                            .view = "[(2, 2)]",
                            .slice = "[0:999999999999999999, 0:999999999999999999]",
                            .where = "t.toml:1"},
                           Direction::from_slot);
  const auto uses = uses_for_slot(map, "b", {4}, {}, 0);
  REQUIRE(uses);
  REQUIRE(uses->size() == 1);
  CHECK(!parameter_shapes(uses->front(), {4}));
}

TEST_CASE("a shape that a slice's largest number would make uncountable is not told") {
  const Map map = compiled({.parameter = "a",
                            .slot = "b",
                            .view = "[(:, 2000000)]",
                            .slice = "[e=999999999999999998:999999999999999999, :]",
                            .where = "t.toml:1"},
                           Direction::from_slot);
  const auto uses = uses_for_slot(map, "b", {2'000'000}, {}, 0);
  REQUIRE(uses);
  REQUIRE(uses->size() == 1);
  CHECK(!parameter_shapes(uses->front(), {2'000'000}));
}

TEST_CASE("a sum that passes the largest number on another rank is refused on this one") {
  const auto mesh = Mesh::make({{"pp", 1'048'576}});
  REQUIRE(mesh);
  const MapRule rule{
    .parameter = "a", .slot = "b", .view = "", .slice = "", .where = "t.toml:1", .slot_slice = "[9000000000000*pp, :]"};
  const Map map = compiled(rule, Direction::from_parameter, *mesh);
  const auto uses = uses_for_parameter(map, "a", {2}, *mesh, 0);
  REQUIRE(!uses);
  CHECK(uses.error().code == Code::limit_exceeded);
  CHECK_THAT(uses.error().message, test::contains("t.toml:1: '9000000000000*pp' passes 2^62"));
}

TEST_CASE("a sum's largest value counts every axis where it adds most") {
  const auto mesh = Mesh::make({{"pp", 4}, {"ep", 3}});
  REQUIRE(mesh);
  const MapRule rule{
    .parameter = "a", .slot = "b", .view = "", .slice = "", .where = "t.toml:1", .slot_slice = "[9 + 5*pp - 2*ep, :]"};
  const Map map = compiled(rule, Direction::from_parameter, *mesh);
  for (Index rank = 0; rank < mesh->size(); ++rank) {
    const auto uses = uses_for_parameter(map, "a", {2}, *mesh, rank);
    REQUIRE(uses);
    REQUIRE(uses->size() == 1);
    CHECK(uses->front().slot_bound == std::vector<Index>{9 + 5 * (rank / 3) - 2 * (rank % 3), 0});
    CHECK(uses->front().slot_most == std::vector<Index>{24, 0});
  }
}

TEST_CASE("counting along a dim of a slot ends, however long its owner says that it is") {
  const Map map = compiled({.parameter = "w{e}",
                            .slot = "w",
                            .view = "",
                            .slice = "",
                            .where = "t.toml:1",
                            .slot_slice = "[2000000*e + 1, :]"},
                           Direction::from_slot);
  const auto uses = uses_for_slot(map, "w", {999'999'999'999'999'999, 1}, {}, 0);
  REQUIRE(!uses);
  CHECK(uses.error().code == Code::limit_exceeded);
  CHECK_THAT(uses.error().message, test::contains("t.toml:1: '2000000*e + 1' counts along a dim of slot 'w'"));
}

TEST_CASE("a declaration that would make a block of nearly every element is refused before they are made") {
  CAPTURE(test::seed());
  auto random = test::generator(21);
  constexpr Index extent = 400;
  const Shape shape{extent, extent, extent};
  const std::vector<Index> strides{extent * extent, extent, 1};
  const ParameterSpec parameter{"p", DType::u8, shape, shape, strides};
  const SlotSpec slot{"w", DType::u8, shape};
  // Rows of every dim in any order: about every other one goes on from the one before.
  Region scattered{0, 0, 0, {}};
  Region whole{0, 0, 0, {}};
  for (const Index stride : strides) {
    std::vector<Index> order(extent);
    std::iota(order.begin(), order.end(), Index{0});
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Segment> segments;
    for (Index i = 0; i < extent; ++i)
      segments.push_back({i, 1, order[static_cast<std::size_t>(i)] * stride, stride});
    scattered.dims.push_back(std::move(segments));
    whole.dims.push_back({{0, extent, 0, stride}});
  }
  const std::vector<Declaration> ranks{{{parameter}, {slot}, {scattered}}};
  const std::vector<Declaration> workers{{{parameter}, {slot}, {whole}}};
  const auto plan = compile_plan(ranks, workers, {}, 1 << 20);
  REQUIRE(!plan);
  CHECK(plan.error().code == Code::limit_exceeded);
  CHECK_THAT(plan.error().message, test::contains("slot \"w\" [400, 400, 400]: rank 0 provides it in parts"));
}
