#include "sync/route_table.hpp"

#include <map>
#include <numeric>

namespace deltawire::sync {

RouteTable broadcast(std::uint32_t blocks, std::size_t cells, std::size_t workers) {
  RouteTable table;
  table.route_of_block.assign(blocks, 0);
  table.workers.emplace_back(workers);
  std::iota(table.workers[0].begin(), table.workers[0].end(), 0);
  table.cells.assign(workers, std::vector<bool>(cells, true));
  return table;
}

std::vector<std::vector<bool>> held_cells(std::size_t cells, std::span<const std::vector<layout::Block>> workers) {
  std::vector<std::vector<bool>> held(workers.size(), std::vector<bool>(cells));
  for (std::size_t worker = 0; worker < workers.size(); ++worker)
    for (const layout::Block& block : workers[worker])
      held[worker][block.cell] = true;
  return held;
}

RouteTable rank_local(std::uint32_t blocks, std::size_t cells, std::span<const std::vector<layout::Block>> workers) {
  RouteTable table;
  table.cells = held_cells(cells, workers);
  // Sets of workers are refined worker by worker: a block's set is a number, and (number, next worker) another one.
  constexpr std::uint32_t none = 0;
  std::vector<std::uint32_t> set_of_block(blocks, none);
  std::vector<std::vector<std::uint32_t>> sets(1);
  for (std::uint32_t worker = 0; worker < workers.size(); ++worker) {
    std::map<std::uint32_t, std::uint32_t> with_worker; ///< by set: the set that has this worker too
    std::uint32_t last = RouteTable::nobody;            // ties repeat an id
    for (const layout::Block& block : workers[worker]) {
      if (block.id == last)
        continue;
      last = block.id;
      const auto [at, added] = with_worker.try_emplace(set_of_block[block.id], static_cast<std::uint32_t>(sets.size()));
      if (added) {
        std::vector<std::uint32_t> wider = sets[set_of_block[block.id]];
        wider.push_back(worker);
        sets.push_back(std::move(wider));
      }
      set_of_block[block.id] = at->second;
    }
  }
  // Sets that were only a step on the way are no routes.
  std::vector<std::uint32_t> route_of_set(sets.size(), RouteTable::nobody);
  table.route_of_block.assign(blocks, RouteTable::nobody);
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const std::uint32_t set = set_of_block[block];
    if (set == none)
      continue;
    if (route_of_set[set] == RouteTable::nobody) {
      route_of_set[set] = static_cast<std::uint32_t>(table.workers.size());
      table.workers.push_back(std::move(sets[set]));
    }
    table.route_of_block[block] = route_of_set[set];
  }
  return table;
}

} // namespace deltawire::sync
