#include "actors/rank_work.hpp"

#include <utility>

namespace deltawire::actors {

std::shared_ptr<RankWork> RankWork::make(std::uint32_t rank, std::vector<layout::Block> blocks, std::uint32_t windows,
                                         std::uint64_t chunk_bytes, std::uint64_t inflight, std::size_t piece_limit,
                                         std::vector<const std::byte*> parameters, std::vector<DType> dtypes) {
  auto work = std::make_shared<RankWork>();
  work->rank = rank;
  work->windows = windows;
  work->piece_limit = piece_limit;
  work->blocks = std::move(blocks);
  work->memory.parameters = std::move(parameters);
  work->memory.dtypes = std::move(dtypes);

  sync::Chunks cut = sync::cut_chunks(work->blocks, chunk_bytes, inflight, piece_limit);
  work->chunks = std::move(cut.chunks);
  work->elements = cut.elements;
  work->memory.snapshot_offsets = std::move(cut.snapshot_offsets);
  work->memory.snapshot = delta::SnapshotMemory(cut.snapshot_bytes);
  work->memory.logs.resize(work->chunks.size());
  work->memory.digest_changes.resize(work->chunks.size());
  return work;
}

delta::OwnedBlock RankWork::owned(std::uint32_t b) {
  const layout::Block& block = blocks[b];
  const DType held = memory.dtypes.empty() ? block.dtype : memory.dtypes[block.parameter];
  return {&block, memory.parameters[block.parameter], memory.snapshot.data() + memory.snapshot_offsets[b],
          delta::cast_between(held, block.dtype)};
}

} // namespace deltawire::actors
