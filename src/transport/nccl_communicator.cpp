#include "transport/nccl_communicator.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/cuda/execution.hpp"

#include <nccl.h>

#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <system_error>
#include <thread>
#include <vector>

namespace deltawire::transport {
namespace {

using kernels::cuda::Outcome;

constexpr const char* library_name = "libnccl.so.2";
constexpr int least_version = NCCL_VERSION(2, 18, 0);

/// What is used of NCCL, from the library that is opened.
struct Library {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_async_error = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  int version = 0;
  std::string why_none;
};

std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

Library open_library() {
  Library library;
  void* handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL); // for the life of the process
  if (handle == nullptr) {
    const char* why = dlerror();
    library.why_none = fmt::format("{} cannot be opened: {}", library_name, why == nullptr ? "no reason given" : why);
    return library;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && library.why_none.empty())
      library.why_none = fmt::format("{} has no {}", library_name, name);
  };
  find(library.get_version, "ncclGetVersion");
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.comm_init, "ncclCommInitRankConfig");
  find(library.comm_async_error, "ncclCommGetAsyncError");
  find(library.comm_abort, "ncclCommAbort");
  find(library.group_start, "ncclGroupStart");
  find(library.group_end, "ncclGroupEnd");
  find(library.send, "ncclSend");
  find(library.receive, "ncclRecv");
  find(library.error_string, "ncclGetErrorString");
  find(library.last_error, "ncclGetLastError");
  if (!library.why_none.empty())
    return library;
  if (library.get_version(&library.version) != ncclSuccess)
    library.why_none = fmt::format("{} does not tell its version", library_name);
  else if (library.version < least_version)
    library.why_none = fmt::format("{} is version {}, and communicators that do not block take {}", library_name,
                                   version_text(library.version), version_text(least_version));
  return library;
}

const Library& nccl() {
  static const auto* library = new Library(open_library()); // never freed: an abort may outlive what exit() destroys
  return *library;
}

/// What NCCL said, with its name for it.
Failure failure_of(ncclResult_t result, ncclComm_t communicator, const char* attempt) {
  const bool from_outside = result == ncclUnhandledCudaError || result == ncclSystemError || result == ncclRemoteError;
  const char* more = nccl().last_error(communicator);
  return {from_outside ? Code::peer_failed : Code::internal,
          fmt::format("{}: {} (NCCL {}){}{}", attempt, nccl().error_string(result), static_cast<int>(result),
                      more == nullptr || *more == '\0' ? "" : ": ", more == nullptr ? "" : more)};
}

/// A device that fails is no defect of ours, and no fault of an argument.
Failure device_failure(const Outcome& outcome) {
  return {Code::peer_failed, "the device: " + outcome.fault};
}

Result<void> result_of(const Outcome& outcome) {
  if (!outcome)
    return tl::make_unexpected(device_failure(outcome));
  return {};
}

Result<Progress> progress_of(const Outcome& outcome, bool done) {
  if (!outcome)
    return tl::make_unexpected(device_failure(outcome));
  return done ? Progress::done : Progress::under_way;
}

/// The stream and its events outlive the communicator for as long as an abort takes.
struct OnDevice {
  int device = 0;
  kernels::cuda::Stream stream;
  std::vector<kernels::cuda::Event> events;
  std::atomic<bool> aborting{false};
  std::atomic<int> abort_result{ncclSuccess};
};

class NcclCommunicator final : public Communicator {
public:
  explicit NcclCommunicator(std::shared_ptr<OnDevice> on_device, int most_blocks)
    : on_device_(std::move(on_device)), most_blocks_(most_blocks) {}
  ~NcclCommunicator() override { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  Result<UniqueId> make_id() override {
    static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
    ncclUniqueId made{};
    if (const ncclResult_t result = nccl().get_unique_id(&made); result != ncclSuccess)
      return tl::make_unexpected(failure_of(result, nullptr, "ncclGetUniqueId"));
    UniqueId id{};
    std::memcpy(id.data(), &made, sizeof made);
    return id;
  }

  Result<Progress> begin(const UniqueId& id, std::uint32_t ranks, std::uint32_t rank) override {
    if (communicator_ != nullptr || on_device_->aborting)
      return fail(Code::internal, "a communicator would begin before the last one has ended");
    if (auto used = result_of(kernels::cuda::use_device(on_device_->device)); !used)
      return pass_on(std::move(used));
    ncclUniqueId joined{};
    std::memcpy(&joined, id.data(), sizeof joined);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = most_blocks_;
    return progress(nccl().comm_init(&communicator_, static_cast<int>(ranks), joined, static_cast<int>(rank), &config),
                    "ncclCommInitRankConfig");
  }

  Result<Progress> poll() override {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t result = nccl().comm_async_error(communicator_, &state); result != ncclSuccess)
      return tl::make_unexpected(failure_of(result, communicator_, "ncclCommGetAsyncError"));
    return progress(state, "work under way");
  }

  Result<void> group_begin() override { return done(nccl().group_start(), "ncclGroupStart"); }
  Result<void> send(std::span<const std::byte> memory, std::uint32_t peer) override {
    return done(nccl().send(memory.data(), memory.size(), ncclUint8, static_cast<int>(peer), communicator_, stream()),
                "ncclSend");
  }
  Result<void> receive(std::span<std::byte> memory, std::uint32_t peer) override {
    return done(
      nccl().receive(memory.data(), memory.size(), ncclUint8, static_cast<int>(peer), communicator_, stream()),
      "ncclRecv");
  }
  Result<Progress> group_end() override { return progress(nccl().group_end(), "ncclGroupEnd"); }

  Result<void> record(std::uint32_t slot) override {
    return result_of(on_device_->events.at(slot).record(on_device_->stream));
  }
  Result<Progress> reached(std::uint32_t slot) override {
    bool done = false;
    const Outcome asked = on_device_->events.at(slot).reached(done);
    return progress_of(asked, done);
  }

  void abort() override {
    if (communicator_ == nullptr)
      return;
    on_device_->aborting = true;
    const auto end = [communicator = std::exchange(communicator_, nullptr), on_device = on_device_] {
      ncclResult_t result = ncclUnhandledCudaError;
      if (kernels::cuda::use_device(on_device->device))
        result = nccl().comm_abort(communicator);
      on_device->abort_result = result;
      on_device->aborting = false;
    };
    try {
      std::thread aborting(end);
      pthread_setname_np(aborting.native_handle(), "dw-nccl-abort");
      aborting.detach();
    } catch (const std::system_error&) {
      end(); // better late than not at all
    }
  }

  Result<Progress> quiet() override {
    if (on_device_->aborting)
      return Progress::under_way;
    const auto aborted = static_cast<ncclResult_t>(on_device_->abort_result.load());
    if (aborted != ncclSuccess && aborted != ncclInProgress)
      return tl::make_unexpected(failure_of(aborted, nullptr, "ncclCommAbort"));
    bool done = false;
    const Outcome asked = on_device_->stream.idle(done);
    return progress_of(asked, done);
  }

  Result<std::uint64_t> free_memory() override {
    std::size_t bytes = 0;
    if (auto used = result_of(kernels::cuda::use_device(on_device_->device)); !used)
      return pass_on(std::move(used));
    if (auto asked = result_of(kernels::cuda::free_memory(bytes)); !asked)
      return pass_on(std::move(asked));
    return bytes;
  }

private:
  [[nodiscard]] cudaStream_t stream() const { return static_cast<cudaStream_t>(on_device_->stream.handle()); }
  Result<Progress> progress(ncclResult_t result, const char* attempt) {
    if (result == ncclSuccess)
      return Progress::done;
    if (result == ncclInProgress)
      return Progress::under_way;
    return tl::make_unexpected(failure_of(result, communicator_, attempt));
  }
  /// Of calls in a group: what is under way ends with it.
  Result<void> done(ncclResult_t result, const char* attempt) {
    if (result == ncclSuccess || result == ncclInProgress)
      return {};
    return tl::make_unexpected(failure_of(result, communicator_, attempt));
  }

  std::shared_ptr<OnDevice> on_device_;
  int most_blocks_;
  ncclComm_t communicator_ = nullptr;
};

} // namespace

Nccl find_nccl() {
  const Library& library = nccl();
  return {library.why_none.empty() ? version_text(library.version) : "", library.why_none};
}

Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclSettings& settings) {
  if (!nccl().why_none.empty())
    return fail(Code::unsupported, "no NCCL: {}", nccl().why_none);
  const kernels::cuda::Devices devices = kernels::cuda::find_devices();
  if (devices.found.empty())
    return fail(Code::unsupported, "no GPU: {}", devices.why_none);
  if (settings.device < 0 || static_cast<std::size_t>(settings.device) >= devices.found.size())
    return fail(Code::unsupported, "no GPU {}: there are {}", settings.device, devices.found.size());
  auto on_device = std::make_shared<OnDevice>();
  on_device->device = settings.device;
  auto made = result_of(kernels::cuda::use_device(settings.device));
  if (made)
    made = result_of(on_device->stream.open());
  on_device->events.resize(settings.slots);
  for (kernels::cuda::Event& event : on_device->events)
    if (made)
      made = result_of(event.open());
  if (!made)
    return fail(made.error().code, "GPU {} ({}): {}", settings.device,
                devices.found[static_cast<std::size_t>(settings.device)].name, made.error().message);
  return std::unique_ptr<Communicator>(std::make_unique<NcclCommunicator>(std::move(on_device), settings.most_blocks));
}

} // namespace deltawire::transport
