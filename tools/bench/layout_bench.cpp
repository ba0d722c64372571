#include "layout_bench.hpp"

#include "measure.hpp"

#include "layout/block_placement.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <random>
#include <stdexcept>

namespace deltawire::bench {
namespace {

using layout::BlockPlacement;
using layout::Index;

constexpr std::size_t rounds = 15;

struct Block {
  const char* what;
  BlockPlacement placement;
};

/// Positions of a shard, each taken with the same probability.
std::vector<Index> changed_positions(Index elements, double density) {
  std::mt19937_64 random(1); // NOLINT(cert-msc51-cpp): the same work in every run
  std::geometric_distribution<Index> gap(density);
  std::vector<Index> positions;
  for (Index at = gap(random); at < elements; at += 1 + gap(random))
    positions.push_back(at);
  return positions;
}

Row translate_row(const Block& block, double density) {
  const std::vector<Index> local = changed_positions(*layout::element_count(block.placement.local_shape), density);
  std::vector<Index> full(local.size());
  const std::size_t bytes = local.size() * sizeof(Index);
  const std::array contenders{
    Contender{{},
              [&](std::size_t) {
                if (!layout::translate_flat_indices(block.placement, local, full))
                  throw std::logic_error("the bench's own positions are refused");
                keep(static_cast<std::size_t>(full.back()));
              }},
    Contender{{},
              [&](std::size_t) {
                std::memcpy(full.data(), local.data(), bytes);
                keep(static_cast<std::size_t>(full.back()));
              }},
  };
  const Turns turns = take_turns(contenders, 1, rounds);
  Row row;
  row.work = fmt::format("translate positions, {}", block.what);
  row.input = fmt::format("{:g} % of {} of {}", density * 100, layout::to_string(block.placement.local_shape),
                          layout::to_string(block.placement.full_shape));
  row.bytes_per_second = static_cast<double>(bytes) / median(turns[0]);
  row.limits.push_back({"copy", static_cast<double>(bytes) / median(turns[1]), median_ratio(turns[0], turns[1])});
  return row;
}

} // namespace

Report layout_bench() {
  const std::array blocks{
    Block{"contiguous", {{4096, 8192}, {4096, 0}, {16384, 8192}}},
    Block{"Shard(1)", {{8192, 4096}, {0, 4096}, {8192, 16384}}},
    Block{"3 dims", {{16, 2048, 1024}, {16, 2048, 1024}, {64, 4096, 4096}}},
  };
  Report report{"layout", {}};
  for (const Block& block : blocks)
    for (const double density : {0.001, 0.02, 1.0})
      report.rows.push_back(translate_row(block, density));
  return report;
}

} // namespace deltawire::bench
