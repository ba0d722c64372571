// Contract of sync/route_table.hpp: each block goes to exactly the workers that meet it, each set of workers is one
// route, and a worker's cells are those of its blocks.
#include "catch.hpp"
#include "random.hpp"

#include "sync/route_table.hpp"

#include <algorithm>
#include <set>

using namespace deltawire;
using sync::RouteTable;

namespace {

layout::Block block(std::uint32_t id, std::uint32_t cell) {
  layout::Block made;
  made.id = id;
  made.cell = cell;
  return made;
}

} // namespace

TEST_CASE("by broadcast everybody gets everything") {
  const RouteTable table = sync::broadcast(3, 2, 4);
  CHECK(table.route_of_block == std::vector<std::uint32_t>{0, 0, 0});
  CHECK(table.workers == std::vector<std::vector<std::uint32_t>>{{0, 1, 2, 3}});
  for (std::uint32_t worker = 0; worker < 4; ++worker)
    for (std::uint32_t cell = 0; cell < 2; ++cell)
      CHECK(table.meets(worker, cell));
}

TEST_CASE("rank-local, a block goes to the workers that meet it and to no other, and equal sets are one route") {
  CAPTURE(test::seed());
  auto random = test::generator(0x4071);
  const auto below = [&](std::uint64_t end) { return static_cast<std::uint32_t>(random() % end); };
  std::size_t unmet = 0, ties = 0;
  for (int round = 0; round < 500; ++round) {
    CAPTURE(round);
    const std::uint32_t blocks = 1 + below(40), cells = 1 + below(10), workers = 1 + below(6);
    std::vector<std::uint32_t> cell_of(blocks);
    for (std::uint32_t& cell : cell_of)
      cell = below(cells);
    const std::uint32_t one_in = 1 + below(4);
    std::vector<std::vector<layout::Block>> held(workers);
    std::vector<std::set<std::uint32_t>> meets(blocks);
    for (std::uint32_t worker = 0; worker < workers; ++worker)
      for (std::uint32_t id = 0; id < blocks; ++id)
        for (std::uint32_t copies = below(one_in) == 0 ? 1 + below(2) : 0; copies > 0; --copies) {
          ties += meets[id].insert(worker).second ? 0 : 1;
          held[worker].push_back(block(id, cell_of[id]));
        }
    const RouteTable table = sync::rank_local(blocks, cells, held);
    std::set<std::vector<std::uint32_t>> distinct;
    for (const std::vector<std::uint32_t>& route : table.workers) {
      REQUIRE(std::is_sorted(route.begin(), route.end()));
      REQUIRE_FALSE(route.empty());
      REQUIRE(distinct.insert(route).second);
    }
    std::set<std::uint32_t> used;
    for (std::uint32_t id = 0; id < blocks; ++id) {
      const std::uint32_t route = table.route_of_block[id];
      if (meets[id].empty()) {
        REQUIRE(route == RouteTable::nobody);
        ++unmet;
        continue;
      }
      used.insert(route);
      REQUIRE(table.workers.at(route) == std::vector<std::uint32_t>(meets[id].begin(), meets[id].end()));
    }
    REQUIRE(used.size() == table.workers.size());
    for (std::uint32_t worker = 0; worker < workers; ++worker)
      for (std::uint32_t cell = 0; cell < cells; ++cell) {
        bool met = false;
        for (std::uint32_t id = 0; id < blocks; ++id)
          met = met || (cell_of[id] == cell && meets[id].contains(worker));
        REQUIRE(table.meets(worker, cell) == met);
      }
  }
  CHECK(unmet > 100);
  CHECK(ties > 100);
}
