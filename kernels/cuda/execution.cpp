#include "kernels/cuda/execution.hpp"

#include "kernels/cuda/outcome.hpp"

#include <cuda_runtime_api.h>

namespace deltawire::kernels::cuda {
namespace {

cudaStream_t stream_of(void* handle) {
  return static_cast<cudaStream_t>(handle);
}

cudaEvent_t event_of(void* handle) {
  return static_cast<cudaEvent_t>(handle);
}

/// What a question that does not wait was answered.
Outcome answer_of(cudaError_t error, const char* attempt, bool& done) {
  done = error == cudaSuccess;
  if (error != cudaErrorNotReady)
    return outcome_of(error, attempt);
  // No error: whoever asks for the last one next is not to get it.
  if (cudaPeekAtLastError() == cudaErrorNotReady)
    cudaGetLastError();
  return {};
}

} // namespace

Outcome outcome_of(int error, const char* attempt) {
  if (error == cudaSuccess)
    return {};
  return {std::string(attempt) + ": " + cudaGetErrorString(static_cast<cudaError_t>(error)) + " (" +
          std::to_string(error) + ")"};
}

Outcome use_device(int device) {
  return outcome_of(cudaSetDevice(device), "choosing a device");
}

Outcome current_device(int& device) {
  return outcome_of(cudaGetDevice(&device), "asking for the current device");
}

Outcome free_memory(std::size_t& bytes) {
  std::size_t all = 0;
  return outcome_of(cudaMemGetInfo(&bytes, &all), "asking a device for its free memory");
}

Stream::~Stream() {
  if (handle_ != nullptr)
    cudaStreamDestroy(stream_of(handle_));
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(device_, other.device_);
  std::swap(multiprocessors_, other.multiprocessors_);
  return *this;
}

Outcome Stream::open() {
  if (Outcome found = current_device(device_); !found)
    return found;
  if (Outcome asked = outcome_of(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_),
                                 "asking a device for its multiprocessors");
      !asked)
    return asked;
  cudaStream_t made = nullptr;
  Outcome opened = outcome_of(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream");
  handle_ = made;
  return opened;
}

Outcome Stream::wait() {
  return outcome_of(cudaStreamSynchronize(stream_of(handle_)), "work of a stream");
}

Outcome Stream::idle(bool& done) const {
  return answer_of(cudaStreamQuery(stream_of(handle_)), "work of a stream", done);
}

Outcome Stream::wait_for(const Event& event) {
  return outcome_of(cudaStreamWaitEvent(stream_of(handle_), event_of(event.handle()), 0), "waiting for an event");
}

Outcome Stream::copy(void* to, const void* from, std::size_t bytes) {
  return outcome_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(handle_)), "a copy");
}

Outcome Stream::fill(void* memory, int byte, std::size_t bytes) {
  return outcome_of(cudaMemsetAsync(memory, byte, bytes, stream_of(handle_)), "filling memory");
}

Memory::~Memory() {
  if (data_ == nullptr)
    return;
  if (home_ == Home::device)
    cudaFree(data_);
  else
    cudaFreeHost(data_);
}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(home_, other.home_);
  return *this;
}

Outcome Memory::allocate(Home home, std::size_t bytes) {
  Memory made;
  made.home_ = home;
  void* data = nullptr;
  Outcome allocated = home == Home::device ? outcome_of(cudaMalloc(&data, bytes), "allocating device memory")
                                           : outcome_of(cudaMallocHost(&data, bytes), "allocating pinned memory");
  if (!allocated) {
    allocated.fault += "; " + std::to_string(bytes) + " bytes were asked for";
    return allocated;
  }
  made.data_ = static_cast<std::byte*>(data);
  made.bytes_ = bytes;
  *this = std::move(made);
  return {};
}

Event::~Event() {
  if (handle_ != nullptr)
    cudaEventDestroy(event_of(handle_));
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Outcome Event::open() {
  cudaEvent_t made = nullptr;
  Outcome opened = outcome_of(cudaEventCreate(&made), "making an event");
  handle_ = made;
  return opened;
}

Outcome Event::record(const Stream& stream) {
  return record_on(stream.handle());
}

Outcome Event::record_on(void* stream) {
  return outcome_of(cudaEventRecord(event_of(handle_), stream_of(stream)), "recording an event");
}

Outcome Event::hold(void* stream) const {
  return outcome_of(cudaStreamWaitEvent(stream_of(stream), event_of(handle_), 0), "making a stream wait for an event");
}

Outcome Event::wait() {
  return outcome_of(cudaEventSynchronize(event_of(handle_)), "work before an event");
}

Outcome Event::reached(bool& done) const {
  return answer_of(cudaEventQuery(event_of(handle_)), "work before an event", done);
}

Outcome Event::seconds_since(const Event& earlier, double& seconds) const {
  float milliseconds = 0;
  Outcome told = outcome_of(cudaEventElapsedTime(&milliseconds, event_of(earlier.handle_), event_of(handle_)),
                            "the time between two events");
  seconds = static_cast<double>(milliseconds) * 1e-3;
  return told;
}

} // namespace deltawire::kernels::cuda
