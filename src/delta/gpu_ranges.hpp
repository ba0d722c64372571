// What capture.hpp does, for blocks whose memory is a GPU's: one range of one block at a time, with a stream and
// buffers of its own. What comes out (positions, values, digests, pieces) is what capture.hpp makes of the same bits.
//
// Two ways. Where the snapshot is in the GPU's memory too, the GPU compares and refreshes, and changes come to the
// host. Where it is the host's, the GPU packs the range into a dense copy, and the CPU compares that.
//
// One to a Differ: not thread-safe. Each call waits for its own work, and for no longer than `patience`; after a
// failure no other call is of use. Where work did not end in time its buffers are never given back, as it may still
// write.
#pragma once

#include "delta/capture.hpp"
#include "device/gpu.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace deltawire::delta {

/// Whether a GPU can compare such a block with a snapshot in its memory: there is no kernel for casts that widen.
[[nodiscard]] bool compares_on_gpu(const std::optional<kernels::Cast>& cast) noexcept;

class GpuRanges {
public:
  struct Settings {
    std::chrono::nanoseconds patience{};
    std::size_t parts = 4096;                ///< of a launch
    std::size_t room = std::size_t{1} << 20; ///< changes that a launch has room for; at least part_elements
  };

  /// Device and pinned memory, each, that the tables and outputs of one take; copies of ranges come on top.
  [[nodiscard]] static std::size_t buffer_bytes(const Settings& settings) noexcept;

  [[nodiscard]] static Result<std::unique_ptr<GpuRanges>> open(std::shared_ptr<device::Gpu> gpu,
                                                               const Settings& settings);
  ~GpuRanges();
  GpuRanges(const GpuRanges&) = delete;
  GpuRanges& operator=(const GpuRanges&) = delete;

  /// Some work did not end in time: it may still read and write all that it was given.
  [[nodiscard]] bool lost() const noexcept { return lost_; }

  /// What follows reads memory after the event.
  [[nodiscard]] Result<void> wait_for(device::Event& event);

  // ------------------------------------------------------------------------- snapshot and memory are the GPU's

  /// As capture_changes() and capture_all() of capture.hpp. Requires compares_on_gpu(owned.cast).
  [[nodiscard]] Result<Captured> capture_changes(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count,
                                                 PieceEncoder* encoder, PositionLog& log);
  [[nodiscard]] Result<Captured> capture_all(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count);

  /// Copies a range of the snapshot to the host: element e of the block lies at the result + e * size, for those of the
  /// range. Valid until the next call.
  [[nodiscard]] Result<std::byte*> fetch_snapshot(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count);
  /// Copies it back.
  [[nodiscard]] Result<void> store_snapshot(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count);

  // -------------------------------------------------------------------- the memory is the GPU's, the snapshot is not

  /// Copies a range of memory to the host, cast where a GPU casts: the block as the functions of capture.hpp take it,
  /// for that range. Valid until the next call.
  [[nodiscard]] Result<OwnedBlock> fetch_memory(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count);

private:
  GpuRanges(std::shared_ptr<device::Gpu> gpu, const Settings& settings) : gpu_(std::move(gpu)), settings_(settings) {}

  struct Origin {
    std::uint64_t tile_part = 0; ///< block element that positions count from
    std::uint16_t offset = 0;    ///< of the part in it
  };
  struct TileChanges {
    std::uint64_t first = 0;
    std::size_t count = 0;
  };

  Result<void> allocate();
  template <class Launch>
  Result<void> for_each_table(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count, std::byte* snapshot,
                              Launch&& launch);
  Result<void> diff(std::size_t size, device::Elements elements);
  void keep(std::size_t from, std::size_t taken, std::size_t saved, std::size_t size);
  Result<void> finish();
  Result<void> reserve(std::unique_ptr<device::Memory>& memory, device::Home home, std::size_t bytes);
  Result<void> named(Result<void> result);
  [[nodiscard]] std::byte* element_zero(std::uint64_t first, std::size_t size) const noexcept;

  std::shared_ptr<device::Gpu> gpu_;
  Settings settings_;
  std::unique_ptr<device::Stream> stream_;
  bool lost_ = false;

  // What kernels read and write, on the GPU and, but for the workspace, its image on the host.
  struct Buffers {
    std::unique_ptr<device::Memory> memory;
    kernels::cuda::Part* parts = nullptr;
    kernels::cuda::Changes changes;
    std::byte* workspace = nullptr;
  };
  void lay_out(Buffers& buffers) const;
  Buffers gpu_side_;
  Buffers host_side_;
  std::size_t parts_ = 0; ///< of the table
  std::vector<Origin> origins_;

  // What was found in the range.
  std::vector<TileChanges> tiles_;
  std::vector<std::uint16_t> positions_;
  std::vector<std::byte> before_;
  std::vector<std::byte> after_;

  // Copies of ranges.
  std::unique_ptr<device::Memory> packed_;  ///< the GPU's
  std::unique_ptr<device::Memory> fetched_; ///< the host's
  layout::Block fetched_block_;
};

} // namespace deltawire::delta
