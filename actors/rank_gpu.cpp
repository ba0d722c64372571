#include "actors/rank_gpu.hpp"

#include "sync/chunks.hpp"

namespace deltawire::actors {
namespace {

bool compares_there(const layout::Block& block, DType held) noexcept {
  return delta::compares_on_gpu(delta::cast_between(held, block.dtype));
}

} // namespace

std::uint64_t RankGpu::snapshot_bytes(const std::vector<layout::Block>& blocks,
                                      const std::vector<DType>& dtypes) const {
  std::uint64_t bytes = 0;
  for (const layout::Block& block : blocks)
    if (parameters_[block.parameter] && compares_there(block, dtypes[block.parameter]))
      bytes += sync::snapshot_bytes(block);
  return bytes;
}

Result<void> RankGpu::hold_snapshots(std::uint64_t bytes) {
  auto memory = gpu->allocate(device::Home::device, static_cast<std::size_t>(bytes));
  if (!memory)
    return pass_on(std::move(memory));
  snapshots_ = std::move(*memory);
  return {};
}

BlockHome RankGpu::home(const layout::Block& block, DType held) const noexcept {
  if (!parameters_[block.parameter])
    return BlockHome::host;
  return snapshots_ && compares_there(block, held) ? BlockHome::gpu : BlockHome::gpu_memory;
}

} // namespace deltawire::actors
