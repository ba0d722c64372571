// Contract of sync/cell_sums.hpp: a map from cell to sum, held to one.
#include "catch.hpp"
#include "random.hpp"

#include "sync/cell_sums.hpp"

#include <map>

using namespace deltawire;

TEST_CASE("sums by cell are those of a map, listed in order, and forgotten") {
  auto random = test::generator(75);
  std::vector<std::uint32_t> cells;
  for (int i = 0; i < 300; ++i)
    cells.push_back(static_cast<std::uint32_t>(random() % 200 * 7)); // repeats, in any order
  sync::CellSums sums(cells);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> listed;
  for (int round = 0; round < 20; ++round) {
    CAPTURE(test::seed(), round);
    std::map<std::uint32_t, std::uint64_t> expected;
    const std::size_t adds = round == 3 ? 0 : random() % 500;
    for (std::size_t i = 0; i < adds; ++i) {
      const std::uint32_t cell = cells[random() % cells.size()];
      const std::uint64_t change = i % 9 == 0 ? 0 : random();
      sums.add(cell, change);
      expected[cell] += change;
    }
    for (const std::uint32_t cell : cells)
      REQUIRE(sums.at(cell) == (expected.contains(cell) ? expected[cell] : 0));
    sums.list(listed);
    REQUIRE((listed == std::vector<std::pair<std::uint32_t, std::uint64_t>>(expected.begin(), expected.end())));
    sums.clear();
  }
  sums.list(listed);
  REQUIRE(listed.empty());
}
