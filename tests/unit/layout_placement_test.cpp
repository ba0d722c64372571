// The rules of placements, one by one: what each rank holds, in numbers written out by hand, and the message of each
// refusal.

#include "catch.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "refusal.hpp"

#include <algorithm>

using namespace deltawire;
using namespace deltawire::layout;
using test::check_refused;

namespace {

using Positions = std::vector<Index>;

SideRules rules_on(std::vector<Axis> axes, std::vector<std::string> shard, CutOptions options = {}) {
  SideRules rules;
  rules.mesh = *Mesh::make(std::move(axes));
  rules.placements = {{"p", std::move(shard), "f.toml:9", std::move(options)}};
  return rules;
}

MapRule slice_rule(std::string slot, std::string slice) {
  return {"p", std::move(slot), "", std::move(slice), false, "f.toml:7"};
}

MapRule slice_rule(std::string slot, std::string slice, std::vector<std::string> shard) {
  MapRule rule = slice_rule(std::move(slot), std::move(slice));
  rule.where = "f.toml:8";
  rule.shard = std::move(shard);
  return rule;
}

Side compiled(const SideRules& rules, Side::Role role = Side::Role::trainer) {
  auto side = Side::compile(rules, role);
  INFO((side ? "" : side.error().message));
  REQUIRE(side);
  return *side;
}

Shard shard_of(const SideRules& rules, const Shape& shape, Index rank) {
  auto shard = compiled(rules).shard("p", shape, rank);
  INFO((shard ? "" : shard.error().message));
  REQUIRE(shard);
  return *shard;
}

/// Global positions of a dim that a rank holds, in local order.
Positions held(const SideRules& rules, const Shape& shape, Index rank, std::size_t dim = 0) {
  Positions result;
  const Shard shard = shard_of(rules, shape, rank);
  for (const Interval& interval : shard.dims.at(dim)) {
    CHECK(interval.local == static_cast<Index>(result.size()));
    for (Index i = 0; i < interval.length; ++i)
      result.push_back(interval.global + i * interval.step);
  }
  return result;
}

void check_not_compiled(const SideRules& rules, std::initializer_list<const char*> texts) {
  check_refused(Side::compile(rules, Side::Role::trainer), Code::invalid_topology, texts);
}

void check_no_shard(const SideRules& rules, const Shape& shape, std::initializer_list<const char*> texts,
                    Index rank = 0) {
  check_refused(compiled(rules).shard("p", shape, rank), Code::invalid_topology, texts);
}

Declaration declared(const SideRules& rules, const LocalTensor& tensor, Index rank) {
  auto declaration = compiled(rules).declare_trainer(std::span(&tensor, 1), rank);
  INFO((declaration ? "" : declaration.error().message));
  REQUIRE(declaration);
  return *declaration;
}

/// The blocks of a plan where one worker holds the slots as they are.
Plan plan_of(const SideRules& rules, const LocalTensor& tensor) {
  std::vector<Declaration> ranks;
  for (Index rank = 0; rank < rules.mesh.size(); ++rank)
    ranks.push_back(declared(rules, tensor, rank));
  const auto slots = catalogue(ranks);
  REQUIRE(slots);
  std::vector<LocalTensor> bound;
  for (const SlotSpec& slot : *slots)
    bound.push_back({slot.name, slot.dtype, slot.shape, {}});
  auto worker = compiled({}, Side::Role::worker).declare_worker(*slots, bound, 0);
  REQUIRE(worker);
  auto plan = compile_plan(ranks, std::span(&*worker, 1), {}, 1 << 20);
  INFO((plan ? "" : plan.error().message));
  REQUIRE(plan);
  return *plan;
}

} // namespace

TEST_CASE("a cyclic cut deals positions round-robin, and later cuts take the dealt ones") {
  const SideRules rules = rules_on({{"ep", 3}}, {"ep:0 cyclic"});
  CHECK(held(rules, {8, 2}, 0) == Positions{0, 3, 6});
  CHECK(held(rules, {8, 2}, 1) == Positions{1, 4, 7});
  CHECK(held(rules, {8, 2}, 2) == Positions{2, 5});
  CHECK(held(rules, {2, 2}, 2).empty());
  CHECK(shard_of(rules, {8, 2}, 1).dims[0].size() == 1); // in closed form
  const SideRules both = rules_on({{"ep", 2}, {"fsdp", 2}}, {"ep:0 cyclic", "fsdp:0"});
  CHECK(held(both, {10}, 2) == Positions{1, 3, 5}); // ep 1, fsdp 0
  CHECK(held(both, {10}, 3) == Positions{7, 9});
  const SideRules twice = rules_on({{"a", 2}, {"b", 2}}, {"a:0 cyclic", "b:0 cyclic"});
  CHECK(held(twice, {9}, 2) == Positions{1, 5}); // odd, then every other of these
  CHECK(held(twice, {9}, 3) == Positions{3, 7});
  const SideRules after = rules_on({{"a", 2}, {"b", 2}}, {"a:0", "b:0 cyclic"});
  CHECK(held(after, {7}, 2) == Positions{4, 6});
  CHECK(held(after, {7}, 3) == Positions{5});
  check_refused(compiled(rules_on({{"a", 2}}, {"a:0 cyclic"})).shard("p", {Index{1} << 40}, 0), Code::limit_exceeded,
                {"cyclic", "dim 0", "'p'"});
}

TEST_CASE("declared sizes are the pieces, and must sum to what is cut") {
  const SideRules rules = rules_on({{"tp", 4}}, {"tp:1"}, {{{"tp", {2, 3, 4, 5}}}, {}, {}});
  CHECK(held(rules, {3, 14}, 0, 1) == Positions{0, 1});
  CHECK(held(rules, {3, 14}, 1, 1) == Positions{2, 3, 4});
  CHECK(held(rules, {3, 14}, 3, 1) == Positions{9, 10, 11, 12, 13});
  check_no_shard(rules, {3, 15}, {"f.toml:9", "axis 'tp'", "dim 1", "'p'", "[3, 15]", "sum to 14", "15"});
  check_no_shard(rules, {3, 13}, {"axis 'tp'", "[2, 3, 4, 5]", "13"});
  const SideRules none = rules_on({{"ep", 3}}, {"ep:0"}, {{{"ep", {0, 4, 0}}}, {}, {}});
  CHECK(held(none, {4}, 0).empty());
  CHECK(held(none, {4}, 1) == Positions{0, 1, 2, 3});
  // the second cut takes what the first one left: 4 or 3 rows
  const SideRules twice = rules_on({{"tp", 2}, {"fsdp", 2}}, {"tp:0", "fsdp:0"}, {{{"fsdp", {1, 3}}}, {}, {}});
  CHECK(held(twice, {8}, 3) == Positions{5, 6, 7});
  check_no_shard(twice, {7}, {"axis 'fsdp'", "pass the 3"}, 2);
  // by slice they must fit each segment
  SideRules slices = rules_on({{"tp", 2}}, {"tp:0 by slice"}, {{{"tp", {1, 3}}}, {}, {}});
  slices.maps = {slice_rule("gate", "[0:4]"), slice_rule("up", "[4:8]")};
  CHECK(held(slices, {8}, 1) == Positions{1, 2, 3, 5, 6, 7});
  check_not_compiled(rules_on({{"tp", 2}}, {"tp:0"}, {{{"tp", {1, 2, 3}}}, {}, {}}),
                     {"f.toml:9", "3 for axis 'tp'", "2 coordinates"});
  check_not_compiled(rules_on({{"tp", 2}}, {"tp:0"}, {{{"ep", {1, 2}}}, {}, {}}), {"f.toml:9", "no cut", "'ep'"});
  check_not_compiled(rules_on({{"tp", 2}}, {"tp:0 cyclic"}, {{{"tp", {1, 2}}}, {}, {}}), {"axis 'tp'", "one by one"});
}

TEST_CASE("named segments are cut each on its own, without maps") {
  const SideRules rules = rules_on({{"tp", 2}}, {"tp:0 by [4, 2, 3]"});
  CHECK(held(rules, {9}, 0) == Positions{0, 1, 4, 6, 7});
  CHECK(held(rules, {9}, 1) == Positions{2, 3, 5, 8});
  check_no_shard(rules, {10}, {"f.toml:9", "axis 'tp'", "dim 0", "[4, 2, 3]", "sum to 9"});
  check_no_shard(rules, {8}, {"axis 'tp'", "pass the dim"});
  const SideRules twice = rules_on({{"a", 2}, {"b", 2}}, {"a:0 by [4, 8]", "b:0 by [4,8]"});
  CHECK(held(twice, {12}, 1) == Positions{1, 6, 7});
  check_not_compiled(rules_on({{"a", 2}, {"b", 2}}, {"a:0 by [4, 8]", "b:0 by [8, 4]"}),
                     {"axis 'b'", "other segments", "axis 'a'"});
  check_not_compiled(rules_on({{"a", 2}, {"b", 2}}, {"a:0 by [4, 8]", "b:0 by slice"}), {"axis 'b'", "other segments"});
  check_not_compiled(rules_on({{"a", 2}, {"b", 2}}, {"a:0", "b:0 by [4, 8]"}), {"axis 'b'", "after axis 'a'"});
  for (const char* cut : {"a:0 by [4, 0]", "a:0 by []", "a:0 by [4", "a:0 by [4 8]", "a:0 by [-4]", "a:0 by [x]"}) {
    CAPTURE(cut);
    check_not_compiled(rules_on({{"a", 2}}, {cut}), {"f.toml:9", "axis 'a'", "no list of segments"});
  }
}

TEST_CASE("joined axes are one axis, outermost first, and their parts may not cut again") {
  SideRules rules = rules_on({{"dp", 2}, {"tp", 2}}, {"ep:0"});
  rules.axes = {{"ep", {"dp", "tp"}}};
  for (Index rank = 0; rank < 4; ++rank)
    CHECK(held(rules, {8}, rank) == Positions{2 * rank, 2 * rank + 1});
  const SideRules turned = rules_on({{"dp", 2}, {"tp", 2}}, {"ep:0"}, {{}, {{"ep", {"tp", "dp"}}}, {}});
  CHECK(held(turned, {8}, 1) == Positions{4, 5}); // dp 0, tp 1
  CHECK(held(turned, {8}, 2) == Positions{2, 3});
  rules.placements[0].shard = {"ep:0", "tp:1"};
  check_not_compiled(rules, {"f.toml:9", "axis 'tp'", "cuts twice"});
  rules.placements[0].shard = {"tp:1", "ep:0"};
  check_not_compiled(rules, {"f.toml:9", "axis 'tp' (in 'ep')", "cuts twice"});
  rules.placements[0].shard = {"pp:0"};
  check_not_compiled(rules, {"no axis 'pp'", "dp, tp, ep"});
  rules.placements[0].shard = {};
  for (const auto& [axes, text] : {std::pair{std::vector<JoinedAxis>{{"tp", {"dp"}}}, "another axis"},
                                   {{{"ep", {"dp"}}, {"ep", {"tp"}}}, "another axis"},
                                   {{{"ep", {"dp", "xp"}}}, "no axis 'xp'"},
                                   {{{"ep", {"dp", "dp"}}}, "axis 'dp' twice"},
                                   {{{"ep", {}}}, "joins nothing"}}) {
    rules.axes = axes;
    check_not_compiled(rules, {"trainer.axes", text});
  }
  // a part that does not cut replicates; one owner
  SideRules split = rules_on({{"tp_kv", 2}, {"tp_rep", 2}}, {"tp_kv:0"});
  CHECK(held(split, {4}, 2) == Positions{2, 3});
  CHECK(shard_of(split, {4}, 2).owner);
  CHECK(!shard_of(split, {4}, 3).owner);
}

TEST_CASE("on tells who holds a parameter; the lowest of them owns it") {
  const SideRules rules = rules_on({{"pp", 3}, {"fsdp", 2}}, {"fsdp:0"}, {{}, {}, {{"pp", {2, 1}}}});
  for (Index rank = 0; rank < 6; ++rank) {
    CAPTURE(rank);
    const Shard shard = shard_of(rules, {4}, rank);
    CHECK(shard.held == (rank >= 2));
    CHECK(shard.owner == (rank == 2 || rank == 3));
    if (shard.held)
      CHECK(held(rules, {4}, rank) == (rank % 2 == 0 ? Positions{0, 1} : Positions{2, 3}));
    else
      CHECK(boxes_of(shard, std::vector<Index>{1}).empty());
  }
  const LocalTensor tensor{"p", DType::f32, {4}, {}};
  check_refused(compiled(rules).declare_trainer(std::span(&tensor, 1), 1), Code::invalid_argument,
                {"f.toml:9", "rank 1", "'p'", "do not add it"});
  check_not_compiled(rules_on({{"pp", 2}}, {}, {{}, {}, {{"pp", {2}}}}), {"axis 'pp'", "0 to 1"});
  check_not_compiled(rules_on({{"pp", 2}}, {}, {{}, {}, {{"pp", {1, 1}}}}), {"axis 'pp'", "twice"});
  check_not_compiled(rules_on({{"pp", 2}}, {}, {{}, {}, {{"pp", {}}}}), {"axis 'pp'", "nobody"});
  check_not_compiled(rules_on({{"pp", 2}}, {}, {{}, {}, {{"xp", {0}}}}), {"no axis 'xp'"});
  check_not_compiled(rules_on({{"pp", 2}}, {"pp:0"}, {{}, {}, {{"pp", {0}}}}), {"on: axis 'pp' cuts"});

  // the same on the workers: who does not hold it neither lists nor binds it, and rules may name it
  const SideRules stages = rules_on({{"pp", 2}}, {}, {{}, {}, {{"pp", {1}}}});
  const Side worker = compiled(stages, Side::Role::worker);
  const std::vector<SlotSpec> slots{{"p", DType::f32, {4}}, {"q", DType::f32, {2}}};
  REQUIRE(worker.worker_parameters(slots, 0));
  CHECK(worker.worker_parameters(slots, 0)->size() == 1);
  CHECK(worker.worker_parameters(slots, 1)->size() == 2);
  const std::vector<LocalTensor> q{{"q", DType::f32, {2}, {}}};
  const auto without = worker.declare_worker(slots, q, 0);
  REQUIRE(without);
  CHECK(without->slots == std::vector<SlotSpec>{{"q", DType::f32, {2}}});
  CHECK(worker.check_names(std::vector<std::string>{"q"}, slots));
  const std::vector<LocalTensor> both{{"p", DType::f32, {4}, {}}, {"q", DType::f32, {2}, {}}};
  check_refused(worker.declare_worker(slots, both, 0), Code::invalid_argument,
                {"f.toml:9", "worker 0", "'p'", "do not bind it"});
  check_refused(worker.declare_worker(slots, q, 1), Code::disagreement, {"not bound: 'p'"});
}

TEST_CASE("a flat cut takes ceil intervals of the row-major elements, as boxes") {
  const SideRules rules = rules_on({{"fsdp", 4}}, {"fsdp:flat"});
  const Shape shape{3, 5}; // intervals of 4: 0..4, 4..8, 8..12, 12..15
  const Shard first = shard_of(rules, shape, 0);
  CHECK(first.local_shape == Shape{4});
  CHECK(first.flat == FlatRange{0, 4});
  CHECK(shard_of(rules, shape, 3).local_shape == Shape{3});
  CHECK(boxes_of(first, std::vector<Index>{1}).size() == 1);
  const auto boxes = boxes_of(shard_of(rules, shape, 1), std::vector<Index>{1}); // [0, 4] and [1, 0:3]
  REQUIRE(boxes.size() == 2);
  CHECK(boxes[0].dims == std::vector<std::vector<Interval>>{{{0, 0, 1, 1}}, {{4, 4, 1, 1}}});
  CHECK(boxes[1].dims == std::vector<std::vector<Interval>>{{{1, 1, 1, 1}}, {{0, 0, 3, 1}}});
  CHECK(boxes[1].strides == std::vector<Index>{5, 1});
  CHECK(boxes[1].base == -4);
  // a head, whole rows, a tail: three boxes, whatever their number
  const SideRules halves = rules_on({{"fsdp", 2}}, {"fsdp:flat"}, {{{"fsdp", {3, 5007}}}, {}, {}});
  CHECK(boxes_of(shard_of(halves, {501, 10}, 1), std::vector<Index>{1}).size() == 2);
  CHECK(boxes_of(shard_of(rules_on({{"fsdp", 3}}, {"fsdp:flat"}, {{{"fsdp", {3, 5000, 7}}}, {}, {}}), {501, 10}, 1),
                 std::vector<Index>{1})
          .size() == 3);
  // behind other cuts, and behind itself
  const SideRules both = rules_on({{"tp", 2}, {"a", 2}, {"b", 2}}, {"tp:1", "a:flat", "b:flat"});
  const Shard inner = shard_of(both, {3, 4}, 7); // tp 1: columns 2, 3; elements 3..6, then 5..6
  CHECK(inner.local_shape == Shape{1});
  CHECK(inner.flat == FlatRange{5, 6});
  CHECK(boxes_of(inner, std::vector<Index>{1}).front().dims ==
        std::vector<std::vector<Interval>>{{{2, 2, 1, 1}}, {{3, 1, 1, 1}}});
  CHECK(shard_of(rules, {}, 2).local_shape.empty()); // a scalar is never cut
  CHECK(!shard_of(rules, {}, 2).owner);
  CHECK(shard_of(rules, {0, 5}, 2).local_shape == Shape{0});
  CHECK(shard_of(rules, {2}, 3).local_shape == Shape{0});
  check_not_compiled(rules_on({{"a", 2}, {"b", 2}}, {"a:flat", "b:0"}), {"axis 'b'", "after axis 'a'", "last"});
  check_no_shard(halves, {501, 11}, {"axis 'fsdp'", "the elements", "sum to 5010", "5511"});
}

TEST_CASE("a process may declare the interval itself: a parameter within a longer flat buffer") {
  const SideRules rules = rules_on({{"fsdp", 2}}, {"fsdp:flat"});
  const LocalTensor head{"p", DType::f32, {2, 3}, {}, FlatRange{0, 5}};
  const LocalTensor tail{"p", DType::f32, {2, 3}, {}, FlatRange{5, 6}};
  const std::vector<Declaration> ranks{declared(rules, head, 0), declared(rules, tail, 1)};
  CHECK(ranks[0].parameters[0].local_shape == Shape{5});
  CHECK(ranks[0].regions.size() == 2);
  CHECK(ranks[1].regions.size() == 1);
  CHECK(ranks[1].regions[0].base == 0);
  const LocalTensor bound{"p", DType::f32, {2, 3}, {}};
  const auto worker = compiled({}, Side::Role::worker)
                        .declare_worker(std::vector<SlotSpec>{{"p", DType::f32, {2, 3}}}, std::span(&bound, 1), 0);
  REQUIRE(worker);
  CHECK(compile_plan(ranks, std::span(&*worker, 1), {}, 1024));
  // intervals that leave a hole are found where all meet
  const std::vector<Declaration> holed{declared(rules, {"p", DType::f32, {2, 3}, {}, FlatRange{0, 4}}, 0), ranks[1]};
  check_refused(compile_plan(holed, std::span(&*worker, 1), {}, 1024), Code::disagreement,
                {"no rank provides [1:2, 1:2]"});
  // a scalar in a flat buffer lies on one rank
  CHECK(declared(rules, {"p", DType::f32, {}, {}, FlatRange{0, 0}}, 0).regions.empty());
  CHECK(declared(rules, {"p", DType::f32, {}, {}, FlatRange{0, 1}}, 1).regions.size() == 1);
  const LocalTensor past{"p", DType::f32, {2, 3}, {}, FlatRange{5, 7}};
  check_refused(compiled(rules).declare_trainer(std::span(&past, 1), 0), Code::invalid_argument,
                {"'p'", "5 to 7", "6 elements"});
  check_refused(compiled(rules_on({{"fsdp", 2}}, {"fsdp:0"})).declare_trainer(std::span(&head, 1), 0),
                Code::invalid_argument, {"'p'", "no \"axis:flat\""});
}

TEST_CASE("a map's own cuts replace the parameter's by-slice cuts for its slice") {
  // 8 q rows over tp = 4, 2 k and 2 v rows over tp_kv = 2: each kv row on two ranks
  SideRules rules = rules_on({{"tp_kv", 2}, {"tp_rep", 2}}, {"tp:0 by slice"});
  rules.axes = {{"tp", {"tp_kv", "tp_rep"}}};
  rules.maps = {slice_rule("q", "[0:8]"), slice_rule("k", "[8:10]", {"tp_kv:0"}),
                slice_rule("v", "[10:12]", {"tp_kv:0 by slice"})};
  CHECK(held(rules, {12}, 0) == Positions{0, 1, 8, 10});
  CHECK(held(rules, {12}, 1) == Positions{2, 3, 8, 10});
  CHECK(held(rules, {12}, 3) == Positions{6, 7, 9, 11});
  // the owner of q is everyone, of k and v the first of the two
  const LocalTensor tensor{"p", DType::f32, {12}, {}};
  const auto slots_of = [&](Index rank) {
    std::vector<std::string> slots;
    const Declaration declaration = declared(rules, tensor, rank);
    for (const Region& region : declaration.regions)
      slots.push_back(declaration.slots[region.slot].name);
    return slots;
  };
  CHECK(slots_of(0) == std::vector<std::string>{"q", "k", "v"});
  CHECK(slots_of(1) == std::vector<std::string>{"q"});
  CHECK(slots_of(2) == std::vector<std::string>{"q", "k", "v"});
  (void)plan_of(rules, tensor); // every element once

  // none at all: the slice is everywhere; a map with cuts beside one without, and no placement
  rules.maps[1].shard = std::vector<std::string>{};
  CHECK(held(rules, {12}, 3) == Positions{6, 7, 8, 9, 11});
  rules.placements.clear();
  CHECK(held(rules, {12}, 3) == Positions{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11});
  (void)plan_of(rules, tensor);

  // cuts of whole dims take what all slices left: fsdp halves 5 packed rows; and cuts of other dims stay
  SideRules fsdp = rules_on({{"fsdp", 2}, {"tp", 2}}, {
                                                        "tp:0 by slice",
                                                        "fsdp:0",
                                                      });
  fsdp.maps = {slice_rule("q", "[0:8]"), slice_rule("k", "[8:9]", {})};
  CHECK(held(fsdp, {9}, 0) == Positions{0, 1, 2}); // fsdp 0, tp 0 of 0 1 2 3 8
  CHECK(held(fsdp, {9}, 2) == Positions{3, 8});
  (void)plan_of(fsdp, {"p", DType::f32, {9}, {}});
  fsdp.placements[0].shard = {"tp:0 by slice", "fsdp:1"};
  fsdp.maps = {slice_rule("q", "[0:8, :]"), slice_rule("k", "[8:9, :]", {"fsdp:1"})}; // restated: the same
  CHECK(held(fsdp, {9, 2}, 3) == Positions{4, 5, 6, 7, 8});
  CHECK(held(fsdp, {9, 2}, 3, 1) == Positions{1});
}

TEST_CASE("maps of one interval may each say the same cuts") {
  SideRules rules = rules_on({{"tp", 2}}, {});
  rules.maps = {slice_rule("a", "[0:4, 0]", {"tp:0"}), slice_rule("b", "[0:4, 1]", {"tp:0"}),
                slice_rule("c", "[4:6, :]")};
  CHECK(held(rules, {6, 2}, 1) == Positions{2, 3, 4, 5});
  (void)plan_of(rules, {"p", DType::f32, {6, 2}, {}});
}

TEST_CASE("a map's own cuts that do not go with the parameter's are refused") {
  SideRules rules = rules_on({{"fsdp", 2}, {"tp", 2}}, {"tp:0"});
  rules.maps = {slice_rule("q", "[0:8]"), slice_rule("k", "[8:9]", {"fsdp:0"})};
  check_no_shard(rules, {9}, {"f.toml:9", "axis 'tp'", "f.toml:8", "tp:0 by slice"});
  rules.placements[0].shard = {"tp:0 by slice", "fsdp:0"};
  check_no_shard(rules, {9}, {"f.toml:8", "axis 'fsdp' cuts twice", "f.toml:9"});
  rules.placements[0].shard = {"tp:0 by [8, 1]"};
  check_no_shard(rules, {9}, {"f.toml:9", "axis 'tp'", "named segments", "by slice"});
  rules.placements[0].shard = {"tp:0 by slice"};
  rules.maps[1].shard = {{"fsdp:1"}};
  check_no_shard(rules, {9}, {"f.toml:8", "axis 'fsdp'", "dim 1"});
  rules.maps[1].shard = {{"fsdp:flat"}};
  check_not_compiled(rules, {"f.toml:8", "axis 'fsdp'", "flat"});
  rules.maps[1].shard = {{"fsdp:0", "fsdp:0"}};
  check_not_compiled(rules, {"f.toml:8", "axis 'fsdp' cuts twice"});
  rules.maps[1] = slice_rule("k", "[0:8, 1]", {"fsdp:0"});
  rules.maps[0] = slice_rule("q", "[0:8, 0]");
  check_no_shard(rules, {8, 2}, {"f.toml:9", "the same interval 0:8", "'q'", "'k'"});
  rules.placements[0].options.on = {{"fsdp", {0}}};
  check_no_shard(rules, {8, 2}, {"f.toml:8", "axis 'fsdp' cuts", "`on` of f.toml:9"});
}

TEST_CASE("HSDP: two replicas of two shards, one owner") {
  const SideRules rules = rules_on({{"replicate", 2}, {"shard", 2}}, {"shard:flat"});
  const Plan plan = plan_of(rules, {"p", DType::f32, {3, 3}, {}});
  CHECK(!plan.ranks[0].empty());
  CHECK(!plan.ranks[1].empty());
  CHECK(plan.ranks[2].empty());
  CHECK(plan.ranks[3].empty());
}

TEST_CASE("positions past 2^31 survive flat, cyclic and uneven cuts") {
  const Shape shape{300000, 7168};
  const SideRules flat = rules_on({{"fsdp", 3}}, {"fsdp:flat"});
  const Shard last = shard_of(flat, shape, 2);
  CHECK(last.flat == FlatRange{1433600000, 2150400000});
  CHECK(boxes_of(last, std::vector<Index>{1}).back().dims[0] == std::vector<Interval>{{200000, 200000, 100000, 1}});
  const SideRules uneven = rules_on({{"fsdp", 3}}, {"fsdp:flat"}, {{{"fsdp", {1, 2150399998, 1}}}, {}, {}});
  const auto boxes = boxes_of(shard_of(uneven, shape, 2), std::vector<Index>{1});
  REQUIRE(boxes.size() == 1);
  CHECK(boxes[0].dims == std::vector<std::vector<Interval>>{{{299999, 299999, 1, 1}}, {{7167, 7167, 1, 1}}});
  CHECK(boxes[0].base + 299999 * boxes[0].strides[0] + 7167 * boxes[0].strides[1] == 0);
  const Plan plan = plan_of(uneven, {"p", DType::bf16, shape, {}});
  CHECK(plan.ranks[2].front().slot_offset == 2150399999);
  const SideRules dealt = rules_on({{"ep", 2}}, {"ep:0 cyclic"});
  const Plan rows = plan_of(dealt, {"p", DType::bf16, shape, {}});
  CHECK(rows.ranks[1].back().slot_offset + 149999 * Index{2} * 7168 == Index{299999} * 7168);
}

TEST_CASE("regular pieces are one block: dealt rows, and the heads of a grouped parameter") {
  const Plan dealt = plan_of(rules_on({{"ep", 2}}, {"ep:0 cyclic"}), {"p", DType::bf16, {8, 3}, {}});
  REQUIRE(dealt.ranks[1].size() == 1);
  CHECK(dealt.ranks[1][0].extents == std::vector<Index>{4, 3});
  CHECK(dealt.ranks[1][0].slot_strides == std::vector<Index>{6, 1});
  CHECK(dealt.ranks[1][0].local_strides == std::vector<Index>{3, 1});
  CHECK(dealt.ranks[1][0].slot_offset == 3);

  SideRules grouped = rules_on({{"tp", 1}}, {"tp:0"});
  grouped.maps = {slice_rule("q", "[:, 0:2, :]"), slice_rule("k", "[:, 2, :]")};
  for (MapRule& map : grouped.maps)
    map.view = "[(4, 3, 2)]";
  const Plan plan = plan_of(grouped, {"p", DType::bf16, {24}, {}});
  REQUIRE(plan.blocks == 2);
  CHECK(plan.ranks[0][0].extents == std::vector<Index>{4, 4});
  CHECK(plan.ranks[0][0].local_strides == std::vector<Index>{6, 1});
  CHECK(plan.ranks[0][0].slot_strides == std::vector<Index>{4, 1});
}
