#include "actors/rank_work.hpp"

#include <utility>

namespace deltawire::actors {

std::shared_ptr<RankWork> RankWork::make(std::uint32_t rank, std::vector<layout::Block> blocks, std::uint32_t windows,
                                         std::uint64_t chunk_bytes, std::uint64_t inflight, std::size_t piece_limit,
                                         std::vector<const std::byte*> parameters, std::vector<DType> dtypes,
                                         std::shared_ptr<RankGpu> gpu) {
  auto work = std::make_shared<RankWork>();
  work->rank = rank;
  work->windows = windows;
  work->piece_limit = piece_limit;
  work->blocks = std::move(blocks);
  work->memory.parameters = std::move(parameters);
  work->memory.dtypes = std::move(dtypes);
  work->gpu = std::move(gpu);

  sync::Chunks cut = sync::cut_chunks(work->blocks, chunk_bytes, inflight, piece_limit);
  work->chunks = std::move(cut.chunks);
  work->elements = cut.elements;
  work->place_snapshots();
  work->memory.logs.resize(work->chunks.size());
  work->memory.digest_changes.resize(work->chunks.size());
  return work;
}

/// Block after block, on the host and on the GPU.
void RankWork::place_snapshots() {
  std::size_t on_host = 0;
  std::size_t on_gpu = 0;
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    std::size_t& next = home(b) == BlockHome::gpu ? on_gpu : on_host;
    memory.snapshot_offsets.push_back(next);
    next += sync::snapshot_bytes(blocks[b]);
  }
  memory.snapshot = delta::SnapshotMemory(on_host);
}

DType RankWork::held_dtype(const layout::Block& block) const {
  return memory.dtypes.empty() ? block.dtype : memory.dtypes[block.parameter];
}

BlockHome RankWork::home(std::uint32_t b) const {
  return gpu ? gpu->home(blocks[b], held_dtype(blocks[b])) : BlockHome::host;
}

delta::OwnedBlock RankWork::owned(std::uint32_t b) {
  const layout::Block& block = blocks[b];
  std::byte* const snapshots = home(b) == BlockHome::gpu ? gpu->snapshots() : memory.snapshot.data();
  return {&block, memory.parameters[block.parameter], snapshots + memory.snapshot_offsets[b],
          delta::cast_between(held_dtype(block), block.dtype)};
}

} // namespace deltawire::actors
