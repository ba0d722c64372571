// The proof's reading of what maps and placements can say (design, section 4), against values written by hand.
#include "catch.hpp"
#include "proof_values.hpp"

using namespace deltawire;
using namespace deltawire::replay;
using proof::CutsText;
using proof::MapText;
using proof::PlacementText;
using proof::SideText;
using test::check_refused;
using test::counting_file;
using test::Held;
using test::ScratchFolder;

namespace {

MapText map(std::string parameter, std::string slot, std::string slice = "", std::string view = "") {
  MapText text;
  text.parameter = std::move(parameter);
  text.slot = std::move(slot);
  text.slice = std::move(slice);
  text.view = std::move(view);
  text.where = "f.toml:7";
  return text;
}

MapText slot_part(std::string parameter, std::string slot, std::string slot_slice, std::string slot_view = "") {
  MapText text = map(std::move(parameter), std::move(slot));
  text.slot_slice = std::move(slot_slice);
  text.slot_view = std::move(slot_view);
  return text;
}

PlacementText placed(std::vector<std::string> shard, std::string parameter = "*") {
  return {std::move(parameter), {std::move(shard), {}, {}, {}}, "f.toml:9"};
}

void check_holds(const SideText& trainer, const SideText& worker, const checkpoint::Checkpoint& file,
                 std::uint32_t index, std::vector<Held> held) {
  CAPTURE(index);
  test::check_holds(Proof::make(trainer, worker, file, index), file, std::move(held));
}

} // namespace

// ------------------------------------------------------------------------------------------------------------ maps

TEST_CASE("a slice with steps takes every n-th position") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"gate", {3, 2}}, {"up", {3, 2}}}, true);
  SideText worker;
  worker.maps = {map("gate_up", "gate", "[0:6:2, :]"), map("gate_up", "up", "[1:6:2, :]")};
  check_holds({}, worker, file, 0, {{"gate_up", {6, 2}, {0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}}});
}

TEST_CASE("a view may name what is left of a dim, and which parts are one dim") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"q", {4, 2}}, {"k", {2, 2}}}, true);
  SideText worker; // two groups of two rows of q and one of k
  worker.maps = {map("qk", "q", "[:, 0:2, :]", "[(2, :), 2]"), map("qk", "k", "[:, 2, :]", "[(2, :), :]")};
  worker.parameters = {{"qk", layout::Shape{6, 2}, false}};
  check_holds({}, worker, file, 0, {{"qk", {6, 2}, {0, 1, 2, 3, 8, 9, 4, 5, 6, 7, 10, 11}}});
}

TEST_CASE("permute orders the kept dims, and parts that are no longer in order stay apart") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {2, 3, 2}}});
  SideText worker;
  MapText moved = map("p", "w");
  moved.permute = {2, 0, 1}; // w[i, j, k] = p[j, k, i]
  worker.maps = {moved};
  check_holds({}, worker, file, 0, {{"p", {3, 2, 2}, {0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11}}});

  const auto apart = counting_file(folder, {{"w", {3, 2}}});
  MapText swapped = map("p", "w", "", "[2, 3]"); // p is [6], w[i, j] = p[3 * j + i]
  swapped.permute = {1, 0};
  worker.maps = {swapped};
  worker.parameters = {{"p", layout::Shape{6}, false}};
  check_holds({}, worker, apart, 0, {{"p", {6}, {0, 2, 4, 1, 3, 5}}});
  worker.mesh = {{"tp", 2}};
  worker.placements = {placed({"tp:0 cyclic"})}; // a dim whose parts go to two dims, and which is cut across them
  check_holds({}, worker, apart, 0, {{"p", {3}, {0, 4, 3}}});
  check_holds({}, worker, apart, 1, {{"p", {3}, {2, 1, 5}}});
}

TEST_CASE("a fused slot is filled by several tensors and read by several parameters") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"gate", {2, 2}}, {"up", {2, 2}}}, true);
  SideText trainer;
  trainer.maps = {slot_part("gate", "fused", "[0:2, :]"), slot_part("up", "fused", "[2:4, :]")};
  check_holds(trainer, {}, file, 0, {{"fused", {4, 2}, {0, 1, 2, 3, 4, 5, 6, 7}}});
  SideText worker;
  worker.maps = {slot_part("a", "fused", "[0:4:2, :]"), slot_part("b", "fused", "[:, 1]")};
  worker.maps[1].where = "f.toml:8";
  check_holds(trainer, worker, file, 0, {{"a", {2, 2}, {0, 1, 4, 5}}, {"b", {4}, {1, 3, 5, 7}}});
  trainer.maps[1].slot_slice = "[1:3, :]";
  check_refused(Proof::make(trainer, {}, file, 0), "slot 'fused' is filled by tensor 'gate' and by tensor 'up'");
  trainer.maps[1].slot_slice = "[3:5, :]";
  check_refused(Proof::make(trainer, {}, file, 0), "slot 'fused' has 10 elements, and tensors fill 8 of them");
}

TEST_CASE("grouped qkv in the checkpoint is read as q, k and v") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"qkv", {8}}}); // q0 q1 k0 v0 q2 q3 k1 v1
  SideText worker;
  worker.maps = {slot_part("q", "qkv", "[:, 0:2]", "[2, 4]"), slot_part("k", "qkv", "[:, 2]", "[2, 4]"),
                 slot_part("v", "qkv", "[:, 3]", "[2, 4]")};
  check_holds({}, worker, file, 0, {{"q", {4}, {0, 1, 4, 5}}, {"k", {2}, {2, 6}}, {"v", {2}, {3, 7}}});
  SideText trainer; // the other way round: three tensors fill the grouped slot
  trainer.maps = worker.maps;
  const auto apart = counting_file(folder, {{"q", {4}}, {"k", {2}}, {"v", {2}}}, true);
  check_holds(trainer, {}, apart, 0, {{"qkv", {8}, {0, 1, 4, 6, 2, 3, 5, 7}}});
}

TEST_CASE("a name runs over a dim of the parameter or of the slot, or over its limits") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"stack", {3, 2}}});
  SideText worker;
  worker.maps = {map("w.{e}", "stack")};
  worker.maps[0].slot_slice = "[e, :]";
  check_holds({}, worker, file, 0, {{"w.0", {2}, {0, 1}}, {"w.1", {2}, {2, 3}}, {"w.2", {2}, {4, 5}}});
  worker.maps[0].slot_slice = "[e=1:2, :]";
  check_holds({}, worker, file, 0, {{"w.1", {2}, {2, 3}}});
  worker.maps = {map("twice", "stack", "[e=0:2, :, :]")}; // two copies of one slot
  check_holds({}, worker, file, 0, {{"twice", {2, 3, 2}, {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}}});
  SideText trainer;
  const auto apart = counting_file(folder, {{"w.0", {2}}, {"w.1", {2}}}, true);
  trainer.maps = {map("w.{e}", "stack")};
  trainer.maps[0].slot_slice = "[e, :]";
  check_holds(trainer, {}, apart, 0, {{"stack", {2, 2}, {0, 1, 2, 3}}});
  worker.maps = {map("w{e=0:2}", "w.{e}"), map("other.{e}", "w.{e=1:2}")};
  check_holds({}, worker, apart, 0, {{"other.1", {2}, {2, 3}}, {"w0", {2}, {0, 1}}, {"w1", {2}, {2, 3}}});
}

TEST_CASE("a slot's name computes with the coordinates of the trainer's mesh") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"layers.0.w", {2}}, {"layers.1.w", {2}}}, true);
  SideText trainer; // each stage counts its layers from 0, and the file has one tensor a name
  trainer.mesh = {{"pp", 2}, {"fsdp", 2}};
  trainer.maps = {map("layers.{l}.w", "model.{l + 2*pp}.w")};
  check_holds(
    trainer, {}, file, 0,
    {{"model.0.w", {2}, {0, 1}}, {"model.1.w", {2}, {2, 3}}, {"model.2.w", {2}, {0, 1}}, {"model.3.w", {2}, {2, 3}}});
  trainer.placements = {placed({}, "layers.1.*")};
  trainer.placements[0].cuts.on = {{"pp", {1}}};
  check_holds(trainer, {}, file, 0,
              {{"model.0.w", {2}, {0, 1}}, {"model.2.w", {2}, {0, 1}}, {"model.3.w", {2}, {2, 3}}});
  SideText last; // the stage is named alone
  last.mesh = {{"pp", 2}};
  last.maps = {map("layers.{l}.w", "{pp}.{l}.w")};
  check_holds(last, {}, file, 0,
              {{"0.0.w", {2}, {0, 1}}, {"0.1.w", {2}, {2, 3}}, {"1.0.w", {2}, {0, 1}}, {"1.1.w", {2}, {2, 3}}});
}

TEST_CASE("a worker's experts are those that its coordinate computes") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"e.0", {2}}, {"e.1", {2}}, {"e.2", {2}}, {"e.3", {2}}}, true);
  SideText worker;
  worker.mesh = {{"ep", 2}};
  worker.maps = {map("stack", "e.{e + 2*ep}", "[e=0:2, :]")};
  check_holds({}, worker, file, 0, {{"stack", {2, 2}, {0, 1, 2, 3}}});
  check_holds({}, worker, file, 1, {{"stack", {2, 2}, {4, 5, 6, 7}}});
  const auto fused = counting_file(folder, {{"all", {4, 2}}});
  worker.maps = {map("stack", "all", "[e=0:2, :]")};
  worker.maps[0].slot_slice = "[e + 2*ep, :]";
  check_holds({}, worker, fused, 1, {{"stack", {2, 2}, {4, 5, 6, 7}}});
  worker.maps = {map("mine", "all")};
  worker.maps[0].slot_slice = "[ep, :]";
  check_holds({}, worker, fused, 1, {{"mine", {2}, {2, 3}}});
}

// ------------------------------------------------------------------------------------------------------- placement

TEST_CASE("a cyclic cut deals round-robin, and may follow another cut") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {7}}});
  SideText worker;
  worker.mesh = {{"a", 2}, {"b", 2}};
  worker.placements = {placed({"a:0 cyclic"})};
  check_holds({}, worker, file, 0, {{"w", {4}, {0, 2, 4, 6}}});
  check_holds({}, worker, file, 2, {{"w", {3}, {1, 3, 5}}});
  worker.placements = {placed({"a:0 cyclic", "b:0"})};
  check_holds({}, worker, file, 1, {{"w", {2}, {4, 6}}});
  worker.placements = {placed({"b:0", "a:0 cyclic"})}; // b0 holds 0 1 2 3
  check_holds({}, worker, file, 2, {{"w", {2}, {1, 3}}});
}

TEST_CASE("declared sizes cut unevenly and must sum to what is cut") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {5, 2}}});
  SideText worker;
  worker.mesh = {{"tp", 3}};
  worker.placements = {placed({"tp:0"})};
  worker.placements[0].cuts.sizes = {{"tp", {1, 0, 4}}};
  check_holds({}, worker, file, 0, {{"w", {1, 2}, {0, 1}}});
  check_holds({}, worker, file, 1, {{"w", {0, 2}, {}}});
  check_holds({}, worker, file, 2, {{"w", {4, 2}, {2, 3, 4, 5, 6, 7, 8, 9}}});
  worker.placements[0].cuts.sizes = {{"tp", {1, 1, 4}}};
  check_refused(Proof::make({}, worker, file, 0), "axis 'tp' of 'w': sizes [1, 1, 4]");
}

TEST_CASE("a flat cut takes an interval of the elements that the cuts before it left") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {3, 3}}, {"scalar", {}}});
  SideText worker;
  worker.mesh = {{"tp", 2}, {"fsdp", 2}};
  worker.placements = {placed({"fsdp:flat"})};
  check_holds({}, worker, file, 0, {{"w", {5}, {0, 1, 2, 3, 4}}, {"scalar", {}, {0}}});
  check_holds({}, worker, file, 1, {{"w", {4}, {5, 6, 7, 8}}, {"scalar", {}, {0}}});
  worker.placements = {placed({"tp:1", "fsdp:flat"})}; // tp0 holds columns 0 and 1: 0 1 3 4 6 7
  check_holds({}, worker, file, 1, {{"w", {3}, {4, 6, 7}}, {"scalar", {}, {0}}});
  check_holds({}, worker, file, 3, {{"w", {1}, {8}}, {"scalar", {}, {0}}});
  worker.placements = {placed({"fsdp:flat", "tp:0"})};
  check_refused(Proof::make({}, worker, file, 0), "axis 'tp' of 'w': cuts after a flat cut");
}

TEST_CASE("a flat cut of a transposed and padded parameter tells local from full coordinates") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {2, 2}}});
  SideText worker;
  worker.mesh = {{"fsdp", 2}};
  worker.placements = {placed({"fsdp:flat"})};
  worker.maps = {map("p", "w", "[0:2, 0:2]")};
  worker.maps[0].transpose = true;
  worker.parameters = {{"p", layout::Shape{3, 2}, true}};
  check_holds({}, worker, file, 0, {{"p", {3}, {0, 2, 1}}});
  check_holds({}, worker, file, 1, {{"p", {3}, {3, 0, 0}}});
  const auto proof = Proof::make({}, worker, file, 1);
  REQUIRE(proof);
  const test::Values wrong = {3, 0, 7};
  const std::vector<WorkerTensor> held = {{"p", DType::u16, {3}, test::bytes_of(wrong)}};
  const auto compared = proof->compare(file, held);
  REQUIRE(!compared);
  CHECK_THAT(compared.error().message,
             test::contains("local [2], full [2, 1]: holds 0x0007, must be 0x0000 (padding)"));
}

TEST_CASE("named segments are cut each on its own") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {10}}});
  SideText worker;
  worker.mesh = {{"tp", 2}};
  worker.placements = {placed({"tp:0 by [4, 2, 4]"})};
  check_holds({}, worker, file, 0, {{"w", {5}, {0, 1, 4, 6, 7}}});
  check_holds({}, worker, file, 1, {{"w", {5}, {2, 3, 5, 8, 9}}});
  worker.placements = {placed({"tp:0 by [4, 2]"})};
  check_refused(Proof::make({}, worker, file, 0), "segments [4, 2] are not those of dim 0");
}

TEST_CASE("joined axes cut as one, row-major over those they join") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {4}}});
  SideText worker;
  worker.mesh = {{"dp", 2}, {"tp", 2}};
  worker.axes = {{"ep", {"tp", "dp"}}};
  worker.placements = {placed({"ep:0"})};
  check_holds({}, worker, file, 1, {{"w", {1}, {2}}}); // dp 0, tp 1
  check_holds({}, worker, file, 2, {{"w", {1}, {1}}});
  worker.axes.clear();
  worker.placements[0].cuts.axes = {{"ep", {"dp", "tp"}}};
  check_holds({}, worker, file, 2, {{"w", {1}, {2}}});
  worker.placements[0].cuts.shard = {"ep:0", "tp:0"};
  check_refused(Proof::make({}, worker, file, 0), "axis 'tp' cuts twice");
}

TEST_CASE("only the coordinates named by `on` hold a parameter") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {2}}, {"head", {2}}}, true);
  SideText worker;
  worker.mesh = {{"pp", 3}};
  worker.placements = {placed({}, "head")};
  worker.placements[0].cuts.on = {{"pp", {0, 2}}};
  check_holds({}, worker, file, 0, {{"head", {2}, {2, 3}}, {"w", {2}, {0, 1}}});
  check_holds({}, worker, file, 1, {{"w", {2}, {0, 1}}});
  check_holds({}, worker, file, 2, {{"head", {2}, {2, 3}}, {"w", {2}, {0, 1}}});
}

TEST_CASE("a map's own shard replaces the cuts for its slice: fewer KV heads than ranks") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"q", {8}}, {"k", {2}}}, true);
  SideText worker;
  worker.mesh = {{"tp_kv", 2}, {"tp_rep", 2}};
  worker.placements = {placed({"tp_kv:0 by slice", "tp_rep:0 by slice"})};
  worker.maps = {map("qk", "q", "[0:8]"), map("qk", "k", "[8:10]")};
  worker.maps[1].own = CutsText{{"tp_kv:0"}, {}, {}, {}};
  check_holds({}, worker, file, 0, {{"qk", {3}, {0, 1, 8}}});
  check_holds({}, worker, file, 1, {{"qk", {3}, {2, 3, 8}}});
  check_holds({}, worker, file, 3, {{"qk", {3}, {6, 7, 9}}});
  worker.maps[1].own->shard.clear(); // all of k on each
  check_holds({}, worker, file, 1, {{"qk", {4}, {2, 3, 8, 9}}});
  worker.placements = {placed({"tp_kv:0"})};
  worker.maps[1].own->shard = {"tp_rep:0"};
  check_refused(Proof::make({}, worker, file, 0), "cuts whole what a map cuts on its own");
  worker.placements.clear(); // q is whole, k cut
  check_holds({}, worker, file, 1, {{"qk", {9}, {0, 1, 2, 3, 4, 5, 6, 7, 9}}});
}

// ------------------------------------------------------------------------------------------------------- topology

TEST_CASE("every rule of a topology reaches the proof") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"q", {4}}, {"k", {2, 3}}, {"big", {8}}}, true);
  config::Topology topology;
  topology.worker.mesh = *layout::Mesh::make({{"kv", 2}, {"rep", 2}});
  topology.worker.axes = {{"tp", {"kv", "rep"}}};
  layout::PlacementRule packed{"p", {"tp:0 by slice"}, "f.toml:1"};
  layout::PlacementRule uneven{"big", {"all:0"}, "f.toml:2"};
  uneven.options.axes = {{"all", {"kv", "rep"}}};
  uneven.options.sizes = {{"all", {1, 2, 2, 3}}};
  layout::PlacementRule first{"third", {}, "f.toml:3"};
  first.options.on = {{"kv", {0}}};
  topology.worker.placements = {packed, uneven, first};
  layout::MapRule q{"p", "q", "", "[0:4]", false, "f.toml:4"};
  layout::MapRule k{"p", "k", "", "[4:6]", false, "f.toml:5"};
  k.slot_slice = "[:, 0]";
  k.shard = {"kv:0"};
  layout::MapRule third{"third", "k", "", "", false, "f.toml:6"};
  third.slot_view = "[2, (3, 1)]";
  third.slot_slice = "[:, 1:3, 0]";
  third.permute = {1, 0};
  topology.worker.maps = {q, k, third};
  const auto holds = [&](std::uint32_t index, std::vector<Held> held) {
    CAPTURE(index);
    test::check_holds(Proof::make(topology, file, index), file, std::move(held));
  };
  holds(0, {{"big", {1}, {10}}, {"p", {2}, {0, 4}}, {"third", {2, 2}, {5, 8, 6, 9}}});
  holds(1, {{"big", {2}, {11, 12}}, {"p", {2}, {1, 4}}, {"third", {2, 2}, {5, 8, 6, 9}}});
  holds(3, {{"big", {3}, {15, 16, 17}}, {"p", {2}, {3, 7}}});
}
