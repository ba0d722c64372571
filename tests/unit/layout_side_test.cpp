// The rules of patterns, maps, placements and declarations, one by one, with the message of each refusal, and the
// geometry cases that fail in the field.

#include "catch.hpp"
#include "layout/kept_elements.hpp"
#include "layout/pattern.hpp"
#include "layout/side.hpp"
#include "random.hpp"
#include "refusal.hpp"

#include <algorithm>

using namespace deltawire;
using namespace deltawire::layout;
using test::check_refused;

namespace {

SideRules rules_on(std::vector<Axis> axes) {
  SideRules rules;
  rules.mesh = *Mesh::make(std::move(axes));
  return rules;
}

MapRule map_rule(std::string parameter, std::string slot, std::string slice = "", std::string view = "",
                 bool transpose = false) {
  return {std::move(parameter), std::move(slot), std::move(view), std::move(slice), transpose, "f.toml:7"};
}

Side compiled(SideRules rules, Side::Role role = Side::Role::trainer) {
  auto side = Side::compile(std::move(rules), role);
  INFO((side ? "" : side.error().message));
  REQUIRE(side);
  return *side;
}

Result<Side> compile_map(const MapRule& rule, Side::Role role = Side::Role::trainer) {
  SideRules rules;
  rules.maps = {rule};
  return Side::compile(rules, role);
}

Result<Side> compile_cuts(std::vector<std::string> cuts) {
  SideRules rules = rules_on({{"ep", 2}, {"tp", 2}, {"fsdp", 2}});
  rules.placements = {{"*", std::move(cuts), "f.toml:9"}};
  return Side::compile(rules, Side::Role::trainer);
}

Result<Declaration> declare(const SideRules& rules, std::vector<LocalTensor> tensors, Index rank = 0) {
  return compiled(rules).declare_trainer(tensors, rank);
}

/// Global positions of dim 0 that a rank holds, in local order.
std::vector<Index> held(const SideRules& rules, const Shape& shape, Index rank) {
  const auto shard = compiled(rules).shard("p", shape, rank);
  INFO((shard ? "" : shard.error().message));
  REQUIRE(shard);
  std::vector<Index> result;
  for (const Interval& interval : shard->dims.front())
    for (Index i = 0; i < interval.length; ++i)
      result.push_back(interval.global + i);
  return result;
}

using Positions = std::vector<Index>;

} // namespace

TEST_CASE("a mesh counts ranks row-major over its axes") {
  const auto mesh = Mesh::make({{"pp", 2}, {"dp", 3}, {"tp", 4}});
  REQUIRE(mesh);
  CHECK(mesh->size() == 24);
  CHECK(mesh->coordinates(0) == std::vector<Index>{0, 0, 0});
  CHECK(mesh->coordinates(23) == std::vector<Index>{1, 2, 3});
  CHECK(mesh->coordinates(17) == std::vector<Index>{1, 1, 1});
  CHECK(mesh->find("dp") == std::size_t{1});
  CHECK(!mesh->find("ep"));
  CHECK(Mesh{}.size() == 1);
  CHECK(Mesh{}.coordinates(0).empty());
}

TEST_CASE("a mesh refuses axes that have no name, repeat, are empty or are too many") {
  check_refused(Mesh::make({{"", 2}}), Code::invalid_topology, {"no name"});
  check_refused(Mesh::make({{"tp", 2}, {"tp", 2}}), Code::invalid_topology, {"'tp'", "twice"});
  check_refused(Mesh::make({{"tp", 0}}), Code::invalid_topology, {"'tp'", "size 0"});
  check_refused(Mesh::make({{"a", 1024}, {"b", 1025}}), Code::limit_exceeded, {"'b'", "1048576"});
  CHECK(Mesh::make({{"a", 1024}, {"b", 1024}}));
}

TEST_CASE("a pattern's star is anything, a name is a piece, or digits inside a piece") {
  auto matches = [](const char* pattern, const char* name) { return Pattern::parse(pattern)->match(name).has_value(); };
  CHECK(matches("*", ""));
  CHECK(matches("*", "a.b.c"));
  CHECK(matches("*.weight", "a.b.weight"));
  CHECK(!matches("*.weight", "weight"));
  CHECK(matches("a.{l}.b", "a.12.b"));
  CHECK(matches("a.{l}.b", "a.word.b"));
  CHECK(!matches("a.{l}.b", "a..b"));
  CHECK(!matches("a.{l}.b", "a.1.2.b"));
  CHECK(matches("w{e}", "w10"));
  CHECK(!matches("w{e}", "wx"));
  CHECK(!matches("w{e}", "w"));
  CHECK(matches("{l}.x.{l}", "3.x.3"));
  CHECK(!matches("{l}.x.{l}", "3.x.4"));
  CHECK(matches("w{e}0", "w100")); // digits give back what follows needs
  CHECK(matches("*.{l}.b.*", "a.b.c.b.d"));
  const auto bound = Pattern::parse("*.layers.{l}.w{e}.*")->match("m.layers.7.w31.bias");
  REQUIRE(bound);
  CHECK(*bound->find("l") == "7");
  CHECK(*bound->find("e") == "31");
  CHECK(bound->stars == std::vector<std::string>{"m", "bias"});
  CHECK(Pattern::parse("x{e}.*.{l}.*")->substitute(*bound) == "x31.m.7.bias");
}

TEST_CASE("a pattern with many stars is matched in bounded time") {
  const auto pattern = Pattern::parse("*a*a*a*a*a*a*a*a*a*a*a*a*b");
  REQUIRE(pattern);
  CHECK(!pattern->match(std::string(2000, 'a')));
}

TEST_CASE("a pattern whose name comes again after many stars is matched in bounded time, or refused") {
  std::string stars;
  for (int i = 0; i < 20; ++i)
    stars += "*1";
  const auto pattern = Pattern::parse(stars + "{a}*{a}");
  REQUIRE(pattern);
  CHECK(!pattern->match(std::string(300, '1') + 'c'));
  CHECK(pattern->match(std::string(300, '1')));
  CHECK(Pattern::parse("*.{l}.*.{l}.*"));
  CHECK(Pattern::parse("{l}.w{e}.*.{l}.w{e}.*.x*y*z*"));
  for (const char* open : {"{a}*b*c*{a}", "*{a}*x{b}1*{a}", "{a}.{b}*.{a}*{b}*{c}*.{b}"}) {
    CAPTURE(open);
    check_refused(Pattern::parse(open), Code::invalid_topology, {open, "a name is used again", "bounded time"});
  }
}

namespace {

/// Matches by trying every way in order, knowing nothing of names that come again but to compare them.
bool tries(std::span<const std::string> parts, std::string_view text, Bindings& bound) {
  if (parts.empty())
    return text.empty();
  const std::string& part = parts.front();
  const auto rest = parts.subspan(1);
  if (part == "*") {
    for (std::size_t n = 0; n <= text.size(); ++n) {
      bound.stars.emplace_back(text.substr(0, n));
      if (tries(rest, text.substr(n), bound))
        return true;
      bound.stars.pop_back();
    }
    return false;
  }
  if (part.front() != '{')
    return text.starts_with(part) && tries(rest, text.substr(part.size()), bound);
  for (std::size_t n = std::min(text.size(), text.find_first_not_of("0123456789")); n > 0; --n) {
    const std::string* known = bound.find(part);
    if (known != nullptr && *known != text.substr(0, n))
      continue;
    if (known == nullptr)
      bound.names.emplace_back(part, text.substr(0, n));
    if (tries(rest, text.substr(n), bound))
      return true;
    if (known == nullptr)
      bound.names.pop_back();
  }
  return false;
}

} // namespace

TEST_CASE("a pattern matches what trying every way matches, and binds the same") {
  auto random = test::generator(210);
  int matched = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> parts{"a"}; // so that no name is a whole piece
    for (auto left = 1 + random() % 7; left > 0; --left) {
      const char* known[] = {"*", "{x}", "{y}", "1", "2", "a", "*"};
      const std::string part = known[random() % 7];
      const bool after_name = parts.back().front() == '{' || parts.back() == "*";
      if (!(after_name && (part.front() == '{' || part == "*") && !(parts.back() == "*" && part != "*")))
        parts.push_back(part);
    }
    if (parts.back().front() == '{' && parts[parts.size() - 2] == "*")
      parts.push_back("a");
    std::string text;
    for (const std::string& part : parts)
      text += part;
    const auto pattern = Pattern::parse(text);
    if (!pattern) {
      ++refused;
      continue;
    }
    std::string name = "a";
    for (auto left = random() % 9; left > 0; --left)
      name += "112a"[random() % 4];
    CAPTURE(test::seed(), text, name);
    Bindings expected;
    const bool found = tries(parts, name, expected);
    const auto bound = pattern->match(name);
    REQUIRE(bound.has_value() == found);
    if (!found)
      continue;
    ++matched;
    REQUIRE(bound->stars == expected.stars);
    for (const auto& [key, value] : bound->names)
      REQUIRE(*expected.find("{" + key + "}") == value);
  }
  CHECK(matched > 1000);
  CHECK(refused < 2000);
}

TEST_CASE("malformed patterns are refused") {
  check_refused(Pattern::parse("a{b"), Code::invalid_topology, {"'{' without '}'"});
  check_refused(Pattern::parse("a}b"), Code::invalid_topology, {"'}' without '{'"});
  check_refused(Pattern::parse("a{}b"), Code::invalid_topology, {"is no name"});
  check_refused(Pattern::parse("a{1}b"), Code::invalid_topology, {"is no name"});
  check_refused(Pattern::parse("a**b"), Code::invalid_topology, {"'**'"});
  check_refused(Pattern::parse("a{b}{c}"), Code::invalid_topology, {"'{c}'"});
  check_refused(Pattern::parse(""), Code::invalid_topology, {"empty"});
  check_refused(Pattern::parse("a.{l + 8*pp}"), Code::invalid_topology, {"{l + 8*pp}", "only the slot of a map"});
  check_refused(Pattern::parse("a.{l=4:4}"), Code::invalid_topology, {"{l=4:4}", "name=0:8"});
  check_refused(Pattern::parse("a.{l=0:4}.{l=0:5}"), Code::invalid_topology, {"'l' has two limits"});
  check_refused(Pattern::parse("a.{l + }", true), Code::invalid_topology, {"a name or a number is missing"});
  check_refused(Pattern::parse("a.{l*k}", true), Code::invalid_topology, {"'l' times 'k'"});
  check_refused(Pattern::parse("a.{l - -3}", true), Code::invalid_topology, {"missing"});
}

TEST_CASE("malformed maps are refused with file, line and the item") {
  using enum Code;
  check_refused(compile_map(map_rule("p", "s", "0:4")), invalid_topology, {"f.toml:7", "brackets"});
  check_refused(compile_map(map_rule("p", "s", "[0:4, ]")), invalid_topology, {"f.toml:7", "item 1 is empty"});
  check_refused(compile_map(map_rule("p", "s", "[4:4]")), invalid_topology, {"'4:4' keeps nothing"});
  check_refused(compile_map(map_rule("p", "s", "[5:4]")), invalid_topology, {"keeps nothing"});
  check_refused(compile_map(map_rule("p", "s", "[1:]")), invalid_topology, {"'1:'", "both ends"});
  check_refused(compile_map(map_rule("p", "s", "[-1]")), invalid_topology, {"'-1'"});
  check_refused(compile_map(map_rule("p", "s", "[0:8:0]")), invalid_topology, {"f.toml:7", "'0:8:0'", "step"});
  check_refused(compile_map(map_rule("p", "s{e}", "[e=0:8:2]")), invalid_topology, {"a name takes no step"});
  check_refused(compile_map(map_rule("p", "s", "[e + 1]")), invalid_topology, {"'e + 1'", "slot_slice"});
  check_refused(compile_map(map_rule("p", "s", "[999999999999999999999]")), invalid_topology, {"none of"});
  check_refused(compile_map(map_rule("p", "s{e}", "[e=3, :]")), invalid_topology, {"name=a:b"});
  check_refused(compile_map(map_rule("p", "s{e}", "[e, e]")), invalid_topology, {"'e' is bound twice"});
  check_refused(compile_map(map_rule("p", "s", "", "[0, 4]")), invalid_topology, {"view", "'0'"});
  check_refused(compile_map(map_rule("p", "s", "", "[(2, 4]")), invalid_topology, {"'(' without ')'"});
  check_refused(compile_map(map_rule("p", "s", "", "[(2, (4, 5))]")), invalid_topology, {"parentheses"});
  check_refused(compile_map(map_rule("p", "s", "", "[(:, 2, :)]")), invalid_topology, {"':' twice"});
  check_refused(compile_map(map_rule("p", "s", "", "[()]")), invalid_topology, {"no extent"});
  check_refused(compile_map(map_rule("p", "s", "", "[]")), invalid_topology, {"at least one dim"});
  check_refused(compile_map(map_rule("p", "s", "[:]", "[2, 4]")), invalid_topology, {"1 items", "2 dims"});
  check_refused(compile_map(map_rule("p", "s", "[0, :]", "", true)), invalid_topology, {"transpose"});
  check_refused(compile_map(map_rule("p", "s", "[e, :]")), invalid_topology, {"contains '{e}'"});
  check_refused(compile_map(map_rule("p", "s{x}")), invalid_topology, {"binds 'x'"});
  check_refused(compile_map(map_rule("p{e}", "s{e}", "[e=0:4, :]")), invalid_topology, {"drop '=0:4'"});
  check_refused(compile_map(map_rule("*.p", "*.s.*")), invalid_topology, {"1 '*'", "has 2"});
  check_refused(compile_map(map_rule("p.{l}", "s"), Side::Role::worker), invalid_topology,
                {"f.toml:7", "parameter 'p.{l}'", "does not bind 'l'", "{l=0:8}"});
  check_refused(compile_map(map_rule("*", "s"), Side::Role::worker), invalid_topology, {"'*'"});
  check_refused(compile_map(map_rule("p.{l + 8*pp}", "s")), invalid_topology, {"f.toml:7", "only the slot of a map"});
  CHECK(compile_map(map_rule("p", "s{e}.w", "[e=0:4, :]")));
}

TEST_CASE("cuts that cannot be are refused by axis") {
  using enum Code;
  check_refused(compile_cuts({"pp:0"}), invalid_topology, {"f.toml:9", "no axis 'pp'", "ep, tp, fsdp"});
  check_refused(compile_cuts({"tp"}), invalid_topology, {"'tp'", "axis:dim"});
  check_refused(compile_cuts({"tp:x"}), invalid_topology, {"axis 'tp'", "neither a whole number"});
  check_refused(compile_cuts({"tp:-1"}), invalid_topology, {"axis 'tp'"});
  check_refused(compile_cuts({"tp:0x"}), invalid_topology, {"axis 'tp'"});
  check_refused(compile_cuts({"tp:0 by slices"}), invalid_topology, {"axis 'tp'", "by slices"});
  check_refused(compile_cuts({"tp:0", "tp:1"}), invalid_topology, {"axis 'tp' cuts twice"});
  check_refused(compile_cuts({"fsdp:0", "tp:0 by slice"}), invalid_topology, {"axis 'tp'", "after axis 'fsdp'"});
  CHECK(compile_cuts({"tp:0 by slice", "fsdp:0", "ep:1"}));
  CHECK(compile_cuts({"fsdp:1", "tp:0 by slice"}));
}

TEST_CASE("compile names all errors at once, and a mixture is not just a missing feature") {
  SideRules rules;
  rules.maps = {map_rule("p", "s", "[0:8:0]"), map_rule("a{", "s")};
  rules.placements = {{"*", {"tp:0"}, "f.toml:9"}};
  rules.parameters = {{"b}", std::nullopt, false, "f.toml:11"}};
  rules.unused = {"c{"};
  check_refused(Side::compile(rules, Side::Role::worker), Code::invalid_topology,
                {"f.toml:7: slice", "a{", "f.toml:9", "f.toml:11", "c{"});
}

TEST_CASE("pieces are torch.chunk's: ceil sizes, then a shorter one, then empty ones") {
  SideRules rules = rules_on({{"fsdp", 4}});
  rules.placements = {{"*", {"fsdp:0"}, "f.toml:9"}};
  CHECK(held(rules, {7, 3}, 0) == Positions{0, 1});
  CHECK(held(rules, {7, 3}, 2) == Positions{4, 5});
  CHECK(held(rules, {7, 3}, 3) == Positions{6});
  CHECK(held(rules, {6, 2}, 2) == Positions{4, 5});
  CHECK(held(rules, {6, 2}, 3).empty());
  CHECK(held(rules, {1}, 0) == Positions{0});
  CHECK(held(rules, {1}, 1).empty());
  CHECK(held(rules, {0, 5}, 0).empty());
  rules = rules_on({{"fsdp", 8}});
  rules.placements = {{"*", {"fsdp:0"}, "f.toml:9"}};
  CHECK(held(rules, {9}, 4) == Positions{8});
  for (Index rank : {5, 6, 7})
    CHECK(held(rules, {9}, rank).empty());
}

TEST_CASE("FSDP over TP on one dim follows the order of cutting") {
  SideRules rules = rules_on({{"dp", 2}, {"tp", 2}});
  rules.placements = {{"*", {"tp:0", "dp:0"}, "f.toml:9"}};
  CHECK(held(rules, {6}, 0) == Positions{0, 1}); // (dp0, tp0)
  CHECK(held(rules, {6}, 1) == Positions{3, 4}); // (dp0, tp1)
  CHECK(held(rules, {6}, 2) == Positions{2});    // (dp1, tp0)
  CHECK(held(rules, {6}, 3) == Positions{5});    // (dp1, tp1)
}

TEST_CASE("experts on dim 0 and rows on dim 1 give rank (1,1) the elements 15, 16, 17, 21, 22, 23") {
  SideRules rules = rules_on({{"ep", 2}, {"fsdp", 2}});
  rules.placements = {{"*", {"ep:0", "fsdp:1"}, "f.toml:9"}};
  const auto declaration = declare(rules, {{"p", DType::f32, {4, 2, 3}, {}}}, 3);
  REQUIRE(declaration);
  CHECK(declaration->parameters.front().local_shape == Shape{2, 1, 3});
  REQUIRE(declaration->regions.size() == 1);
  const Region& region = declaration->regions.front();
  CHECK(region.base == 0);
  CHECK(region.dims == std::vector<std::vector<Segment>>{{{2, 2, 0, 3}}, {{1, 1, 0, 3}}, {{0, 3, 0, 1}}});
}

TEST_CASE("one owner contributes a replicated parameter, and a scalar is never cut") {
  SideRules rules = rules_on({{"replicate", 2}, {"shard", 2}});
  rules.placements = {{"*", {"shard:0"}, "f.toml:9"}};
  for (Index rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const auto vector = declare(rules, {{"p", DType::f32, {4}, {}}}, rank);
    REQUIRE(vector);
    CHECK(vector->regions.size() == (rank < 2 ? 1 : 0));
    const auto scalar = declare(rules, {{"p", DType::i64, {}, {}}}, rank);
    REQUIRE(scalar);
    CHECK(scalar->parameters.front().local_shape.empty());
    REQUIRE(scalar->regions.size() == (rank == 0 ? 1 : 0));
    if (rank == 0)
      CHECK(scalar->regions.front().dims.empty());
    CHECK(scalar->slots.size() == 1); // known to every rank
  }
}

TEST_CASE("a cut of a dim that the parameter lacks names the axis") {
  SideRules rules = rules_on({{"tp", 2}});
  rules.placements = {{"*", {"tp:1"}, "f.toml:9"}};
  check_refused(compiled(rules).shard("bias", {8}, 0), Code::invalid_topology,
                {"f.toml:9", "axis 'tp'", "dim 1", "'bias'", "[8]"});
}

TEST_CASE("the first placement that matches counts") {
  SideRules rules = rules_on({{"tp", 2}});
  rules.placements = {{"a.*", {}, "f.toml:9"}, {"*", {"tp:0"}, "f.toml:10"}};
  CHECK(compiled(rules).shard("a.x", {8}, 1)->local_shape == Shape{8});
  CHECK(compiled(rules).shard("b.x", {8}, 1)->local_shape == Shape{4});
}

TEST_CASE("a rank outside the mesh is refused") {
  const Side side = compiled(rules_on({{"tp", 2}}));
  check_refused(side.shard("p", {8}, 2), Code::invalid_argument, {"rank 2", "mesh of 2"});
  check_refused(side.declare_trainer({}, -1), Code::invalid_argument, {"rank -1"});
}

TEST_CASE("a fused [gate; up] under TP2 by slice keeps gate rows before up rows") {
  SideRules rules = rules_on({{"tp", 2}});
  rules.maps = {map_rule("p", "gate", "[0:4]"), map_rule("p", "up", "[4:8]")};
  rules.placements = {{"p", {"tp:0 by slice"}, "f.toml:9"}};
  CHECK(held(rules, {8}, 0) == Positions{0, 1, 4, 5});
  CHECK(held(rules, {8}, 1) == Positions{2, 3, 6, 7});
}

TEST_CASE("by slice, padding is a segment of its own and a later whole cut takes the packed positions") {
  SideRules rules = rules_on({{"fsdp", 2}, {"tp", 2}});
  rules.maps = {map_rule("p", "a", "[0:4]"), map_rule("p", "b", "[6:10]")}; // 4:6 and 10:11 are padding
  rules.parameters = {{"p", std::nullopt, true, "f.toml:12"}};
  rules.placements = {{"p", {"tp:0 by slice", "fsdp:0"}, "f.toml:9"}};
  // tp 0: 0,1 | 4 | 6,7 | 10 -> halves of six; tp 1: 2,3 | 5 | 8,9 -> three and two
  CHECK(held(rules, {11}, 0) == Positions{0, 1, 4});
  CHECK(held(rules, {11}, 1) == Positions{2, 3, 5});
  CHECK(held(rules, {11}, 2) == Positions{6, 7, 10});
  CHECK(held(rules, {11}, 3) == Positions{8, 9});
}

TEST_CASE("two axes may both cut by slice: each piece is cut again on its own") {
  SideRules rules = rules_on({{"a", 2}, {"b", 2}});
  rules.maps = {map_rule("p", "x", "[0:4]"), map_rule("p", "y", "[4:12]")};
  rules.placements = {{"p", {"a:0 by slice", "b:0 by slice"}, "f.toml:9"}};
  CHECK(held(rules, {12}, 1) == Positions{1, 6, 7}); // a 0: 0,1 | 4..8
}

TEST_CASE("by slice needs one interval a map, and intervals that are equal or apart") {
  SideRules rules = rules_on({{"tp", 2}});
  rules.placements = {{"p", {"tp:0 by slice"}, "f.toml:9"}};
  rules.maps = {map_rule("p", "q", "[:, 0:3, :]", "[2, 5, 4]"), map_rule("p", "k", "[:, 3:5, :]", "[2, 5, 4]")};
  check_refused(compiled(rules).shard("p", {40}, 0), Code::invalid_topology,
                {"f.toml:9", "axis 'tp'", "f.toml:7", "'q'", "2 intervals"});
  rules.maps = {map_rule("p", "a", "[0:4, 0:1]"), map_rule("p", "b", "[2:6, 1:2]")};
  check_refused(compiled(rules).shard("p", {6, 2}, 0), Code::invalid_topology, {"axis 'tp'", "overlap but differ"});
}

TEST_CASE("grouped qkv rows lead to q 0 1 4 5, k 2 6, v 3 7") {
  SideRules rules;
  rules.maps = {map_rule("qkv", "q", "[:, 0:2]", "[2, 4]"), map_rule("qkv", "k", "[:, 2]", "[2, 4]"),
                map_rule("qkv", "v", "[:, 3:4]", "[2, 4]")};
  const auto declaration = declare(rules, {{"qkv", DType::f32, {8}, {}}});
  REQUIRE(declaration);
  REQUIRE(declaration->regions.size() == 3);
  CHECK(declaration->slots[0].shape == Shape{4});
  CHECK(declaration->slots[1].shape == Shape{2});
  CHECK(declaration->regions[0].dims.front() == std::vector<Segment>{{0, 2, 0, 1}, {2, 2, 4, 1}});
  CHECK(declaration->regions[1].base == 2);
  CHECK(declaration->regions[1].dims.front() == std::vector<Segment>{{0, 2, 0, 4}}); // joined: rows 2 and 6
  CHECK(declaration->regions[2].base == 3);
}

TEST_CASE("parts of one dim that a transpose takes apart stay dims of their own") {
  SideRules rules;
  rules.maps = {map_rule("p", "s", "", "[3, 4, 5]", true)}; // [12, 5]: dims 4 and 5 swap
  const auto declaration = declare(rules, {{"p", DType::f32, {12, 5}, {}}});
  REQUIRE(declaration);
  CHECK(declaration->slots.front().shape == Shape{3, 5, 4});
  REQUIRE(declaration->regions.size() == 1);
  CHECK(declaration->regions.front().dims ==
        std::vector<std::vector<Segment>>{{{0, 3, 0, 20}}, {{0, 5, 0, 1}}, {{0, 4, 0, 5}}});
}

TEST_CASE("where one dim becomes two slot dims, an unaligned cut leaves the fewest boxes") {
  SideRules rules = rules_on({{"fsdp", 2}});
  rules.maps = {map_rule("p", "s", "", "[5, 6]", true)};
  rules.placements = {{"p", {"fsdp:0"}, "f.toml:9"}};
  const auto first = declare(rules, {{"p", DType::f32, {30}, {}}}, 0); // 15 of 30: two whole rows of six and a half
  REQUIRE(first);
  CHECK(first->slots.front().shape == Shape{6, 5});
  CHECK(first->regions.size() == 2);
}

TEST_CASE("a view splits dims in order and never joins them") {
  SideRules rules;
  rules.maps = {map_rule("p", "s", "[:, :, :]", "[2, 3, 4]")};
  CHECK(declare(rules, {{"p", DType::f32, {6, 4}, {}}}));
  CHECK(declare(rules, {{"p", DType::f32, {2, 12}, {}}}));
  for (const Shape& shape : {Shape{24, 1, 2}, Shape{8, 3}, Shape{5, 4}, Shape{2, 3, 4, 1}, Shape{}, Shape{0, 4}}) {
    CAPTURE(to_string(shape));
    check_refused(declare(rules, {{"p", DType::f32, shape, {}}}), Code::invalid_topology,
                  {"f.toml:7", "'p'", "'s'", "view"});
  }
}

TEST_CASE("a slice must fit the parameter's shape") {
  SideRules rules;
  rules.maps = {map_rule("p", "s", "[0:6, :]")};
  check_refused(declare(rules, {{"p", DType::f32, {5, 4}, {}}}), Code::invalid_topology, {"f.toml:7", "0:6", "the 5"});
  check_refused(declare(rules, {{"p", DType::f32, {6}, {}}}), Code::invalid_topology, {"2 items", "[6]"});
  rules.maps = {map_rule("p", "s{e}", "[e=0:9, :]")};
  check_refused(declare(rules, {{"p", DType::f32, {8, 4}, {}}}), Code::invalid_topology, {"'e'", "run to 9", "the 8"});
}

TEST_CASE("a view's ':' is what is left of its dim, and parentheses are one dim") {
  SideRules rules;
  rules.maps = {map_rule("p", "a", "[0, :, :]", "[(2, :), :]"), map_rule("p", "b", "[1, :, :]", "[(2, :), :]")};
  const auto declaration = declare(rules, {{"p", DType::f32, {8, 3}, {}}});
  REQUIRE(declaration);
  CHECK(declaration->slots[1].shape == Shape{4, 3});
  CHECK(declaration->regions[1].base == 12);
  check_refused(declare(rules, {{"p", DType::f32, {7, 3}, {}}}), Code::invalid_topology,
                {"f.toml:7", "'p' [7, 3]", "[(2, :), :]"});
  const std::vector<SlotSpec> slots{{"a", DType::f32, {4, 3}}, {"b", DType::f32, {4, 3}}};
  const auto parameters = compiled(rules, Side::Role::worker).worker_parameters(slots, 0);
  REQUIRE(parameters);
  CHECK(parameters->front().full_shape == Shape{8, 3}); // no size is told
}

TEST_CASE("permute says which kept dim each dim of the slot is") {
  SideRules rules;
  MapRule rule = map_rule("p", "s");
  rule.permute = {1, 2, 0};
  rules.maps = {rule};
  const auto declaration = declare(rules, {{"p", DType::f32, {3, 4, 2}, {}}});
  REQUIRE(declaration);
  CHECK(declaration->slots.front().shape == Shape{4, 2, 3});
  CHECK(declaration->regions.front().dims ==
        std::vector<std::vector<Segment>>{{{0, 4, 0, 2}}, {{0, 2, 0, 1}}, {{0, 3, 0, 8}}});
  using enum Code;
  const auto with = [&](std::vector<Index> permute, const char* slice = "", bool transpose = false) {
    MapRule wrong = map_rule("p", "s", slice, "", transpose);
    wrong.permute = std::move(permute);
    return compile_map(wrong);
  };
  check_refused(with({0, 0}), invalid_topology, {"f.toml:7", "permute = [0, 0]", "once"});
  check_refused(with({0, 2}), invalid_topology, {"0 to 1"});
  check_refused(with({1, 0}, "[:, :, :]"), invalid_topology, {"2 dims, but 3 are kept"});
  check_refused(with({1, 0}, "[:, :]", true), invalid_topology, {"transpose"});
  MapRule two = map_rule("p", "s");
  two.permute = {1, 0};
  rules.maps = {two};
  check_refused(declare(rules, {{"p", DType::f32, {3, 4, 2}, {}}}), invalid_topology, {"'p'", "2 dims, but 3"});
}

TEST_CASE("several parameters fill a slot, and what they disagree on is named") {
  SideRules rules;
  MapRule q = map_rule("q", "qkv");
  q.slot_slice = "[0:4, :]";
  MapRule k = map_rule("k", "qkv");
  k.slot_slice = "[4:6, :]";
  rules.maps = {q, k};
  const auto declaration = declare(rules, {{"q", DType::f32, {4, 2}, {}}, {"k", DType::f32, {2, 2}, {}}});
  REQUIRE(declaration);
  REQUIRE(declaration->slots.size() == 1);
  CHECK(declaration->slots.front().shape == Shape{6, 2}); // the furthest that any map reaches
  CHECK(declaration->regions[1].dims.front() == std::vector<Segment>{{4, 2, 0, 2}});
  check_refused(declare(rules, {{"q", DType::f32, {4, 2}, {}}, {"k", DType::f32, {2, 3}, {}}}), Code::invalid_topology,
                {"slot 'qkv'", "'q'", "'k'", "they differ"});
  check_refused(declare(rules, {{"q", DType::f32, {5, 2}, {}}, {"k", DType::f32, {2, 2}, {}}}), Code::disagreement,
                {"f.toml:7", "'q' [5, 2]", "part is [5, 2], the slot's [4, 2]"});
}

TEST_CASE("sums of coordinates make names; what cannot be is refused with the sum") {
  SideRules rules = rules_on({{"pp", 2}, {"ep", 2}});
  rules.maps = {map_rule("layers.{l}.w{e}", "m.{l + 3*pp}.{e + 2*ep}")};
  const auto declaration = declare(rules, {{"layers.1.w1", DType::f32, {2}, {}}}, 3);
  REQUIRE(declaration);
  CHECK(declaration->slots.front().name == "m.4.3");
  CHECK(declaration->regions.size() == 1); // no axis replicates: each coordinate has a parameter of its own
  using enum Code;
  rules.maps = {map_rule("w{e}", "w{e + 2*tp}")};
  check_refused(Side::compile(rules, Side::Role::trainer), invalid_topology, {"f.toml:7", "'tp' is no axis"});
  rules.maps = {map_rule("w{ep}", "w{ep + 2*pp}")};
  check_refused(Side::compile(rules, Side::Role::trainer), invalid_topology, {"'ep' is an axis", "rename"});
  rules.maps = {map_rule("w{e}", "w{e - 2*ep}")};
  check_refused(declare(rules, {{"w1", DType::f32, {2}, {}}}, 1), invalid_topology, {"'e - 2*ep' is -1", "'w1'"});
  rules.maps = {map_rule("w{e}", "w.{e + 2*ep}")};
  rules.placements = {{"w{e}", {"ep:0"}, "f.toml:9"}};
  check_refused(declare(rules, {{"w1", DType::f32, {2}, {}}}, 1), invalid_topology, {"axis 'ep'", "'w1'", "drop one"});
  rules.placements.clear();
  rules.maps = {map_rule("w.{a}.{b}", "w.{a + b}")};
  check_refused(Side::compile(rules, Side::Role::worker), invalid_topology, {"'a + b'", "one by one", "{a=0:8}"});
}

TEST_CASE("a worker reads the local part of a stack, and slots that only others read are not its own") {
  SideRules rules = rules_on({{"ep", 2}});
  rules.maps = {map_rule("stack", "w.{e + 2*ep}", "[e=0:2, :]")};
  std::vector<SlotSpec> slots;
  for (int e = 0; e < 4; ++e)
    slots.push_back({"w." + std::to_string(e), DType::f32, {3}});
  const auto parameters = compiled(rules, Side::Role::worker).worker_parameters(slots, 1);
  INFO((parameters ? "" : parameters.error().message));
  REQUIRE(parameters);
  REQUIRE(parameters->size() == 1);
  CHECK(parameters->front().full_shape == Shape{2, 3});
}

TEST_CASE("views whose parts do not divide each other are cut into stretches") {
  SideRules rules;
  MapRule rule = map_rule("p", "s", "[:, 0:6]", "[(2, 7)]");
  rule.slot_view = "[(3, 5)]";
  rule.slot_slice = "[:, 0:4]";
  rules.maps = {rule};
  rules.parameters = {{"*", std::nullopt, true, "f.toml:12"}};
  const auto declaration = declare(rules, {{"p", DType::f32, {14}, {}}});
  INFO((declaration ? "" : declaration.error().message));
  REQUIRE(declaration);
  REQUIRE(declaration->regions.size() == 1);
  CHECK(declaration->regions.front().dims.front() ==
        std::vector<Segment>{{0, 4, 0, 1}, {5, 2, 4, 1}, {7, 2, 7, 1}, {10, 4, 9, 1}});
}

TEST_CASE("parts that would merge stay apart where the other side has them apart") {
  const std::vector<SlotSpec> slots{{"flat", DType::f32, {6, 2}}};
  SideRules rules;
  MapRule rule = map_rule("heads", "flat");
  rule.slot_view = "[(2, 3), :]";
  rules.maps = {rule};
  rules.parameters = {{"heads", Shape{2, 3, 2}, false, "f.toml:12"}};
  CHECK(compiled(rules, Side::Role::worker).worker_parameters(slots, 0));
  rules.parameters = {{"heads", Shape{3, 2, 2}, false, "f.toml:12"}};
  check_refused(compiled(rules, Side::Role::worker).worker_parameters(slots, 0), Code::disagreement,
                {"'heads' [3, 2, 2]", "'flat' [6, 2]"});
}

TEST_CASE("elements that no map covers are an error unless they are padding") {
  SideRules rules;
  rules.maps = {map_rule("p", "s", "[0:10, :]")};
  check_refused(declare(rules, {{"p", DType::f32, {12, 4}, {}}}), Code::invalid_topology,
                {"trainer parameter 'p' [12, 4]", "8 of 48", "[10:12, 0:4]", "padding = true"});
  rules.parameters = {{"p", std::nullopt, true, "f.toml:12"}};
  const auto declaration = declare(rules, {{"p", DType::f32, {12, 4}, {}}});
  REQUIRE(declaration);
  CHECK(declaration->slots.front().shape == Shape{10, 4});
  CHECK(declaration->regions.front().dims.front() == std::vector<Segment>{{0, 10, 0, 4}});
}

TEST_CASE("an element that belongs to two slots is an error on both sides") {
  SideRules rules;
  rules.maps = {map_rule("p", "a", "[0:6, 0:3]"), map_rule("p", "b", "[5:8, 2:4]")};
  rules.parameters = {{"p", std::nullopt, true, "f.toml:12"}};
  check_refused(declare(rules, {{"p", DType::f32, {8, 4}, {}}}), Code::invalid_topology,
                {"[5:6, 2:3]", "slot 'a'", "slot 'b'"});
  const std::vector<SlotSpec> slots{{"a", DType::f32, {6, 3}}, {"b", DType::f32, {3, 2}}};
  check_refused(compiled(rules, Side::Role::worker).worker_parameters(slots, 0), Code::invalid_topology,
                {"worker parameter 'p' [8, 4]", "[5:6, 2:3]", "slot 'a'", "slot 'b'"});
}

TEST_CASE("a slot with two sources is refused with both, and says whether they differ") {
  SideRules rules;
  rules.maps = {map_rule("a", "s"), map_rule("b", "s")};
  check_refused(declare(rules, {{"a", DType::f32, {4}, {}}, {"b", DType::f32, {4}, {}}}), Code::invalid_topology,
                {"slot 's' has two sources", "'a'", "'b'"});
  check_refused(declare(rules, {{"a", DType::f32, {4}, {}}, {"b", DType::f32, {5}, {}}}), Code::invalid_topology,
                {"[4]", "[5]", "they differ"});
}

TEST_CASE("a trainer's tensors are checked, all errors at once") {
  SideRules rules = rules_on({{"fsdp", 2}});
  rules.placements = {{"*", {"fsdp:0"}, "f.toml:9"}};
  rules.parameters = {{"declared", Shape{4, 4}, false, "f.toml:12"}};
  const std::vector<LocalTensor> tensors{{"twice", DType::f32, {4}, {}},
                                         {"twice", DType::f32, {4}, {}},
                                         {"few", DType::f32, {4, 4}, {1}},
                                         {"broadcast", DType::f32, {4, 4}, {0, 1}},
                                         {"overlap", DType::f32, {4, 4}, {3, 1}},
                                         {"negative", DType::f32, {4, -4}, {}},
                                         {"backwards", DType::f32, {4}, {-1}},
                                         {"declared", DType::f32, {4, 5}, {}},
                                         {"huge", DType::f32, {4, 4}, {Index{1} << 62, 1}}};
  check_refused(declare(rules, tensors), Code::invalid_argument,
                {"'twice' is added twice", "'few': 1 strides", "'broadcast'", "'overlap'", "'negative'", "'backwards'",
                 "f.toml:12", "'huge'"});
}

TEST_CASE("strided local memory changes addresses only") {
  SideRules rules = rules_on({{"fsdp", 2}});
  rules.placements = {{"*", {"fsdp:0"}, "f.toml:9"}};
  // the local [2, 6] of a full [4, 6], stored transposed with a gap: element (i, j) at i + 3 j
  const auto declaration = declare(rules, {{"p", DType::f32, {4, 6}, {1, 3}}}, 1);
  REQUIRE(declaration);
  CHECK(declaration->parameters.front().full_shape == Shape{4, 6});
  CHECK(declaration->parameters.front().local_shape == Shape{2, 6});
  CHECK(declaration->parameters.front().strides == std::vector<Index>{1, 3});
  CHECK(declaration->regions.front().dims == std::vector<std::vector<Segment>>{{{2, 2, 0, 1}}, {{0, 6, 0, 3}}});
}

TEST_CASE("positions past 2^31 survive") {
  SideRules rules = rules_on({{"fsdp", 2}});
  rules.placements = {{"*", {"fsdp:1"}, "f.toml:9"}};
  const auto declaration = declare(rules, {{"p", DType::bf16, {300000, 7168}, {}}}, 1);
  REQUIRE(declaration);
  CHECK(declaration->regions.front().dims ==
        std::vector<std::vector<Segment>>{{{0, 300000, 0, 3584}}, {{3584, 3584, 0, 1}}});
}

TEST_CASE("a bound name that the parameter's name already gives is that one number") {
  SideRules rules;
  rules.maps = {
    map_rule("stack{e}", "s{e}", "[e, :]"),
  };
  rules.parameters = {{"*", std::nullopt, true, "f.toml:12"}};
  const auto declaration = declare(rules, {{"stack2", DType::f32, {4, 5}, {}}});
  REQUIRE(declaration);
  REQUIRE(declaration->slots.size() == 1);
  CHECK(declaration->slots.front().name == "s2");
  CHECK(declaration->regions.front().base == 10);
}

TEST_CASE("a wrapper's prefix is a star, on both sides") {
  SideRules rules;
  rules.maps = {map_rule("module.*", "*")};
  const auto declaration = declare(rules, {{"module.a.b", DType::f32, {4}, {}}, {"plain", DType::f32, {4}, {}}});
  REQUIRE(declaration);
  CHECK(declaration->slots[0].name == "a.b");
  CHECK(declaration->slots[1].name == "plain");
  const auto parameters = compiled(rules, Side::Role::worker).worker_parameters(declaration->slots, 0);
  REQUIRE(parameters);
  CHECK((*parameters)[0].name == "module.a.b");
  CHECK((*parameters)[1].name == "module.plain");
}

TEST_CASE("expert numbers are global: of 8 experts over EP4, expert 5 lies in the second place of worker 2") {
  SideRules rules = rules_on({{"ep", 4}});
  rules.maps = {map_rule("w", "w.{e}", "[e, :, :]")};
  rules.placements = {{"w", {"ep:0"}, "f.toml:9"}};
  std::vector<SlotSpec> slots;
  for (int e = 0; e < 8; ++e)
    slots.push_back({"w." + std::to_string(e), DType::f32, {2, 2}});
  const Side worker = compiled(rules, Side::Role::worker);
  const std::vector<LocalTensor> tensors{{"w", DType::f32, {2, 2, 2}, {}}};
  for (Index index = 0; index < 4; ++index) {
    CAPTURE(index);
    const auto declaration = worker.declare_worker(slots, tensors, index);
    REQUIRE(declaration);
    REQUIRE(declaration->regions.size() == 2);
    for (Index i = 0; i < 2; ++i) {
      const Region& region = declaration->regions[static_cast<std::size_t>(i)];
      CHECK(declaration->slots[region.slot].name == "w." + std::to_string(2 * index + i));
      CHECK(region.base == 4 * i); // element [1, 0] of expert 5: 4 + 2 = local 6 of worker 2
    }
  }
  // an expert that is missing in the middle leaves a hole
  slots.erase(slots.begin() + 3);
  check_refused(worker.worker_parameters(slots, 0), Code::invalid_topology,
                {"'w' [8, 2, 2]", "4 of 32", "[3:4, 0:2, 0:2]"});
}

TEST_CASE("tied weights: two maps read one slot, and a mapped slot no longer stands for itself") {
  const std::vector<SlotSpec> slots{{"model.embed_tokens.weight", DType::f32, {6, 2}}};
  SideRules rules;
  rules.maps = {map_rule("lm_head.weight", "model.embed_tokens.weight")};
  auto names = [&] {
    const auto parameters = compiled(rules, Side::Role::worker).worker_parameters(slots, 0);
    REQUIRE(parameters);
    std::vector<std::string> result;
    for (const ParameterSpec& parameter : *parameters)
      result.push_back(parameter.name);
    return result;
  };
  CHECK(names() == std::vector<std::string>{"lm_head.weight"});
  rules.maps.push_back(map_rule("model.embed_tokens.weight", ""));
  CHECK(names() == std::vector<std::string>{"lm_head.weight", "model.embed_tokens.weight"});
  rules.maps.clear();
  CHECK(names() == std::vector<std::string>{"model.embed_tokens.weight"});
}

TEST_CASE("a worker's vocabulary padding needs its shape and keeps out of every region") {
  const std::vector<SlotSpec> slots{{"head", DType::f32, {10, 2}}};
  SideRules rules = rules_on({{"tp", 2}});
  rules.maps = {map_rule("head", "head", "[0:10, :]")};
  rules.placements = {{"head", {"tp:0"}, "f.toml:9"}};
  rules.parameters = {{"head", Shape{16, 2}, true, "f.toml:12"}};
  const Side worker = compiled(rules, Side::Role::worker);
  const std::vector<LocalTensor> tensors{{"head", DType::f32, {8, 2}, {}}};
  const auto declaration = worker.declare_worker(slots, tensors, 1);
  REQUIRE(declaration);
  CHECK(declaration->regions.front().dims.front() == std::vector<Segment>{{8, 2, 0, 2}});
  rules.parameters.front().padding = false;
  check_refused(compiled(rules, Side::Role::worker).worker_parameters(slots, 1), Code::invalid_topology,
                {"[16, 2]", "12 of 32", "[10:16, 0:2]"});
  rules.maps.clear(); // a declared shape does not bend the identity
  check_refused(compiled(rules, Side::Role::worker).worker_parameters(slots, 1), Code::disagreement,
                {"'head' [16, 2]", "[10, 2]"});
}

TEST_CASE("a worker's slots must agree with its maps in shape and dtype") {
  SideRules rules;
  rules.maps = {map_rule("p", "a", "[0:4, :]"), map_rule("p", "b", "[4:8, :]")};
  const Side worker = compiled(rules, Side::Role::worker);
  using Slots = std::vector<SlotSpec>;
  check_refused(worker.worker_parameters(Slots{{"a", DType::f32, {4, 2}}, {"b", DType::bf16, {4, 2}}}, 0),
                Code::disagreement, {"'p'", "'a' is float32", "'b' is bfloat16"});
  check_refused(worker.worker_parameters(Slots{{"a", DType::f32, {5, 2}}, {"b", DType::f32, {4, 2}}}, 0),
                Code::disagreement, {"f.toml:7", "'p'", "'a'", "part is [4, 2], the slot's [5, 2]"});
  check_refused(worker.worker_parameters(Slots{{"a", DType::f32, {4, 2}}, {"b", DType::f32, {4, 3}}}, 0),
                Code::disagreement, {"'p'", "slot 'a' [4, 2] makes it [4, 2], slot 'b' [4, 3] makes it [8, 3]"});
  check_refused(worker.worker_parameters(Slots{{"a", DType::f32, {8}}}, 0), Code::invalid_topology, {"keeps 2 dims"});
}

TEST_CASE("a view alone tells a worker's shape where it can, and asks for it where it cannot") {
  SideRules rules;
  rules.maps = {map_rule("qkv", "q", "[:, 0:3, :, :]", "[2, 5, 4, 6]"),
                map_rule("qkv", "k", "[:, 3, :, :]", "[2, 5, 4, 6]"),
                map_rule("qkv", "v", "[:, 4:5, :, :]", "[2, 5, 4, 6]")};
  const std::vector<SlotSpec> slots{{"q", DType::f32, {24, 6}}, {"k", DType::f32, {8, 6}}, {"v", DType::f32, {8, 6}}};
  const auto parameters = compiled(rules, Side::Role::worker).worker_parameters(slots, 0);
  INFO((parameters ? "" : parameters.error().message));
  REQUIRE(parameters);
  CHECK(parameters->front().full_shape == Shape{40, 6});

  rules.maps = {map_rule("p", "s{e}", "[e, :]", "[2, 3]")};
  const std::vector<SlotSpec> open{{"s0", DType::f32, {3}}, {"s1", DType::f32, {3}}};
  check_refused(compiled(rules, Side::Role::worker).worker_parameters(open, 0), Code::invalid_topology,
                {"'p'", "leave open", "[6]", "[2, 3]", "[[worker.parameter]]"});
  rules.parameters = {{"p", Shape{6}, false, "f.toml:12"}};
  CHECK(compiled(rules, Side::Role::worker).worker_parameters(open, 0));

  rules.maps = {map_rule("p", "s", "", "[2, 3]")};
  rules.parameters.clear();
  check_refused(compiled(rules, Side::Role::worker).worker_parameters(std::vector<SlotSpec>{{"s", DType::f32, {7}}}, 0),
                Code::invalid_topology, {"'p'", "[2, 3]", "[7]"});
}

TEST_CASE("a worker's tensors are checked, all errors at once") {
  const std::vector<SlotSpec> slots{
    {"a", DType::f32, {4}}, {"b", DType::f32, {4}}, {"c", DType::f32, {4}}, {"d", DType::f32, {4}}};
  SideRules rules;
  rules.unused = {"d"};
  const Side worker = compiled(rules, Side::Role::worker);
  const std::vector<LocalTensor> tensors{{"a", DType::bf16, {4}, {}},
                                         {"b", DType::f32, {5}, {}},
                                         {"b", DType::f32, {4}, {}},
                                         {"x", DType::f32, {4}, {}},
                                         {"d", DType::f32, {4}, {}}};
  check_refused(worker.declare_worker(slots, tensors, 0), Code::disagreement,
                {"'a' is bound as bfloat16, the trainer sends float32", "'b' is bound with local shape [5]",
                 "'b' is bound twice", "no slot or map leads to the bound tensors 'x', 'd'", "not bound: 'c'"});
  const std::vector<LocalTensor> right{
    {"c", DType::f32, {4}, {2}}, {"a", DType::f32, {4}, {}}, {"b", DType::f32, {4}, {}}};
  const auto declaration = worker.declare_worker(slots, right, 0);
  REQUIRE(declaration);
  CHECK(declaration->parameters.front().name == "c"); // in the order of binding
  CHECK(declaration->parameters.front().strides == std::vector<Index>{2});
  CHECK(declaration->slots.size() == 3);
  CHECK(declaration->slots.front().name == "a"); // in the order of the catalogue
}

TEST_CASE("a catalogue that names a slot twice is refused") {
  const std::vector<SlotSpec> slots{{"a", DType::f32, {4}}, {"a", DType::f32, {4}}};
  check_refused(compiled({}, Side::Role::worker).worker_parameters(slots, 0), Code::invalid_argument, {"'a'", "twice"});
}

TEST_CASE("each role declares its own side only") {
  check_refused(compiled({}, Side::Role::worker).declare_trainer({}, 0), Code::internal, {"worker"});
  check_refused(compiled({}).declare_worker({}, {}, 0), Code::internal, {"trainer"});
  check_refused(compiled({}).worker_parameters({}, 0), Code::internal, {"trainer"});
}

TEST_CASE("a rule that names one thing must find it; a pattern may match nothing") {
  SideRules rules;
  rules.placements = {{"here.*", {}, "f.toml:1"}, {"typo", {}, "f.toml:2"}};
  rules.maps = {map_rule("packed", "slot"), map_rule("packed", "slto"), map_rule("nothing.{l}", "nothing.{l}.w")};
  rules.parameters = {{"padde", std::nullopt, true, "f.toml:3"}};
  rules.unused = {"rotary", "rotary.*"};
  const std::vector<std::string> names{"packed", "padded"};
  const std::vector<SlotSpec> slots{{"slot", DType::bf16, {4}}};
  const auto known = compiled(rules, Side::Role::worker).check_names(names, slots);
  check_refused(known, Code::disagreement,
                {"f.toml:2: no parameter is named 'typo'", "f.toml:7: no slot is named 'slto'",
                 "f.toml:3: no parameter is named 'padde'", "worker.unused: no slot is named 'rotary'"});
  CHECK(known.error().message.find("nothing") == std::string::npos);
  CHECK(known.error().message.find('*') == std::string::npos);
  // A trainer's maps make their slots: there is none to find.
  SideRules trainer;
  trainer.maps = {map_rule("packed", "made.up")};
  CHECK(compiled(trainer).check_names(names, {}));
}
