// What device work runs on and lives in: streams, memory, events. Only in builds with CUDA.
//
// Nothing here waits but Stream::wait() and Event::wait(). Each call says how it went; the first fault of a stream's
// work also comes out of its wait(). Objects belong to the device that they were made on; calls may come from any
// thread, one at a time an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace deltawire::kernels::cuda {

/// How a call went: what the CUDA runtime says of it, with what was attempted; empty where it went well.
struct [[nodiscard]] Outcome {
  std::string fault;
  [[nodiscard]] explicit operator bool() const noexcept { return fault.empty(); }
};

/// Makes `device` the one that this thread's next objects are made on.
Outcome use_device(int device);

/// The one that is so now.
Outcome current_device(int& device);

/// Bytes of the thread's current device that nobody has taken.
Outcome free_memory(std::size_t& bytes);

class Event;

/// Work in order. It waits for no other stream, the default one included, but where wait_for() says so.
class Stream {
public:
  Stream() = default;
  ~Stream();
  Stream(Stream&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), device_(other.device_), multiprocessors_(other.multiprocessors_) {
  }
  Stream& operator=(Stream&& other) noexcept;

  /// On the thread's current device.
  Outcome open();

  /// Until all that was queued is done.
  Outcome wait();

  /// Whether that is so, without waiting.
  Outcome idle(bool& done) const;

  /// What is queued from now on waits for the event, if that was recorded; the caller does not.
  Outcome wait_for(const Event& event);

  Outcome copy(void* to, const void* from, std::size_t bytes); ///< any of host and device memory
  Outcome fill(void* memory, int byte, std::size_t bytes);

  [[nodiscard]] void* handle() const noexcept { return handle_; } ///< a cudaStream_t
  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] int multiprocessors() const noexcept { return multiprocessors_; }

private:
  void* handle_ = nullptr;
  int device_ = 0;
  int multiprocessors_ = 1;
};

/// Where memory lies.
enum class Home : std::uint8_t {
  device, ///< of the thread's current device
  pinned, ///< the host's, which devices copy from and to without a detour
};

/// A piece of memory; begins at a multiple of 256 bytes.
class Memory {
public:
  Memory() = default;
  ~Memory();
  Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), home_(other.home_) {}
  Memory& operator=(Memory&& other) noexcept;

  Outcome allocate(Home home, std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Home home_ = Home::device;
};

/// A point in a stream's work.
class Event {
public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;

  Outcome open();
  Outcome record(const Stream& stream);
  /// The same of a stream that somebody else made; null: the default one of the current device.
  Outcome record_on(void* stream);
  /// What is queued on such a stream from now on waits for the event.
  Outcome hold(void* stream) const;
  Outcome wait();
  /// Whether the work before it is done, without waiting.
  Outcome reached(bool& done) const;
  /// Seconds on the device from `earlier` to this one, both of which have been waited for.
  Outcome seconds_since(const Event& earlier, double& seconds) const;

  [[nodiscard]] void* handle() const noexcept { return handle_; } ///< a cudaEvent_t

private:
  void* handle_ = nullptr;
};

} // namespace deltawire::kernels::cuda
