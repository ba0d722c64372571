// The proof of `deltawire replay` against values written by hand, and against the real trace's hf/ file, which holds
// the same weights unfused: slices of it must be what the proof expects.
#include "catch.hpp"
#include "config/topology.hpp"
#include "proof_values.hpp"
#include "random.hpp"
#include "replay/proof/pattern.hpp"
#include "replay/proof/text.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

using namespace deltawire;
using namespace deltawire::replay;
using layout::MapRule;
using test::bytes_of;
using test::contains;
using test::counting_file;
using test::Held;
using test::ScratchFolder;
using test::Values;

namespace {

MapRule map_rule(std::string parameter, std::string slot, std::string slice = "", std::string view = "",
                 bool transpose = false) {
  return {std::move(parameter), std::move(slot), std::move(view), std::move(slice), transpose, "f.toml:7"};
}

config::Topology topology_on(std::vector<layout::Axis> worker_mesh, std::vector<std::string> cuts = {}) {
  config::Topology topology;
  topology.worker.mesh = *layout::Mesh::make(std::move(worker_mesh));
  if (!cuts.empty())
    topology.worker.placements = {{"*", std::move(cuts), "f.toml:9"}};
  return topology;
}

void check_holds(const config::Topology& topology, const checkpoint::Checkpoint& file, std::uint32_t index,
                 std::vector<Held> held) {
  CAPTURE(index);
  test::check_holds(Proof::make(topology, file, index), file, std::move(held));
}

void check_refused(const config::Topology& topology, const checkpoint::Checkpoint& file, const std::string& why,
                   std::uint32_t index = 0) {
  test::check_refused(Proof::make(topology, file, index), why);
}

} // namespace

TEST_CASE("the proof's patterns: a star is anything, a name is a piece, or digits inside one") {
  const auto matches = [](const char* pattern, const char* name) {
    return proof::NamePattern::parse(pattern)->match(name).has_value();
  };
  CHECK(matches("*", "a.b"));
  CHECK(matches("*.weight", "a.b.weight"));
  CHECK(!matches("*.weight", "weight"));
  CHECK(!matches("a.b", "axb"));
  CHECK(matches("a.{l}.b", "a.word.b"));
  CHECK(!matches("a.{l}.b", "a..b"));
  CHECK(!matches("a.{l}.b", "a.1.2.b"));
  CHECK(matches("w{e}", "w10"));
  CHECK(!matches("w{e}", "wx"));
  CHECK(matches("{l}.x.{l}", "3.x.3"));
  CHECK(!matches("{l}.x.{l}", "3.x.4"));
  CHECK(matches("{l}1.{l}", "31.3"));
  const auto found = proof::NamePattern::parse("*.layers.{l}.w{e}.*")->match("m.layers.7.w31.bias");
  REQUIRE(found);
  CHECK(*proof::NamePattern::parse("x{e}.*.{l}.*")->fill(found->names, found->stars) == "x31.m.7.bias");
  CHECK(!proof::NamePattern::parse("{x}")->fill(found->names, found->stars));
  CHECK(!proof::NamePattern::parse("a{b"));
  for (const char* pattern : {"a.{l + }", "a.{8*l*pp}", "a.{}", "a.{l=3}"})
    CHECK(!proof::NamePattern::parse(pattern));
  for (const char* slice : {"0:4", "[0:4, ]", "[4:4]", "[1:]", "[-1]", "[0:8:0]", "[e=3]", "[e=0:8:2]"})
    CHECK(!proof::parse_slice(slice));
  for (const char* view : {"8", "[0]", "[]", "[a]", "[(2, :, :)]", "[(2, 3]", "[()]"})
    CHECK(!proof::parse_view(view));
  for (const char* cut : {"tp", "tp:x", "tp:0 cyclic by slice", "fsdp:flat cyclic", "tp:0 by [0]", "tp:0 by 2"})
    CHECK(!proof::parse_cut(cut));
}

TEST_CASE("without maps a worker holds every tensor under its own name, cut in ceil pieces") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {10}}, {"scalar", {}}});
  const auto four = topology_on({{"tp", 4}}, {"tp:0"});
  check_holds(four, file, 0, {{"w", {3}, {0, 1, 2}}, {"scalar", {}, {0}}});
  check_holds(four, file, 1, {{"w", {3}, {3, 4, 5}}, {"scalar", {}, {0}}});
  check_holds(four, file, 3, {{"w", {1}, {9}}, {"scalar", {}, {0}}});
  const auto eight = topology_on({{"tp", 8}}, {"tp:0"}); // pieces of 2: the last three have none
  check_holds(eight, file, 4, {{"w", {2}, {8, 9}}, {"scalar", {}, {0}}});
  check_holds(eight, file, 5, {{"w", {0}, {}}, {"scalar", {}, {0}}});
  check_holds(eight, file, 7, {{"w", {0}, {}}, {"scalar", {}, {0}}});
}

TEST_CASE("columns, and two axes on two dims, take the elements one would take by hand") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {4, 2, 3}}});
  const auto topology = topology_on({{"ep", 2}, {"fsdp", 2}}, {"ep:0", "fsdp:1"});
  check_holds(topology, file, 3, {{"w", {2, 1, 3}, {15, 16, 17, 21, 22, 23}}});
  check_holds(topology_on({{"tp", 2}}, {"tp:2"}), file, 1, {{"w", {4, 2, 1}, {2, 5, 8, 11, 14, 17, 20, 23}}});
}

TEST_CASE("two axes on one dim cut in the order given, and an axis that cuts nothing replicates") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {6}}});
  const auto strided = topology_on({{"dp", 2}, {"tp", 2}}, {"tp:0", "dp:0"});
  check_holds(strided, file, 0, {{"w", {2}, {0, 1}}});
  check_holds(strided, file, 1, {{"w", {2}, {3, 4}}});
  check_holds(strided, file, 2, {{"w", {1}, {2}}});
  check_holds(strided, file, 3, {{"w", {1}, {5}}});
  const auto replicated = topology_on({{"dp", 2}, {"tp", 2}}, {"tp:0"});
  check_holds(replicated, file, 1, {{"w", {3}, {3, 4, 5}}});
  check_holds(replicated, file, 2, {{"w", {3}, {0, 1, 2}}});
}

TEST_CASE("a fused [gate; up] under TP2 by slice holds gate rows before up rows") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"fused", {8, 2}}});
  auto topology = topology_on({{"tp", 2}}, {"tp:0 by slice"});
  topology.trainer.maps = {map_rule("fused", "gate", "[0:4, :]"), map_rule("fused", "up", "[4:8, :]")};
  topology.worker.maps = {map_rule("gate_up", "gate", "[0:4, :]"), map_rule("gate_up", "up", "[4:8, :]")};
  check_holds(topology, file, 0, {{"gate_up", {4, 2}, {0, 1, 2, 3, 8, 9, 10, 11}}});
  check_holds(topology, file, 1, {{"gate_up", {4, 2}, {4, 5, 6, 7, 12, 13, 14, 15}}});
  topology.worker.placements = {{"*", {"tp:0"}, "f.toml:9"}}; // a plain cut gives the gate to one and up to the other
  check_holds(topology, file, 1, {{"gate_up", {4, 2}, {8, 9, 10, 11, 12, 13, 14, 15}}});
}

TEST_CASE("an empty packed parameter is cut by slice as a full one would be") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"a", {3, 0}}, {"b", {5, 0}}});
  auto topology = topology_on({{"tp", 2}}, {"tp:0 by slice"});
  topology.worker.maps = {map_rule("packed", "a", "[0:3, :]"), map_rule("packed", "b", "[3:8, :]")};
  check_holds(topology, file, 0, {{"packed", {5, 0}, {}}});
  check_holds(topology, file, 1, {{"packed", {3, 0}, {}}});
}

TEST_CASE("grouped qkv becomes packed qkv under TP2") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"l.0.qkv", {8}}}); // q0 q1 k0 v0 q2 q3 k1 v1
  auto topology = topology_on({{"tp", 2}}, {"tp:0 by slice"});
  topology.trainer.maps = {map_rule("l.{l}.qkv", "l.{l}.q", "[:, 0:2]", "[2, 4]"),
                           map_rule("l.{l}.qkv", "l.{l}.k", "[:, 2]", "[2, 4]"),
                           map_rule("l.{l}.qkv", "l.{l}.v", "[:, 3]", "[2, 4]")};
  check_holds(topology_on({{"tp", 1}}), file, 0, {{"l.0.qkv", {8}, {0, 1, 2, 3, 4, 5, 6, 7}}});
  auto apart = topology;
  apart.worker = topology_on({{"tp", 1}}).worker;
  check_holds(apart, file, 0, {{"l.0.q", {4}, {0, 1, 4, 5}}, {"l.0.k", {2}, {2, 6}}, {"l.0.v", {2}, {3, 7}}});
  topology.worker.maps = {map_rule("l.{l}.packed", "l.{l}.q", "[0:4]"), map_rule("l.{l}.packed", "l.{l}.k", "[4:6]"),
                          map_rule("l.{l}.packed", "l.{l}.v", "[6:8]")};
  check_holds(topology, file, 0, {{"l.0.packed", {4}, {0, 1, 2, 3}}});
  check_holds(topology, file, 1, {{"l.0.packed", {4}, {4, 5, 6, 7}}});
  // The same with odd sizes: 3 rows of q are cut into 2 and 1, 2 of k into 1 and 1.
  const auto odd = counting_file(folder, {{"q", {3}}, {"k", {2}}});
  auto packed = topology_on({{"tp", 2}}, {"tp:0 by slice"});
  packed.worker.maps = {map_rule("packed", "q", "[0:3]"), map_rule("packed", "k", "[3:5]")};
  check_holds(packed, odd, 0, {{"packed", {3}, {0, 1, 0}}});
  check_holds(packed, odd, 1, {{"packed", {2}, {2, 1}}});
}

TEST_CASE("experts are stacked by number and may be transposed") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"experts", {2, 2, 3}}});
  auto topology = topology_on({{"tp", 2}}, {"tp:2"});
  topology.trainer.maps = {map_rule("experts", "down.{e}", "[e, :, :]")};
  topology.worker.maps = {map_rule("w2", "down.{e}", "[e, :, :]", "", true)};
  check_holds(topology, file, 0, {{"w2", {2, 3, 1}, {0, 1, 2, 6, 7, 8}}});
  check_holds(topology, file, 1, {{"w2", {2, 3, 1}, {3, 4, 5, 9, 10, 11}}});
  topology.worker.placements.clear();
  check_holds(topology, file, 0, {{"w2", {2, 3, 2}, {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}}});
  // The trainer may be the transposed one: the slot is then [3, 2].
  topology.trainer.maps = {map_rule("experts", "down.{e}", "[e, :, :]", "", true)};
  topology.worker.maps = {map_rule("w2", "down.{e}", "[e, :, :]")};
  check_holds(topology, file, 0, {{"w2", {2, 3, 2}, {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}}});
  // Some experts only; the others stay by themselves.
  topology.worker.maps = {map_rule("w2", "down.{e}", "[e=0:1, :, :]")};
  check_holds(topology, file, 0, {{"w2", {1, 3, 2}, {0, 3, 1, 4, 2, 5}}, {"down.1", {3, 2}, {6, 9, 7, 10, 8, 11}}});
}

TEST_CASE("by slice twice cuts each piece again, and a later whole cut takes the packed positions") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"p", {12}}});
  auto topology = topology_on({{"a", 2}, {"b", 2}}, {"a:0 by slice", "b:0 by slice"});
  topology.trainer.maps = {map_rule("p", "x", "[0:4]"), map_rule("p", "y", "[4:12]")};
  topology.worker.maps = topology.trainer.maps;
  check_holds(topology, file, 0, {{"p", {3}, {0, 4, 5}}});
  check_holds(topology, file, 1, {{"p", {3}, {1, 6, 7}}});
  check_holds(topology, file, 3, {{"p", {3}, {3, 10, 11}}});
  topology.worker.placements = {{"*", {"a:0 by slice", "b:0"}, "f.toml:9"}}; // a0 packs 0 1 4 5 6 7
  check_holds(topology, file, 0, {{"p", {3}, {0, 1, 4}}});
  check_holds(topology, file, 1, {{"p", {3}, {5, 6, 7}}});
}

TEST_CASE("a worker's view tells its shape, and a tied head reads one slot twice") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"q", {4}}, {"k", {2}}, {"v", {2}}});
  auto topology = topology_on({{"tp", 1}});
  topology.worker.maps = {map_rule("qkv", "q", "[:, 0:2]", "[2, 4]"), map_rule("qkv", "k", "[:, 2]", "[2, 4]"),
                          map_rule("qkv", "v", "[:, 3]", "[2, 4]")};
  check_holds(topology, file, 0, {{"qkv", {8}, {0, 1, 0, 0, 2, 3, 1, 1}}});

  const auto tied = counting_file(folder, {{"embed", {3}}});
  topology.worker.maps = {map_rule("embed", "embed"), map_rule("head", "embed")};
  check_holds(topology, tied, 0, {{"embed", {3}, {0, 1, 2}}, {"head", {3}, {0, 1, 2}}});
}

TEST_CASE("padding must be zero bits, and is legal only where it is declared") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {5}}});
  auto topology = topology_on({{"tp", 2}}, {"tp:0"});
  topology.worker.maps = {map_rule("w", "w", "[0:5]")};
  topology.worker.parameters = {{"w", layout::Shape{8}, true, "f.toml:12"}};
  check_holds(topology, file, 0, {{"w", {4}, {0, 1, 2, 3}}});
  check_holds(topology, file, 1, {{"w", {4}, {4, 0, 0, 0}}});
  topology.worker.parameters[0].padding = false;
  check_refused(topology, file, "no slot gives element [5]");
}

TEST_CASE("unused slots are not held") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {2}}, {"mtp.w", {2}}});
  auto topology = topology_on({});
  topology.worker.unused = {"mtp.*"};
  check_holds(topology, file, 0, {{"w", {2}, {0, 1}}});
}

TEST_CASE("rules that do not say what an element must be are refused") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"a", {4}}, {"b", {4}}});
  check_refused(topology_on({{"tp", 2}}), file, "worker 2 is not in the worker's mesh of 2", 2);
  check_refused(topology_on({{"tp", 2}}, {"ep:0"}), file, "no axis 'ep'");
  check_refused(topology_on({{"tp", 2}}, {"tp:1"}), file, "axis 'tp' cuts dim 1 of 'a'");
  check_refused(topology_on({{"tp", 2}}, {"tp:0", "tp:0"}), file, "axis 'tp' cuts twice");
  check_refused(topology_on({{"a", 2}, {"b", 2}}, {"a:0", "b:0 by slice"}), file, "axis 'b' cuts by slice after");
  auto topology = topology_on({});
  topology.trainer.maps = {map_rule("a", "b")};
  check_refused(topology, file, "slot 'b' is filled by tensor 'a' and by tensor 'b'");
  topology.trainer.maps = {map_rule("a", "c", "[0:5]")};
  check_refused(topology, file, "f.toml:7: tensor 'a'");
  topology.trainer.maps = {map_rule("a", "c", "[:, :]", "[3, 2]")};
  check_refused(topology, file, "view [3, 2] does not split [4]");
  topology.trainer.maps.clear();
  topology.worker.maps = {map_rule("p", "a", "[0:4]"), map_rule("p", "b", "[2:6]")};
  check_refused(topology, file, "element [2] is given by two slots");
  topology.worker.maps = {map_rule("p", "a", "[0:4]"), map_rule("p", "b", "[5:9]")};
  check_refused(topology, file, "no slot gives element [4]");
  topology.worker.maps = {map_rule("p", "a", "[0:3]")};
  check_refused(topology, file, "takes [3] from slot 'a', which is [4]");
}

TEST_CASE("a difference is told with worker, tensor, both coordinates, both bit patterns and the count") {
  const ScratchFolder folder;
  const auto file = counting_file(folder, {{"w", {4, 3}}, {"v", {2}}});
  auto topology = topology_on({{"tp", 2}}, {"tp:0"});
  const auto proof = Proof::make(topology, file, 1);
  REQUIRE(proof);
  REQUIRE(proof->expected().size() == 2);
  CHECK(proof->expected()[1].name == "w");
  CHECK(proof->expected()[1].dtype == DType::u16);
  CHECK(proof->expected()[1].shape == layout::Shape{2, 3});
  CHECK(proof->expected()[1].full_shape == layout::Shape{4, 3});
  const Values v = {1};
  Values w = {6, 7, 8, 9, 10, 11};
  const std::vector<WorkerTensor> held = {{"w", DType::u16, {2, 3}, bytes_of(w)}, {"v", DType::u16, {1}, bytes_of(v)}};
  CHECK(proof->compare(file, held));
  w[4] = 0x8001;
  w[5] = 0;
  const auto compared = proof->compare(file, held);
  REQUIRE(!compared);
  CHECK(compared.error().code == Code::verification_failed);
  for (const char* part : {"worker 1", "tensor 'w'", "local [1, 1]", "full [3, 1]", "holds 0x8001", "must be 0x000a",
                           "2 of 7 elements differ", "in 1 of 2 tensors"})
    CHECK_THAT(compared.error().message, contains(part));
  w = {6, 7, 8, 9, 10, 11};

  const auto refused = [&](std::vector<WorkerTensor> tensors, Code code, const std::string& why) {
    const auto result = proof->compare(file, tensors);
    REQUIRE(!result);
    CHECK(result.error().code == code);
    CHECK_THAT(result.error().message, contains(why));
  };
  refused({held[0]}, Code::verification_failed, "tensor 'v' is missing");
  refused({held[0], held[1], held[1]}, Code::verification_failed, "tensor 'v' is held twice");
  refused({held[0], held[1], {"x", DType::u16, {1}, bytes_of(v)}}, Code::verification_failed, "tensor 'x' is held");
  refused({held[0], {"v", DType::i16, {1}, bytes_of(v)}}, Code::verification_failed, "must be uint16 [1]");
  refused({held[0], {"v", DType::u16, {}, bytes_of(v)}}, Code::verification_failed, "must be uint16 [1]");
  refused({held[0], {"v", DType::u16, {1}, bytes_of(v).first(1)}}, Code::verification_failed, "in 1 bytes");

  const ScratchFolder other;
  const auto lacking = proof->compare(counting_file(other, {{"w", {4, 3}}}), held);
  REQUIRE(!lacking);
  CHECK(lacking.error().code == Code::invalid_input);
  CHECK_THAT(lacking.error().message, contains("tensor 'v' is missing"));
  const auto reshaped = proof->compare(counting_file(other, {{"w", {3, 4}}, {"v", {2}}}), held);
  REQUIRE(!reshaped);
  CHECK(reshaped.error().code == Code::invalid_input);
  CHECK_THAT(reshaped.error().message, contains("tensor 'w' is uint16 [3, 4], but was uint16 [4, 3]"));
}
