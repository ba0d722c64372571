// A GPU as sessions use it: memory, streams, events, and the kernels that there are for it. Behind it is CUDA, or, in
// tests, device threads that run on this processor over memory which the host cannot touch.
//
// Nothing here waits: a stream is asked whether it is idle, wait_until_idle() asks until a deadline. A fault of work
// that was queued comes out of any later call on its stream, and stays: whoever gets one is done with the stream.
//
// Threads: calls of a Gpu come from any, at the same time; those of a Stream from one at a time. A recorded Event may
// be asked and waited for by several. Memory may go where no queued work uses it. All that a Gpu made keeps it alive.
#pragma once

#include "kernels/cuda/parts.hpp"
#include "result.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace deltawire::device {

/// Which GPU it is.
struct Identity {
  int index = 0;    ///< as the CUDA runtime counts them, after CUDA_VISIBLE_DEVICES
  std::string uuid; ///< "GPU-...": the same in every process
  std::string name;

  friend bool operator==(const Identity&, const Identity&) = default;
};

/// "GPU 0 (NVIDIA H200)"
[[nodiscard]] std::string name_of(const Identity& gpu);

/// Where memory lies.
enum class Home : std::uint8_t {
  device, ///< the GPU's: the host reads and writes it by copies only
  pinned, ///< the host's, which a GPU copies from and to without a detour, and kernels reach
};

/// Owns a piece of memory that begins at a multiple of 256 bytes. What it holds at first means nothing.
class Memory {
public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

protected:
  Memory(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}

private:
  std::byte* data_;
  std::size_t bytes_;
};

/// A point in a stream's work.
class Event {
public:
  virtual ~Event() = default;

  /// Whether the work before it is done; true where it was never recorded.
  [[nodiscard]] virtual Result<bool> reached() = 0;
};

/// What the elements of a table are: `size` bytes each (1, 2, 4 or 8); with a cast, memory (`now`) holds what is cast
/// to them. There are kernels for casts from fp32 only (see casts_on_gpu).
struct Elements {
  std::size_t size = 0;
  std::optional<kernels::Cast> cast{};
};

/// Whether there is a kernel for it.
[[nodiscard]] constexpr bool casts_on_gpu(kernels::Cast cast) noexcept {
  return cast == kernels::Cast::fp32_to_bf16 || cast == kernels::Cast::fp32_to_fp16;
}

/// Work in order. Every call queues and returns; it waits for no other stream but where one says so. Tables, what they
/// point to, and memory that is copied from and to are borrowed until the stream has done the work; those of the host
/// are pinned.
class Stream {
public:
  virtual ~Stream() = default;

  [[nodiscard]] virtual Result<void> copy(void* to, const void* from, std::size_t bytes) = 0;
  [[nodiscard]] virtual Result<void> fill(void* memory, int byte, std::size_t bytes) = 0;

  /// The event is reached when all that was queued so far is done.
  [[nodiscard]] virtual Result<void> record(Event& event) = 0;
  /// What is queued from now on waits for an event of the same GPU, if that was recorded.
  [[nodiscard]] virtual Result<void> wait_for(Event& event) = 0;

  /// What is queued from now on waits for all that was queued on a stream of the embedding program so far: a
  /// cudaStream_t, null being CUDA's default stream.
  [[nodiscard]] virtual Result<void> wait_for_foreign(void* stream) = 0;
  /// What is queued on such a stream from now on waits for all that was queued here so far.
  [[nodiscard]] virtual Result<void> hold_foreign(void* stream) = 0;

  /// Whether all that was queued is done.
  [[nodiscard]] virtual Result<bool> idle() = 0;

  // The kernels of kernels/cuda/launch.hpp, which says what they take and give. All pointers are to device or pinned
  // memory.
  [[nodiscard]] virtual Result<void> diff_and_refresh(const kernels::cuda::Part* parts, std::size_t count,
                                                      Elements elements, const kernels::cuda::Changes& out,
                                                      std::byte* workspace) = 0;
  [[nodiscard]] virtual Result<void> take(const kernels::cuda::Part* parts, std::size_t count, Elements elements,
                                          std::uint64_t* digests) = 0;
  [[nodiscard]] virtual Result<void> exchange(const kernels::cuda::Places* places, std::size_t count, std::size_t size,
                                              std::uint64_t* digests) = 0;
  [[nodiscard]] virtual Result<void> read_back(const kernels::cuda::Places* places, std::size_t count, std::size_t size,
                                               std::uint64_t* digests) = 0;
};

/// Until the stream is idle. Code::timed_out past the deadline: the work may still run, and what it uses must stay.
[[nodiscard]] Result<void> wait_until_idle(Stream& stream, std::chrono::steady_clock::time_point deadline);

class Gpu {
public:
  virtual ~Gpu() = default;

  [[nodiscard]] virtual const Identity& identity() const noexcept = 0;
  /// Bytes of its memory that nobody has taken.
  [[nodiscard]] virtual Result<std::uint64_t> free_memory() = 0;
  /// Code::limit_exceeded where there is not as much. Requires bytes > 0.
  [[nodiscard]] virtual Result<std::unique_ptr<Memory>> allocate(Home home, std::size_t bytes) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Stream>> open_stream() = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<Event>> make_event() = 0;
};

} // namespace deltawire::device
