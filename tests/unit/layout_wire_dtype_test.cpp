// Contract of layout/wire_dtype.hpp, and what it makes of declarations: a slot's dtype is what its parameters are cast
// to.

#include "catch.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"
#include "layout/wire_dtype.hpp"
#include "refusal.hpp"

using namespace deltawire;
using namespace deltawire::layout;
using test::check_refused;

namespace {

SideRules casting(WireDType wire) {
  SideRules rules;
  rules.wire_dtype = wire;
  return rules;
}

Result<Declaration> declare(const SideRules& rules, std::vector<LocalTensor> tensors) {
  auto side = Side::compile(rules, Side::Role::trainer);
  REQUIRE(side);
  return side->declare_trainer(tensors, 0);
}

DType slot_dtype(const SideRules& rules, DType held) {
  const auto declared = declare(rules, {{"p", held, {4}, {}}});
  INFO((declared ? "" : declared.error().message));
  REQUIRE(declared);
  CHECK(declared->parameters[0].dtype == held); // memory keeps it
  return declared->slots[0].dtype;
}

constexpr WireDType keep{};
constexpr WireDType bf16{DType::bf16};
constexpr WireDType f16{DType::f16};
constexpr WireDType f32{DType::f32};

} // namespace

TEST_CASE("a wire dtype is keep, or a floating-point type that parameters may be cast to") {
  CHECK(wire_dtype_from_name("keep") == keep);
  CHECK(wire_dtype_from_name("bfloat16") == bf16);
  CHECK(wire_dtype_from_name("float16") == f16);
  CHECK(wire_dtype_from_name("float32") == f32);
  for (const char* name : {"", "float64", "int32", "float8_e4m3", "bf16"})
    CHECK(!wire_dtype_from_name(name));
  for (const WireDType wire : {keep, bf16, f16, f32})
    CHECK(wire_dtype_from_name(to_string(wire)) == wire);
}

TEST_CASE("the update's wire dtype casts fp32, and leaves alone what is never cast") {
  CHECK(slot_dtype(casting(keep), DType::f32) == DType::f32);
  CHECK(slot_dtype(casting(bf16), DType::f32) == DType::bf16);
  CHECK(slot_dtype(casting(f16), DType::f32) == DType::f16);
  CHECK(slot_dtype(casting(bf16), DType::bf16) == DType::bf16);
  CHECK(slot_dtype(casting(f32), DType::f32) == DType::f32);
  CHECK(slot_dtype(casting(f32), DType::bf16) == DType::f32);
  CHECK(slot_dtype(casting(f32), DType::f16) == DType::f32);
  for (const WireDType wire : {bf16, f16, f32})
    for (const DType held : {DType::boolean, DType::u8, DType::i8, DType::u16, DType::i16, DType::i32, DType::u32,
                             DType::i64, DType::u64, DType::f8_e4m3, DType::f8_e5m2})
      CHECK(slot_dtype(casting(wire), held) == held);
}

TEST_CASE("a cast that does not exist names the parameter, both dtypes and the way out") {
  check_refused(declare(casting(bf16), {{"p", DType::f16, {4}, {}}}), Code::invalid_topology,
                {"update.wire_dtype: parameter 'p': float16 is not cast to bfloat16", "wire_dtype = \"keep\""});
  check_refused(declare(casting(f16), {{"p", DType::bf16, {4}, {}}, {"q", DType::f64, {4}, {}}}),
                Code::invalid_topology,
                {"parameter 'p': bfloat16 is not cast to float16", "parameter 'q': float64 is not cast to float16"});
}

TEST_CASE("a placement has a wire dtype of its own, and asking for the cast of integers there is an error") {
  SideRules rules = casting(bf16);
  rules.placements = {{"*.bias", {}, "f.toml:3", {}, keep},
                      {"*.half", {}, "f.toml:5", {}, f16},
                      {"*.other", {}, "f.toml:7"},
                      {"*.count", {}, "f.toml:9", {}, f32},
                      {"*.same", {}, "f.toml:11", {}, bf16}};
  const auto declared = declare(rules, {{"a.bias", DType::f32, {4}, {}},
                                        {"a.half", DType::f32, {4}, {}},
                                        {"a.other", DType::f32, {4}, {}},
                                        {"a.weight", DType::f32, {4}, {}},
                                        {"a.same", DType::bf16, {4}, {}}});
  REQUIRE(declared);
  std::vector<DType> dtypes;
  for (const SlotSpec& slot : declared->slots)
    dtypes.push_back(slot.dtype);
  CHECK(dtypes == std::vector<DType>{DType::f32, DType::f16, DType::bf16, DType::bf16, DType::bf16});
  check_refused(declare(rules, {{"n.count", DType::i64, {4}, {}}}), Code::invalid_topology,
                {"f.toml:9: parameter 'n.count': int64 is not cast to float32, only floating point is"});
  check_refused(declare(rules, {{"n.same", DType::f8_e4m3, {4}, {}}}), Code::invalid_topology,
                {"f.toml:11", "'n.same'"});
}

TEST_CASE("parameters of different dtypes fill one slot where they are cast to the same") {
  SideRules rules = casting(bf16);
  rules.maps = {{"a", "s", "", "", false, "f.toml:3", {}, "", "[0:2]"},
                {"b", "s", "", "", false, "f.toml:5", {}, "", "[2:4]"}};
  rules.maps[0].slot_view = rules.maps[1].slot_view = "[4]";
  const std::vector<LocalTensor> tensors{{"a", DType::f32, {2}, {}}, {"b", DType::bf16, {2}, {}}};
  const auto declared = declare(rules, tensors);
  INFO((declared ? "" : declared.error().message));
  REQUIRE(declared);
  REQUIRE(declared->slots.size() == 1);
  CHECK(declared->slots[0].dtype == DType::bf16);
  rules.wire_dtype = keep;
  check_refused(declare(rules, tensors), Code::invalid_topology, {"'a' gives float32", "'b' gives bfloat16"});
}

TEST_CASE("blocks have the wire dtype on both sides, and a worker's memory has it too") {
  const std::vector<Declaration> ranks{*declare(casting(bf16), {{"p", DType::f32, {4}, {}}})};
  const auto slots = catalogue(ranks);
  REQUIRE(slots);
  const auto side = Side::compile({}, Side::Role::worker);
  REQUIRE(side);
  const auto parameters = side->worker_parameters(*slots, 0);
  REQUIRE(parameters);
  CHECK(parameters->at(0).dtype == DType::bf16);
  const std::vector<LocalTensor> bound{{"p", DType::bf16, {4}, {}}};
  const std::vector<Declaration> workers{*side->declare_worker(*slots, bound, 0)};
  const auto plan = compile_plan(ranks, workers, {}, 1 << 20);
  INFO((plan ? "" : plan.error().message));
  REQUIRE(plan);
  CHECK(plan->ranks[0].at(0).dtype == DType::bf16);
  CHECK(plan->workers[0].at(0).dtype == DType::bf16);

  const std::vector<LocalTensor> wide{{"p", DType::f32, {4}, {}}};
  check_refused(side->declare_worker(*slots, wide, 0), Code::disagreement, {"'p'", "float32", "bfloat16"});
  // A worker's declaration that says so all the same, or a rank's that is no cast, is not believed.
  std::vector<Declaration> wrong = workers;
  wrong[0].parameters[0].dtype = DType::f32;
  check_refused(compile_plan(ranks, wrong, {}, 1 << 20), Code::disagreement, {"worker 0", "there is no cast"});
  wrong = ranks;
  wrong[0].parameters[0].dtype = DType::i32;
  check_refused(compile_plan(wrong, workers, {}, 1 << 20), Code::disagreement, {"rank 0", "there is no cast"});
}
