// GPUs that run on this processor, for tests of whole sessions: the very code of the kernels over memory that the host
// cannot touch. Device addresses are mapped without any access, and emulated work reaches the same bytes elsewhere: a
// host that reads device memory crashes.
//
// Work runs late: when somebody asks a stream or an event, a few operations of any streams run, in random order but for
// what streams and events order. A wait that is missing is found: memory that is read too early holds what it held.
// What is wrong with an operation (memory that is nobody's, pageable memory of the host, a stretch past its end) is a
// fault of the GPU, as with CUDA: every call from then on fails with it.
#pragma once

#include "device/gpus.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace deltawire::test {

/// Thread-safe. What it gave out must be gone before it goes itself, embedding programs' memory and streams apart.
class EmulatedGpus : public device::Gpus {
public:
  /// `memory`: bytes that each GPU has.
  explicit EmulatedGpus(std::uint64_t seed, int count = 1, std::size_t memory = std::size_t{1} << 30);
  ~EmulatedGpus() override;

  std::optional<int> index_of(const void* pointer) override;
  Result<std::shared_ptr<device::Gpu>> open(int index) override;

  // ------------------------------------------------------------------------------------ as the embedding program

  /// Device memory, until release() or this object goes.
  [[nodiscard]] std::byte* allocate(std::size_t bytes, int gpu = 0);
  void release(std::byte* memory);
  /// A stream handle such as a cudaStream_t, until this object goes.
  [[nodiscard]] void* make_stream(int gpu = 0);
  /// Queues a write of a copy of `bytes` to device memory.
  void queue_write(void* stream, std::byte* to, std::span<const std::byte> bytes, int gpu = 0);
  /// Runs all that is queued on the stream, and what that waits for.
  void synchronize(void* stream, int gpu = 0);
  /// At once, whatever is queued.
  void write(std::byte* to, std::span<const std::byte> bytes);
  [[nodiscard]] std::vector<std::byte> read(const std::byte* from, std::size_t bytes);

  // ---------------------------------------------------------------------------------------------- what goes wrong

  /// The `after`-th operation that runs from now on (1: the next) is a fault of its GPU.
  void fail_after(std::uint64_t after, const std::string& fault);
  /// Nothing runs any more.
  void hang();

  // ------------------------------------------------------------------------------------------------------ counted

  [[nodiscard]] std::uint64_t kernels_run() const;
  /// Bytes of device memory that are taken, the embedding program's included.
  [[nodiscard]] std::uint64_t taken(int gpu = 0) const;

private:
  struct Machine;
  std::vector<std::shared_ptr<Machine>> machines_; ///< one a GPU
};

} // namespace deltawire::test
