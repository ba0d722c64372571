// The GPU whose memory holds parameters of a rank, and the snapshots that lie there too. Immutable once the rank's work
// is built, but for `lost`; shared by its Differs.
#pragma once

#include "delta/gpu_ranges.hpp"
#include "layout/plan.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace deltawire::actors {

/// Device memory that snapshots leave free when nobody says where they go (actors.snapshotter.tier = "auto").
inline constexpr std::uint64_t gpu_reserve = 1ull << 30;

/// Where a block's memory and snapshot are.
enum class BlockHome : std::uint8_t {
  host,
  gpu_memory, ///< its memory is the GPU's, its snapshot the host's
  gpu,        ///< both are the GPU's
};

class RankGpu {
public:
  /// `parameters`: by parameter, whether it is in this GPU's memory. `patience`: how long its work may take.
  RankGpu(std::shared_ptr<device::Gpu> gpu_of_rank, std::vector<bool> parameters, std::chrono::nanoseconds patience)
    : gpu(std::move(gpu_of_rank)), parameters_(std::move(parameters)) {
    ranges.patience = patience;
  }
  ~RankGpu() {
    if (lost)
      (void)snapshots_.release(); // work that did not end may still write to it
  }
  RankGpu(const RankGpu&) = delete;
  RankGpu& operator=(const RankGpu&) = delete;

  /// What the snapshots of its blocks take there. `dtypes`: of the parameters in memory.
  [[nodiscard]] std::uint64_t snapshot_bytes(const std::vector<layout::Block>& blocks,
                                             const std::vector<DType>& dtypes) const;
  /// Of the GPU's memory, what each Differ takes.
  [[nodiscard]] std::uint64_t buffer_bytes() const noexcept { return delta::GpuRanges::buffer_bytes(ranges); }

  /// Takes memory for snapshots: those that can be there are.
  [[nodiscard]] Result<void> hold_snapshots(std::uint64_t bytes);

  /// `held`: the parameter's dtype in memory.
  [[nodiscard]] BlockHome home(const layout::Block& block, DType held) const noexcept;
  [[nodiscard]] std::byte* snapshots() const noexcept { return snapshots_->data(); }

  const std::shared_ptr<device::Gpu> gpu;
  delta::GpuRanges::Settings ranges;
  std::atomic<bool> lost = false; ///< some work did not end in time

private:
  std::vector<bool> parameters_;
  std::unique_ptr<device::Memory> snapshots_;
};

} // namespace deltawire::actors
