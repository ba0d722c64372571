// GPUs by CUDA.
#include "device/gpus.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/execution.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/pointer.hpp"

#include <map>
#include <mutex>
#include <utility>

namespace deltawire::device {
namespace {

namespace cuda = kernels::cuda;

/// A device that fails is no fault of an argument, and no defect of ours.
Result<void> result_of(const cuda::Outcome& outcome) {
  if (outcome)
    return {};
  return fail(Code::peer_failed, "{}", outcome.fault);
}

/// Calls come from threads of the embedding program too, whose current device stays what it is.
class UsedDevice {
public:
  explicit UsedDevice(int device) {
    int current = 0;
    outcome = cuda::current_device(current);
    if (!outcome || current == device)
      return;
    outcome = cuda::use_device(device);
    if (outcome)
      before_ = current;
  }
  ~UsedDevice() {
    if (before_)
      (void)cuda::use_device(*before_);
  }
  UsedDevice(const UsedDevice&) = delete;
  UsedDevice& operator=(const UsedDevice&) = delete;

  cuda::Outcome outcome;

private:
  std::optional<int> before_;
};

/// Calls `work` with that device as the current one.
template <class Work>
cuda::Outcome on_device(int device, Work&& work) {
  const UsedDevice used(device);
  return used.outcome ? work() : used.outcome;
}

class CudaMemory : public Memory {
public:
  CudaMemory(std::shared_ptr<Gpu> gpu, cuda::Memory memory)
    : Memory(memory.data(), memory.bytes()), gpu_(std::move(gpu)), memory_(std::move(memory)) {}

private:
  std::shared_ptr<Gpu> gpu_;
  cuda::Memory memory_;
};

class CudaEvent : public Event {
public:
  CudaEvent(std::shared_ptr<Gpu> gpu, cuda::Event event) : gpu_(std::move(gpu)), event_(std::move(event)) {}

  Result<bool> reached() override {
    bool done = false;
    if (const auto asked = result_of(event_.reached(done)); !asked)
      return tl::make_unexpected(asked.error());
    return done;
  }

  [[nodiscard]] cuda::Event& event() noexcept { return event_; }

private:
  std::shared_ptr<Gpu> gpu_;
  cuda::Event event_;
};

class CudaStream : public Stream {
public:
  CudaStream(std::shared_ptr<Gpu> gpu, cuda::Stream stream, cuda::Event meeting)
    : gpu_(std::move(gpu)), stream_(std::move(stream)), meeting_(std::move(meeting)) {}

  Result<void> copy(void* to, const void* from, std::size_t bytes) override {
    return result_of(stream_.copy(to, from, bytes));
  }
  Result<void> fill(void* memory, int byte, std::size_t bytes) override {
    return result_of(stream_.fill(memory, byte, bytes));
  }
  Result<void> record(Event& event) override {
    return result_of(static_cast<CudaEvent&>(event).event().record(stream_));
  }
  Result<void> wait_for(Event& event) override {
    return result_of(stream_.wait_for(static_cast<CudaEvent&>(event).event()));
  }

  Result<void> wait_for_foreign(void* stream) override {
    // CUDA's default stream is that of the current device.
    return result_of(on_device(stream_.device(), [&] {
      const cuda::Outcome recorded = meeting_.record_on(stream);
      return recorded ? stream_.wait_for(meeting_) : recorded;
    }));
  }
  Result<void> hold_foreign(void* stream) override {
    return result_of(on_device(stream_.device(), [&] {
      const cuda::Outcome recorded = meeting_.record(stream_);
      return recorded ? meeting_.hold(stream) : recorded;
    }));
  }

  Result<bool> idle() override {
    bool done = false;
    if (const auto asked = result_of(stream_.idle(done)); !asked)
      return tl::make_unexpected(asked.error());
    return done;
  }

  Result<void> diff_and_refresh(const cuda::Part* parts, std::size_t count, Elements elements, const cuda::Changes& out,
                                std::byte* workspace) override {
    if (elements.cast)
      return result_of(cuda::cast_diff_and_refresh(stream_, parts, count, *elements.cast, out, workspace));
    return result_of(cuda::diff_and_refresh(stream_, parts, count, elements.size, out, workspace));
  }
  Result<void> take(const cuda::Part* parts, std::size_t count, Elements elements, std::uint64_t* digests) override {
    if (elements.cast)
      return result_of(cuda::cast_take(stream_, parts, count, *elements.cast, digests));
    return result_of(cuda::take(stream_, parts, count, elements.size, digests));
  }
  Result<void> exchange(const cuda::Places* places, std::size_t count, std::size_t size,
                        std::uint64_t* digests) override {
    return result_of(cuda::exchange(stream_, places, count, size, digests));
  }
  Result<void> read_back(const cuda::Places* places, std::size_t count, std::size_t size,
                         std::uint64_t* digests) override {
    return result_of(cuda::read_back(stream_, places, count, size, digests));
  }

private:
  std::shared_ptr<Gpu> gpu_;
  cuda::Stream stream_;
  cuda::Event meeting_; ///< with streams of the embedding program
};

class CudaGpu : public Gpu, public std::enable_shared_from_this<CudaGpu> {
public:
  explicit CudaGpu(Identity identity) : identity_(std::move(identity)) {}

  const Identity& identity() const noexcept override { return identity_; }

  Result<std::uint64_t> free_memory() override {
    std::size_t bytes = 0;
    if (const auto result = named(on_device(identity_.index, [&] { return cuda::free_memory(bytes); })); !result)
      return tl::make_unexpected(result.error());
    return bytes;
  }

  Result<std::unique_ptr<Memory>> allocate(Home home, std::size_t bytes) override {
    cuda::Memory memory;
    const cuda::Outcome made = on_device(identity_.index, [&] {
      return memory.allocate(home == Home::device ? cuda::Home::device : cuda::Home::pinned, bytes);
    });
    if (!made)
      return fail(Code::limit_exceeded, "{}: {}", name_of(identity_), made.fault);
    return std::make_unique<CudaMemory>(shared_from_this(), std::move(memory));
  }

  Result<std::unique_ptr<Stream>> open_stream() override {
    cuda::Stream stream;
    cuda::Event meeting;
    const cuda::Outcome made = on_device(identity_.index, [&] {
      const cuda::Outcome opened = stream.open();
      return opened ? meeting.open() : opened;
    });
    if (const auto result = named(made); !result)
      return tl::make_unexpected(result.error());
    return std::make_unique<CudaStream>(shared_from_this(), std::move(stream), std::move(meeting));
  }

  Result<std::unique_ptr<Event>> make_event() override {
    cuda::Event event;
    if (const auto result = named(on_device(identity_.index, [&] { return event.open(); })); !result)
      return tl::make_unexpected(result.error());
    return std::make_unique<CudaEvent>(shared_from_this(), std::move(event));
  }

private:
  Result<void> named(const cuda::Outcome& outcome) const {
    if (outcome)
      return {};
    return fail(Code::peer_failed, "{}: {}", name_of(identity_), outcome.fault);
  }

  Identity identity_;
};

class CudaGpus : public Gpus {
public:
  std::optional<int> index_of(const void* pointer) override { return cuda::device_of(pointer); }

  Result<std::shared_ptr<Gpu>> open(int index) override {
    const std::lock_guard lock(mutex_);
    if (auto held = open_[index].lock())
      return held;
    const cuda::Devices devices = cuda::find_devices();
    if (index < 0 || static_cast<std::size_t>(index) >= devices.found.size())
      return fail(Code::unsupported, "GPU {} cannot be used: {}", index,
                  devices.found.empty() ? devices.why_none : fmt::format("there are {}", devices.found.size()));
    const cuda::Device& found = devices.found[static_cast<std::size_t>(index)];
    auto gpu = std::make_shared<CudaGpu>(Identity{found.index, found.uuid, found.name});
    open_[index] = gpu;
    return gpu;
  }

private:
  std::mutex mutex_;
  std::map<int, std::weak_ptr<Gpu>> open_;
};

} // namespace

std::shared_ptr<Gpus> cuda_gpus() {
  return std::make_shared<CudaGpus>();
}

} // namespace deltawire::device
