// Which workers get which pieces. A route is a set of workers; every block belongs to one. Built once from the plan.
#pragma once

#include "layout/plan.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace deltawire::sync {

struct RouteTable {
  /// Of a block that no worker meets: its pieces need not travel.
  static constexpr std::uint32_t nobody = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> route_of_block;       ///< by block id
  std::vector<std::vector<std::uint32_t>> workers; ///< by route, ascending
  std::vector<std::vector<bool>> cells;            ///< by worker: the cells that it holds

  [[nodiscard]] bool meets(std::uint32_t worker, std::uint32_t cell) const { return cells[worker][cell]; }
};

/// By worker: the cells that its shards meet. `workers` as in layout::Plan.
[[nodiscard]] std::vector<std::vector<bool>> held_cells(std::size_t cells,
                                                        std::span<const std::vector<layout::Block>> workers);

/// One route: everybody gets everything, and is taken to hold it; who holds what is held_cells().
[[nodiscard]] RouteTable broadcast(std::uint32_t blocks, std::size_t cells, std::size_t workers);

/// A worker gets the blocks that its shards meet, and nothing else.
[[nodiscard]] RouteTable rank_local(std::uint32_t blocks, std::size_t cells,
                                    std::span<const std::vector<layout::Block>> workers);

} // namespace deltawire::sync
