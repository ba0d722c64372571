// The case that must work: a small mixture-of-experts model as the trainer fuses and shards it (EP2 x FSDP2), its
// checkpoint names, and a worker that packs qkv, gate_up and w13 under TP2. Expectations are written out by hand, and
// addresses by plain arithmetic on rows.

#include "catch.hpp"
#include "layout/plan.hpp"
#include "layout/side.hpp"

#include <algorithm>
#include <map>

using namespace deltawire;
using namespace deltawire::layout;

namespace {

const std::string layer0 = "model.layers.0.";
const std::string layer2 = "model.layers.2.";

SideRules trainer_rules(const std::string& k_slice = "[:, 3:4, :, :]") {
  SideRules rules;
  rules.mesh = *Mesh::make({{"ep", 2}, {"fsdp", 2}});
  const std::string qkv = "model.layers.{l}.self_attn.qkv.weight";
  const std::string attention = "model.layers.{l}.self_attn.";
  const std::string mlp = "model.layers.{l}.mlp.";
  rules.maps = {
    {qkv, attention + "q_proj.weight", "[2, 5, 32, 192]", "[:, 0:3, :, :]", false, "t:1"},
    {qkv, attention + "k_proj.weight", "[2, 5, 32, 192]", k_slice, false, "t:2"},
    {qkv, attention + "v_proj.weight", "[2, 5, 32, 192]", "[:, 4, :, :]", false, "t:3"},
    {mlp + "gate_up.weight", mlp + "gate_proj.weight", "", "[0:512, :]", false, "t:4"},
    {mlp + "gate_up.weight", mlp + "up_proj.weight", "", "[512:1024, :]", false, "t:5"},
    {mlp + "experts.gate_up_proj", mlp + "experts.{e}.gate_proj.weight", "", "[e, 0:128, :]", false, "t:6"},
    {mlp + "experts.gate_up_proj", mlp + "experts.{e}.up_proj.weight", "", "[e, 128:256, :]", false, "t:7"},
    {mlp + "experts.down_proj", mlp + "experts.{e}.down_proj.weight", "", "[e, :, :]", false, "t:8"},
  };
  rules.placements = {{"*.experts.gate_up_proj", {"ep:0", "fsdp:1"}, "t:9"},
                      {"*.experts.down_proj", {"ep:0", "fsdp:1"}, "t:10"},
                      {"*", {"fsdp:0"}, "t:11"}};
  return rules;
}

std::vector<LocalTensor> trainer_tensors() {
  return {
    {"model.embed_tokens.weight", DType::bf16, {259, 192}, {}},
    {layer0 + "self_attn.qkv.weight", DType::bf16, {320, 192}, {}},
    {layer0 + "self_attn.o_proj.weight", DType::bf16, {192, 192}, {}},
    {layer0 + "mlp.gate_up.weight", DType::bf16, {1024, 192}, {}},
    {layer0 + "mlp.down_proj.weight", DType::bf16, {192, 512}, {}},
    {layer0 + "input_layernorm.weight", DType::bf16, {192}, {}},
    {layer2 + "mlp.gate.weight", DType::bf16, {8, 192}, {}},
    {layer2 + "mlp.gate.e_score_correction_bias", DType::f32, {8}, {}},
    {layer2 + "mlp.experts.gate_up_proj", DType::bf16, {8, 256, 192}, {}},
    {layer2 + "mlp.experts.down_proj", DType::bf16, {8, 192, 128}, {}},
    {"lm_head.weight", DType::bf16, {259, 192}, {}},
  };
}

SideRules worker_rules(bool transpose_w2 = false) {
  SideRules rules;
  rules.mesh = *Mesh::make({{"tp", 2}});
  const std::string attention = "model.layers.{l}.self_attn.";
  const std::string mlp = "model.layers.{l}.mlp.";
  rules.maps = {
    {attention + "qkv_proj.weight", attention + "q_proj.weight", "", "[0:192, :]", false, "w:1"},
    {attention + "qkv_proj.weight", attention + "k_proj.weight", "", "[192:256, :]", false, "w:2"},
    {attention + "qkv_proj.weight", attention + "v_proj.weight", "", "[256:320, :]", false, "w:3"},
    {mlp + "gate_up_proj.weight", mlp + "gate_proj.weight", "", "[0:512, :]", false, "w:4"},
    {mlp + "gate_up_proj.weight", mlp + "up_proj.weight", "", "[512:1024, :]", false, "w:5"},
    {mlp + "experts.w13", mlp + "experts.{e}.gate_proj.weight", "", "[e, 0:128, :]", false, "w:6"},
    {mlp + "experts.w13", mlp + "experts.{e}.up_proj.weight", "", "[e, 128:256, :]", false, "w:7"},
    {mlp + "experts.w2", mlp + "experts.{e}.down_proj.weight", "", "[e, :, :]", transpose_w2, "w:8"},
  };
  rules.placements = {
    {"*.qkv_proj.weight", {"tp:0 by slice"}, "w:9"},
    {"*.gate_up_proj.weight", {"tp:0 by slice"}, "w:10"},
    {"*.w13", {"tp:1 by slice"}, "w:11"},
    {"*.w2", {transpose_w2 ? "tp:1" : "tp:2"}, "w:12"},
    {"*.o_proj.weight", {"tp:1"}, "w:13"},
    {"*.down_proj.weight", {"tp:1"}, "w:14"},
    {"model.embed_tokens.weight", {"tp:0"}, "w:15"},
    {"lm_head.weight", {"tp:0"}, "w:16"},
  };
  return rules;
}

std::vector<SlotSpec> checkpoint() {
  const auto trainer = Side::compile(trainer_rules(), Side::Role::trainer);
  REQUIRE(trainer);
  const auto declaration = trainer->declare_trainer(trainer_tensors(), 0);
  INFO((declaration ? "" : declaration.error().message));
  REQUIRE(declaration);
  return declaration->slots;
}

const SlotSpec& slot_of(const Declaration& declaration, const std::string& name) {
  const auto found = std::find_if(declaration.slots.begin(), declaration.slots.end(),
                                  [&](const SlotSpec& slot) { return slot.name == name; });
  REQUIRE(found != declaration.slots.end());
  return *found;
}

/// The regions of a slot; the test says how many there must be.
std::vector<Region> regions_of(const Declaration& declaration, const std::string& name) {
  const SlotSpec& slot = slot_of(declaration, name);
  std::vector<Region> result;
  for (const Region& region : declaration.regions)
    if (&declaration.slots[region.slot] == &slot)
      result.push_back(region);
  return result;
}

const ParameterSpec& parameter_of(const std::vector<ParameterSpec>& parameters, const std::string& name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const ParameterSpec& parameter) { return parameter.name == name; });
  REQUIRE(found != parameters.end());
  return *found;
}

/// Segments of the one region's dim, with the base folded into the first dim.
std::vector<Segment> rows_of(const Declaration& declaration, const std::string& name) {
  const auto regions = regions_of(declaration, name);
  REQUIRE(regions.size() == 1);
  std::vector<Segment> rows = regions.front().dims.front();
  for (Segment& segment : rows)
    segment.local += regions.front().base;
  return rows;
}

Declaration read_by(const Side& worker, const std::vector<SlotSpec>& slots, Index index) {
  const auto parameters = worker.worker_parameters(slots, index);
  INFO((parameters ? "" : parameters.error().message));
  REQUIRE(parameters);
  std::vector<LocalTensor> tensors;
  for (const ParameterSpec& parameter : *parameters)
    tensors.push_back({parameter.name, parameter.dtype, parameter.local_shape, {}});
  const auto declaration = worker.declare_worker(slots, tensors, index);
  INFO((declaration ? "" : declaration.error().message));
  REQUIRE(declaration);
  return *declaration;
}

} // namespace

TEST_CASE("the trainer's fused names lead to the checkpoint's names, shapes and dtypes") {
  const std::vector<SlotSpec> slots = checkpoint();
  std::map<std::string, SlotSpec> by_name;
  for (const SlotSpec& slot : slots)
    by_name[slot.name] = slot;
  auto expect = [&](const std::string& name, DType dtype, const Shape& shape) {
    CAPTURE(name);
    REQUIRE(by_name.count(name) == 1);
    CHECK(by_name[name].dtype == dtype);
    CHECK(by_name[name].shape == shape);
    by_name.erase(name);
  };
  expect("model.embed_tokens.weight", DType::bf16, {259, 192});
  expect(layer0 + "self_attn.q_proj.weight", DType::bf16, {192, 192});
  expect(layer0 + "self_attn.k_proj.weight", DType::bf16, {64, 192});
  expect(layer0 + "self_attn.v_proj.weight", DType::bf16, {64, 192});
  expect(layer0 + "self_attn.o_proj.weight", DType::bf16, {192, 192});
  expect(layer0 + "mlp.gate_proj.weight", DType::bf16, {512, 192});
  expect(layer0 + "mlp.up_proj.weight", DType::bf16, {512, 192});
  expect(layer0 + "mlp.down_proj.weight", DType::bf16, {192, 512});
  expect(layer0 + "input_layernorm.weight", DType::bf16, {192});
  expect(layer2 + "mlp.gate.weight", DType::bf16, {8, 192});
  expect(layer2 + "mlp.gate.e_score_correction_bias", DType::f32, {8});
  for (int e = 0; e < 8; ++e) {
    const std::string expert = layer2 + "mlp.experts." + std::to_string(e) + ".";
    expect(expert + "gate_proj.weight", DType::bf16, {128, 192});
    expect(expert + "up_proj.weight", DType::bf16, {128, 192});
    expect(expert + "down_proj.weight", DType::bf16, {192, 128});
  }
  expect("lm_head.weight", DType::bf16, {259, 192});
  CHECK(by_name.empty());
}

TEST_CASE("the trainer's ranks hold grouped qkv rows as two segments a projection") {
  for (const char* k_slice : {"[:, 3:4, :, :]", "[:, 3, :, :]"}) {
    CAPTURE(k_slice);
    const auto trainer = Side::compile(trainer_rules(k_slice), Side::Role::trainer);
    REQUIRE(trainer);
    // fsdp cuts 320 rows in two: rank 0 has group 0 (rows 0..160), rank 1 group 1; ep replicates
    const auto first = trainer->declare_trainer(trainer_tensors(), 0);
    const auto second = trainer->declare_trainer(trainer_tensors(), 1);
    const auto replica = trainer->declare_trainer(trainer_tensors(), 2);
    REQUIRE((first && second && replica));
    CHECK(first->parameters[1].local_shape == Shape{160, 192});
    CHECK(rows_of(*first, layer0 + "self_attn.q_proj.weight") == std::vector<Segment>{{0, 96, 0, 192}});
    CHECK(rows_of(*first, layer0 + "self_attn.k_proj.weight") == std::vector<Segment>{{0, 32, 96 * 192, 192}});
    CHECK(rows_of(*first, layer0 + "self_attn.v_proj.weight") == std::vector<Segment>{{0, 32, 128 * 192, 192}});
    CHECK(rows_of(*second, layer0 + "self_attn.q_proj.weight") == std::vector<Segment>{{96, 96, 0, 192}});
    CHECK(rows_of(*second, layer0 + "self_attn.v_proj.weight") == std::vector<Segment>{{32, 32, 128 * 192, 192}});
    CHECK(regions_of(*replica, layer0 + "self_attn.q_proj.weight").empty());
    CHECK(regions_of(*replica, "lm_head.weight").empty());
  }
}

TEST_CASE("a cut that is not aligned with the view is still one region with a segment a stretch") {
  SideRules rules = trainer_rules();
  rules.mesh = *Mesh::make({{"ep", 1}, {"fsdp", 4}});
  const auto trainer = Side::compile(rules, Side::Role::trainer);
  REQUIRE(trainer);
  const auto declaration = trainer->declare_trainer(trainer_tensors(), 1); // rows 80..160
  REQUIRE(declaration);
  CHECK(rows_of(*declaration, layer0 + "self_attn.q_proj.weight") == std::vector<Segment>{{80, 16, 0, 192}});
  CHECK(rows_of(*declaration, layer0 + "self_attn.k_proj.weight") == std::vector<Segment>{{0, 32, 16 * 192, 192}});
  CHECK(rows_of(*declaration, layer0 + "self_attn.v_proj.weight") == std::vector<Segment>{{0, 32, 48 * 192, 192}});

  rules.mesh = *Mesh::make({{"ep", 1}, {"fsdp", 1}});
  const auto whole = Side::compile(rules, Side::Role::trainer)->declare_trainer(trainer_tensors(), 0);
  REQUIRE(whole);
  CHECK(rows_of(*whole, layer0 + "self_attn.q_proj.weight") ==
        std::vector<Segment>{{0, 96, 0, 192}, {96, 96, 160 * 192, 192}});
}

TEST_CASE("experts are cut by expert and by row, and only the ranks that hold them provide them") {
  const auto trainer = Side::compile(trainer_rules(), Side::Role::trainer);
  REQUIRE(trainer);
  const auto rank = trainer->declare_trainer(trainer_tensors(), 3); // ep 1, fsdp 1: experts 4..8, rows 128..256
  REQUIRE(rank);
  CHECK(rank->parameters[8].local_shape == Shape{4, 128, 192});
  CHECK(regions_of(*rank, layer2 + "mlp.experts.3.up_proj.weight").empty());
  CHECK(regions_of(*rank, layer2 + "mlp.experts.5.gate_proj.weight").empty());
  CHECK(rows_of(*rank, layer2 + "mlp.experts.5.up_proj.weight") == std::vector<Segment>{{0, 128, 128 * 192, 192}});
  CHECK(rows_of(*rank, layer2 + "mlp.experts.5.down_proj.weight") == std::vector<Segment>{{96, 96, 96 * 128, 128}});
}

TEST_CASE("the worker's packed parameters follow from the checkpoint and its maps") {
  const auto slots = checkpoint();
  const auto worker = Side::compile(worker_rules(), Side::Role::worker);
  REQUIRE(worker);
  for (Index index : {0, 1}) {
    CAPTURE(index);
    const auto parameters = worker->worker_parameters(slots, index);
    INFO((parameters ? "" : parameters.error().message));
    REQUIRE(parameters);
    std::map<std::string, std::pair<Shape, Shape>> expected{
      {"model.embed_tokens.weight", {{259, 192}, {index == 0 ? 130 : 129, 192}}},
      {layer0 + "self_attn.qkv_proj.weight", {{320, 192}, {160, 192}}},
      {layer0 + "self_attn.o_proj.weight", {{192, 192}, {192, 96}}},
      {layer0 + "mlp.gate_up_proj.weight", {{1024, 192}, {512, 192}}},
      {layer0 + "mlp.down_proj.weight", {{192, 512}, {192, 256}}},
      {layer0 + "input_layernorm.weight", {{192}, {192}}},
      {layer2 + "mlp.gate.weight", {{8, 192}, {8, 192}}},
      {layer2 + "mlp.gate.e_score_correction_bias", {{8}, {8}}},
      {layer2 + "mlp.experts.w13", {{8, 256, 192}, {8, 128, 192}}},
      {layer2 + "mlp.experts.w2", {{8, 192, 128}, {8, 192, 64}}},
      {"lm_head.weight", {{259, 192}, {index == 0 ? 130 : 129, 192}}},
    };
    CHECK(parameters->size() == expected.size());
    for (const auto& [name, shapes] : expected) {
      CAPTURE(name);
      const ParameterSpec& parameter = parameter_of(*parameters, name);
      CHECK(parameter.full_shape == shapes.first);
      CHECK(parameter.local_shape == shapes.second);
      CHECK(parameter.dtype == (name.ends_with("bias") ? DType::f32 : DType::bf16));
    }
    CHECK(parameters->front().name == "model.embed_tokens.weight"); // by first slot
    CHECK(parameters->back().name == "lm_head.weight");
  }
}

TEST_CASE("by slice, a worker's packed rows are its part of q, then of k, then of v") {
  const auto slots = checkpoint();
  const auto worker = Side::compile(worker_rules(), Side::Role::worker);
  REQUIRE(worker);
  const auto second = read_by(*worker, slots, 1);
  CHECK(rows_of(second, layer0 + "self_attn.q_proj.weight") == std::vector<Segment>{{96, 96, 0, 192}});
  CHECK(rows_of(second, layer0 + "self_attn.k_proj.weight") == std::vector<Segment>{{32, 32, 96 * 192, 192}});
  CHECK(rows_of(second, layer0 + "self_attn.v_proj.weight") == std::vector<Segment>{{32, 32, 128 * 192, 192}});
  CHECK(rows_of(second, layer0 + "mlp.gate_proj.weight") == std::vector<Segment>{{256, 256, 0, 192}});
  CHECK(rows_of(second, layer0 + "mlp.up_proj.weight") == std::vector<Segment>{{256, 256, 256 * 192, 192}});
  CHECK(rows_of(second, layer2 + "mlp.experts.5.gate_proj.weight") ==
        std::vector<Segment>{{64, 64, 5 * 128 * 192, 192}});
  CHECK(rows_of(second, layer2 + "mlp.experts.5.up_proj.weight") ==
        std::vector<Segment>{{64, 64, 5 * 128 * 192 + 64 * 192, 192}});
  CHECK(rows_of(second, "lm_head.weight") == std::vector<Segment>{{130, 129, 0, 192}});
  const auto o_proj = regions_of(second, layer0 + "self_attn.o_proj.weight");
  REQUIRE(o_proj.size() == 1);
  CHECK(o_proj.front().dims == std::vector<std::vector<Segment>>{{{0, 192, 0, 96}}, {{96, 96, 0, 1}}});
  const auto w2 = regions_of(second, layer2 + "mlp.experts.5.down_proj.weight");
  REQUIRE(w2.size() == 1);
  CHECK(w2.front().base == 5 * 192 * 64);
  CHECK(w2.front().dims == std::vector<std::vector<Segment>>{{{0, 192, 0, 64}}, {{64, 64, 0, 1}}});
}

TEST_CASE("a transposed w2 is read with its strides swapped") {
  const auto slots = checkpoint();
  const auto worker = Side::compile(worker_rules(true), Side::Role::worker);
  REQUIRE(worker);
  const auto parameters = worker->worker_parameters(slots, 1);
  REQUIRE(parameters);
  CHECK(parameter_of(*parameters, layer2 + "mlp.experts.w2").full_shape == Shape{8, 128, 192});
  CHECK(parameter_of(*parameters, layer2 + "mlp.experts.w2").local_shape == Shape{8, 64, 192});
  const auto w2 = regions_of(read_by(*worker, slots, 1), layer2 + "mlp.experts.3.down_proj.weight");
  REQUIRE(w2.size() == 1);
  CHECK(w2.front().base == 3 * 64 * 192);
  CHECK(w2.front().dims == std::vector<std::vector<Segment>>{{{0, 192, 0, 1}}, {{64, 64, 0, 192}}});
}

TEST_CASE("the dp axis of a worker's mesh replicates") {
  const auto slots = checkpoint();
  SideRules rules = worker_rules();
  const auto one = Side::compile(rules, Side::Role::worker);
  rules.mesh = *Mesh::make({{"dp", 3}, {"tp", 2}});
  const auto three = Side::compile(rules, Side::Role::worker);
  REQUIRE((one && three));
  for (Index index = 0; index < 6; ++index)
    CHECK(read_by(*three, slots, index) == read_by(*one, slots, index % 2));
}

TEST_CASE("what four ranks provide and two workers read compiles to a plan") {
  const auto trainer = Side::compile(trainer_rules(), Side::Role::trainer);
  REQUIRE(trainer);
  std::vector<Declaration> ranks;
  for (Index rank = 0; rank < 4; ++rank)
    ranks.push_back(*trainer->declare_trainer(trainer_tensors(), rank));
  const auto slots = catalogue(ranks);
  REQUIRE(slots);
  const auto expected = checkpoint();
  REQUIRE(slots->size() == expected.size());
  for (const SlotSpec& slot : expected)
    CHECK(std::count(slots->begin(), slots->end(), slot) == 1);
  for (bool transpose_w2 : {false, true}) {
    const auto worker = Side::compile(worker_rules(transpose_w2), Side::Role::worker);
    REQUIRE(worker);
    const std::vector<Declaration> workers{read_by(*worker, *slots, 0), read_by(*worker, *slots, 1)};
    const auto plan = compile_plan(ranks, workers, worker->rules().unused, 1 << 20);
    INFO((plan ? "" : plan.error().message));
    REQUIRE(plan);
    Index provided = 0;
    for (const auto& blocks : plan->ranks)
      for (const Block& block : blocks)
        provided += element_count(block);
    Index all = 0;
    for (const SlotSpec& slot : *slots)
      all += *element_count(slot.shape);
    CHECK(provided == all);
  }
}
