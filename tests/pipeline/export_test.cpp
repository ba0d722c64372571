// Export rules through the whole pipeline: a layout that no map can say, and rules that are wrong.

#include "catch.hpp"
#include "session.hpp"
#include "unit/text_matchers.hpp"

#include <fmt/format.h>

#include <stdexcept>

using namespace deltawire;
using namespace deltawire::test;

namespace {

constexpr std::int64_t tile = 4; // rows and columns
constexpr std::int64_t across = 3;
constexpr std::int64_t columns = tile * across;

/// Column of tiles of the k-th one: every other row of tiles runs from right to left.
std::int64_t column_of(std::int64_t k) {
  const std::int64_t b = k % across;
  return k / across % 2 == 0 ? b : across - 1 - b;
}

/// Two ranks that hold "w", 12 x 12, as 9 tiles of 4 x 4 behind each other in a snake: 5 on one, 4 on the other; and
/// "b" as it is. One worker has both plainly.
Scenario snake() {
  Scenario scenario;
  scenario.topology = R"(
[trainer]
mesh = [["fsdp", 2]]
[[trainer.placement]]
parameter = "*"
shard = ["fsdp:0"]
)";
  Values w{"w", DType::bf16, {}}, b{"b", DType::f32, {}};
  for (std::uint64_t i = 0; i < columns * columns; ++i)
    w.bits.push_back(i);
  for (std::uint64_t i = 0; i < 6; ++i)
    b.bits.push_back(0x3F800000 + i);
  scenario.tensors = {w, b};
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    Held tiles{"tiles", DType::bf16, {9, tile, tile}, {}, {}, 0, {}};
    for (std::int64_t k = rank == 0 ? 0 : 5; k < (rank == 0 ? 5 : 9); ++k)
      for (std::int64_t row = 0; row < tile; ++row)
        for (std::int64_t column = 0; column < tile; ++column)
          tiles.elements.push_back(
            {0, static_cast<std::uint64_t>((k / across * tile + row) * columns + column_of(k) * tile + column)});
    Held plain{"b", DType::f32, {6}, {}, {}, 0, {}};
    for (std::uint64_t i = 0; i < 3; ++i)
      plain.elements.push_back({1, static_cast<std::uint64_t>(rank) * 3 + i});
    scenario.ranks.push_back({tiles, plain});
  }
  Held all_w{"w", DType::bf16, {}, {}, {}, 0, {}}, all_b{"b", DType::f32, {}, {}, {}, 0, {}};
  for (std::uint64_t i = 0; i < columns * columns; ++i)
    all_w.elements.push_back({0, i});
  for (std::uint64_t i = 0; i < 6; ++i)
    all_b.elements.push_back({1, i});
  scenario.workers = {{all_w, all_b}};
  return scenario;
}

/// The rule for it, which the mesh's size and the placement (ceil) tell.
std::optional<std::vector<ExportedSlot>> rule(const ExportedParameter& parameter) {
  if (parameter.name != "tiles")
    return std::nullopt;
  const std::int64_t first = parameter.rank == 0 ? 0 : 5;
  ExportedSlot slot{"w", {columns, columns}, {}};
  for (std::int64_t k = 0; k < parameter.local_shape.at(0); ++k) {
    const std::int64_t global = first + k;
    slot.blocks.push_back(
      {{global / across * tile, column_of(global) * tile}, {tile, tile}, {tile, 1}, k * tile * tile, {}});
  }
  return std::vector{slot};
}

std::string all_of(const std::vector<std::string>& thrown) {
  std::string text;
  for (const std::string& each : thrown)
    text += each + "\n";
  return text;
}

} // namespace

TEST_CASE("a rank's memory in tiles is exported by a rule, beside parameters that maps describe") {
  const Scenario scenario = snake();
  Session session(scenario);
  std::vector<std::vector<std::string>> asked(2);
  for (std::size_t rank = 0; rank < 2; ++rank)
    session.rank(rank).export_with([&asked, rank](const ExportedParameter& parameter) {
      // On a thread of its own: no checks here.
      asked[rank].push_back(fmt::format("{} on {} of {}", parameter.name, parameter.rank, parameter.world));
      return rule(parameter);
    });
  for (const std::string& thrown : session.connect())
    REQUIRE(thrown == "");
  CHECK(asked[0] == std::vector<std::string>{"tiles on 0 of 2", "b on 0 of 2"}); // once each
  CHECK(asked[1] == std::vector<std::string>{"tiles on 1 of 2", "b on 1 of 2"});

  std::vector<Values> values = scenario.tensors;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    if (step > 1)
      for (std::uint64_t i = 0; i < 20; ++i)
        values[0].bits[(i * 31 + step * 7) % values[0].bits.size()] ^= 0x8001 + step;
    session.publish(values, step);
    for (const Outcome& outcome : session.wait()) {
      CHECK(outcome.error_message == "");
      CHECK(outcome.committed);
      CHECK(outcome.slots == 2);
      if (step > 1)
        CHECK(outcome.changed == 20);
    }
    CHECK(session.compare(values) == "");
  }
  session.close();
}

TEST_CASE("a rule that is wrong is refused by tensor and range, and no worker is touched") {
  const Scenario scenario = snake();
  const auto refused = [&](const ExportRule& wrong) {
    Session session(scenario, {"update.connect=2s"});
    for (std::size_t rank = 0; rank < 2; ++rank)
      session.rank(rank).export_with(wrong);
    const std::string text = all_of(session.connect());
    CHECK(session.untouched());
    return text;
  };
  // Forgets the snake: two tiles lie over others, two are nowhere.
  CHECK_THAT(refused([](const ExportedParameter& parameter) {
               auto slots = rule(parameter);
               if (slots && parameter.rank == 1)
                 for (ExportedBlock& block : slots->front().blocks)
                   block.begin[1] = (block.local_offset / (tile * tile) + 5) % across * tile;
               return slots;
             }),
             contains("slot \"w\" [12, 12]") && contains("no rank provides [4:8, 0:4]") &&
               contains("[4:8, 8:12] is provided 2 times") && contains("parameter \"tiles\""));
  // Leaves the slot and the memory; both are told.
  CHECK_THAT(refused([](const ExportedParameter& parameter) {
               auto slots = rule(parameter);
               if (slots && parameter.rank == 0) {
                 slots->front().blocks[0].begin[0] = 9;
                 slots->front().blocks[4].local_offset += 1;
               }
               return slots;
             }),
             contains("rank 0: parameter 'tiles', exported by rule: block 0 of slot 'w' [12, 12]: [9:13, 0:4] leaves "
                      "the slot in dim 0") &&
               contains("block 4 of slot 'w' [12, 12]: [4:8, 4:8] lies at local elements 65 to 80, the shard has 80"));
  CHECK_THAT(refused([](const ExportedParameter&) -> std::optional<std::vector<ExportedSlot>> {
               throw std::runtime_error("no such layer");
             }),
             contains("the export rule threw at parameter 'tiles': no such layer"));
}

TEST_CASE("export_with() has its place in the order of calls") {
  const Scenario scenario = two_ranks();
  Session session(scenario);
  const auto code_of = [&](ExportRule wrong) {
    try {
      session.rank(0).export_with(std::move(wrong));
    } catch (const Error& error) {
      return error.code();
    }
    return Code::internal;
  };
  const ExportRule none = [](const ExportedParameter&) { return std::nullopt; };
  CHECK(code_of(nullptr) == Code::invalid_argument);
  session.rank(0).export_with(none);
  CHECK(code_of(none) == Code::call_order);
  for (const std::string& thrown : session.connect())
    REQUIRE(thrown == "");
  CHECK(code_of(none) == Code::call_order);
  session.close();
}
