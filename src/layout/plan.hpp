// The agreement's result: cells and blocks, compiled once from every rank's and worker's declaration.
//
// Cells are the coarsest parts of a slot that all workers' shards respect: per dim, indices that the same set of worker
// regions contains form a class, and a cell is a product of classes. Blocks are the owners' boxes cut at the workers'
// segment boundaries, so that a block lies within one cell and maps affinely into each worker parameter that meets it.
// Block coordinates: row-major over `extents`, which are ordered so that the owner's local memory is walked with the
// largest local stride outermost; dims whose strides nest on the owner's, the slot's and every worker's side are
// merged.
#pragma once

#include "layout/region.hpp"

#include <span>

namespace deltawire::layout {

/// One side's view of a block: extents, and the affine maps from block coordinates to the local buffer and the slot.
/// element (x_0..x_k) lies at local_offset + sum x_d * local_strides[d] and at slot_offset + sum x_d * slot_strides[d].
struct Block {
  std::uint32_t id = 0;        ///< agreed: ascending in the walk order (parameter order, then rank)
  std::uint32_t parameter = 0; ///< of the declaration of the process that holds this view
  std::uint32_t slot = 0;      ///< index into Plan::slots
  std::uint32_t cell = 0;      ///< index into Plan::cells
  std::uint32_t window = 0;
  DType dtype = DType::bf16;
  std::vector<Index> extents; ///< never empty; a scalar is [1]
  Index local_offset = 0;
  std::vector<Index> local_strides;
  Index slot_offset = 0;
  std::vector<Index> slot_strides;

  friend bool operator==(const Block&, const Block&) = default;
};

[[nodiscard]] Index element_count(const Block& block) noexcept;

struct Cell {
  std::uint32_t slot = 0;
  Index elements = 0;

  friend bool operator==(const Cell&, const Cell&) = default;
};

struct Plan {
  std::vector<SlotSpec> slots; ///< the catalogue, in parameter order
  std::vector<Cell> cells;
  std::uint32_t blocks = 0;  ///< ids are 0..blocks
  std::uint32_t windows = 0; ///< ids are 0..windows; a window ends before the parameter that would pass window_bytes
  std::vector<std::vector<Block>> ranks; ///< per rank, by id: what it owns (local = the rank's buffer)
  std::vector<std::vector<Block>>
    workers; ///< per worker, by id: what it reads; ties repeat an id (local = the worker's buffer)
};

/// The slots of all ranks, in parameter order (first appearance, ranks in order). Fails where two ranks disagree on a
/// slot.
[[nodiscard]] Result<std::vector<SlotSpec>> catalogue(std::span<const Declaration> ranks);

/// Checks and compiles. All errors at once, by tensor, rank or worker and range: elements that no rank or more than one
/// provides, a slot that no worker reads and `unused` (patterns) does not list, or that it names and workers read, one
/// that a worker reads and nobody provides, dtypes that differ, a local address outside its buffer.
[[nodiscard]] Result<Plan> compile_plan(std::span<const Declaration> ranks, std::span<const Declaration> workers,
                                        std::span<const std::string> unused, std::uint64_t window_bytes);

} // namespace deltawire::layout
