#include "coverage.hpp"

#include "delta/piece.hpp"
#include "delta/stage.hpp"
#include "sync/chunks.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace deltawire::plan {

namespace {

/// How many elements of a block are captured at a time, by block id: the ranges of its chunks.
using Ranges = std::vector<std::vector<std::uint64_t>>;

std::uint64_t elements_of(const layout::Shape& shape) {
  std::uint64_t elements = 1;
  for (const layout::Index extent : shape)
    elements *= static_cast<std::uint64_t>(extent);
  return elements;
}

std::uint64_t elements_of(const layout::Block& block) {
  return static_cast<std::uint64_t>(layout::element_count(block));
}

std::uint64_t slots_in(const std::vector<layout::Block>& blocks) {
  std::set<std::uint32_t> slots;
  for (const layout::Block& block : blocks)
    slots.insert(block.slot);
  return slots.size();
}

/// Chunks of a rank, as it will cut them; the largest of all ranks go into `all`.
void count_chunks(const config::Actors& actors, const std::vector<layout::Block>& blocks, std::size_t piece_limit,
                  RankCoverage& rank, Coverage& all, Ranges& ranges) {
  const sync::Chunks cut = sync::cut_chunks(blocks, actors.differ.chunk, actors.differ.inflight, piece_limit);
  rank.chunks = cut.chunks.size();
  rank.snapshot_bytes = cut.snapshot_bytes;
  for (const sync::Chunk& chunk : cut.chunks) {
    rank.encoded_bytes += chunk.worst_case;
    all.largest_chunk = std::max(all.largest_chunk, chunk.worst_case);
    for (const sync::ChunkRange& range : chunk.ranges) {
      rank.log_bytes += position_log_bytes(range.first, range.count);
      ranges[blocks[range.block].id].push_back(range.count);
      const std::uint64_t worst = delta::worst_case_bytes(range.count, size_of(blocks[range.block].dtype), piece_limit);
      all.largest_piece = std::max(all.largest_piece, std::min<std::uint64_t>(worst, piece_limit));
    }
  }
}

RankCoverage cover_rank(const replay::Sides& sides, const replay::AgreedLayout& agreed, std::size_t index,
                        std::size_t piece_limit, Coverage& all, Ranges& ranges) {
  RankCoverage rank;
  rank.coordinates = sides.trainer.mesh().coordinates(static_cast<layout::Index>(index));
  for (const layout::ParameterSpec& parameter : agreed.ranks[index].parameters) {
    const std::uint64_t elements = elements_of(parameter.local_shape);
    rank.parameters += elements > 0 ? 1 : 0;
    rank.held_elements += elements;
    rank.held_bytes += elements * size_of(parameter.dtype);
  }
  const std::vector<layout::Block>& blocks = agreed.plan.ranks[index];
  rank.slots = slots_in(blocks);
  rank.blocks = blocks.size();
  for (const layout::Block& block : blocks) {
    rank.elements += elements_of(block);
    rank.bytes += elements_of(block) * size_of(block.dtype);
  }
  count_chunks(sides.topology.actors, blocks, piece_limit, rank, all, ranges);
  return rank;
}

WorkerCoverage cover_worker(const replay::Sides& sides, const replay::AgreedLayout& agreed, std::size_t index,
                            std::size_t piece_limit, const Ranges& ranges) {
  WorkerCoverage worker;
  worker.coordinates = sides.worker.mesh().coordinates(static_cast<layout::Index>(index));
  worker.replica = index / static_cast<std::uint64_t>(sides.topology.workers_per_replica());
  std::uint64_t bound = 0;
  for (const layout::ParameterSpec& parameter : agreed.workers[index].parameters) {
    const std::uint64_t elements = elements_of(parameter.local_shape);
    worker.parameters += elements > 0 ? 1 : 0;
    bound += elements;
  }
  const std::vector<layout::Block>& blocks = agreed.plan.workers[index];
  worker.slots = slots_in(blocks);
  worker.blocks = blocks.size();
  for (const layout::Block& block : blocks) {
    worker.elements += elements_of(block);
    worker.bytes += elements_of(block) * size_of(block.dtype);
    for (const std::uint64_t elements : ranges[block.id])
      worker.staged_bytes += delta::worst_case_staged_bytes(block, elements, piece_limit);
  }
  worker.staged_bytes += delta::stage_overhead();
  worker.padding = bound - std::min(bound, worker.elements);
  return worker;
}

/// Source bytes of each window, and of each parameter over all ranks.
void measure_windows(const replay::AgreedLayout& agreed, Coverage& all) {
  std::vector<std::uint64_t> windows(agreed.plan.windows, 0);
  std::map<std::string_view, std::uint64_t> parameters;
  for (std::size_t r = 0; r < agreed.ranks.size(); ++r)
    for (const layout::Block& block : agreed.plan.ranks[r]) {
      const layout::ParameterSpec& parameter = agreed.ranks[r].parameters[block.parameter];
      const std::uint64_t bytes = elements_of(block) * size_of(parameter.dtype);
      windows[block.window] += bytes;
      parameters[parameter.name] += bytes;
    }
  for (const std::uint64_t bytes : windows)
    all.largest_window = std::max(all.largest_window, bytes);
  for (const auto& [name, bytes] : parameters)
    all.largest_parameter = std::max(all.largest_parameter, bytes);
}

/// Slots with elements that no worker has a block of: compile_plan() lets only those pass that are listed as unused.
std::vector<Unused> find_unused(const layout::Plan& plan) {
  std::vector<bool> read(plan.slots.size(), false);
  for (const std::vector<layout::Block>& blocks : plan.workers)
    for (const layout::Block& block : blocks)
      read[block.slot] = true;
  std::vector<Unused> unused;
  for (std::size_t s = 0; s < plan.slots.size(); ++s)
    if (const std::uint64_t elements = elements_of(plan.slots[s].shape); !read[s] && elements > 0)
      unused.push_back({plan.slots[s].name, elements});
  return unused;
}

std::vector<CastParameters> count_casts(const replay::AgreedLayout& agreed) {
  std::map<std::pair<DType, DType>, std::set<std::string_view>> cast;
  for (std::size_t r = 0; r < agreed.ranks.size(); ++r)
    for (const layout::Block& block : agreed.plan.ranks[r])
      if (const layout::ParameterSpec& parameter = agreed.ranks[r].parameters[block.parameter];
          parameter.dtype != block.dtype)
        cast[{parameter.dtype, block.dtype}].insert(parameter.name);
  std::vector<CastParameters> casts;
  for (const auto& [dtypes, names] : cast)
    casts.push_back({dtypes.first, dtypes.second, names.size()});
  return casts;
}

} // namespace

std::uint64_t position_log_bytes(std::uint64_t first, std::uint64_t count) noexcept {
  constexpr std::uint64_t head = 8;     // of a tile, and then a list of positions of 2 bytes
  constexpr std::uint64_t bitmap = 512; // or a bit an element, whichever is smaller
  std::uint64_t bytes = 0;
  const std::uint64_t end = first + count;
  // The first and the last tile may be parts; all between are whole.
  while (first < end) {
    const std::uint64_t in_tile = std::min(end - first, delta::tile_elements - first % delta::tile_elements);
    if (in_tile == delta::tile_elements) {
      const std::uint64_t whole = (end - first) / delta::tile_elements;
      bytes += whole * (head + bitmap);
      first += whole * delta::tile_elements;
    } else {
      bytes += head + std::min(bitmap, 2 * in_tile);
      first += in_tile;
    }
  }
  return bytes;
}

Coverage coverage_of(const replay::Sides& sides, const replay::AgreedLayout& agreed, std::size_t piece_limit,
                     const std::string& checkpoint) {
  Coverage all;
  all.checkpoint = checkpoint;
  all.parameters = agreed.ranks.front().parameters.size();
  all.slots = agreed.plan.slots.size();
  for (const layout::SlotSpec& slot : agreed.plan.slots) {
    all.elements += elements_of(slot.shape);
    all.bytes += elements_of(slot.shape) * size_of(slot.dtype);
  }
  all.cells = agreed.plan.cells.size();
  all.blocks = agreed.plan.blocks;
  all.windows = agreed.plan.windows;
  all.piece_limit = piece_limit;
  measure_windows(agreed, all);
  all.casts = count_casts(agreed);
  all.unused = find_unused(agreed.plan);
  Ranges ranges(agreed.plan.blocks);
  for (std::size_t rank = 0; rank < agreed.ranks.size(); ++rank) {
    all.ranks.push_back(cover_rank(sides, agreed, rank, piece_limit, all, ranges));
    all.encoded_bytes += all.ranks.back().encoded_bytes;
  }
  for (std::size_t worker = 0; worker < agreed.workers.size(); ++worker)
    all.workers.push_back(cover_worker(sides, agreed, worker, piece_limit, ranges));
  return all;
}

} // namespace deltawire::plan
