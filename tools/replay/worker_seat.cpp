#include "worker_seat.hpp"

#include "exit_status.hpp"
#include "proof.hpp"

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace deltawire::replay {

namespace {

/// What this worker binds: memory that starts as zero bits, so that padding has known bits.
class BoundMemory {
public:
  Result<void> allocate(const std::vector<ParameterInfo>& parameters) {
    for (const ParameterInfo& parameter : parameters) {
      auto elements = layout::element_count(parameter.shape);
      if (!elements)
        return pass_on(std::move(elements));
      const std::size_t bytes = static_cast<std::size_t>(*elements) * size_of(parameter.dtype);
      tensors_.push_back({parameter.name, parameter.dtype, parameter.shape, bytes,
                          bytes > 0 ? std::make_unique<std::byte[]>(bytes) : nullptr}); // value-initialised: zeroed
    }
    return {};
  }

  void bind_to(Subscriber& subscriber) const {
    for (const Tensor& tensor : tensors_)
      subscriber.bind({tensor.name, tensor.dtype, tensor.shape, tensor.data.get(), {}});
  }

  [[nodiscard]] Result<void> prove(const Proof& proof, const checkpoint::Checkpoint& file) const {
    std::vector<WorkerTensor> views;
    for (const Tensor& tensor : tensors_)
      views.push_back({tensor.name, tensor.dtype, tensor.shape, std::span(tensor.data.get(), tensor.bytes)});
    auto compared = proof.compare(file, views);
    return compared ? Result<void>{} : pass_on(std::move(compared));
  }

  /// Creates the directories of the path.
  [[nodiscard]] Result<void> dump(const std::string& path) const {
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    std::error_code error;
    if (!parent.empty() && !std::filesystem::create_directories(parent, error) && error)
      return fail(Code::output_failed, "{}: cannot be created: {}", parent.string(), error.message());
    std::vector<checkpoint::TensorToWrite> views;
    for (const Tensor& tensor : tensors_)
      views.push_back({tensor.name, tensor.dtype, tensor.shape, std::span(tensor.data.get(), tensor.bytes)});
    return checkpoint::write(path, views);
  }

private:
  struct Tensor {
    std::string name;
    DType dtype = DType::bf16;
    std::vector<std::int64_t> shape;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> data;
  };
  std::vector<Tensor> tensors_;
};

/// Dumps; failures name the option that asked for it.
Result<void> dumped(const char* option, const std::string& path, const BoundMemory& memory) {
  auto written = catching([&] { return memory.dump(path); });
  if (!written)
    return fail(written.error().code, "{}: {}", option, written.error().message);
  return written;
}

/// Reads the bound memory between commits, as an engine would: proves and dumps each version on its own thread. A
/// commit is told to it, and the next pause waits until it has read.
class Reader {
public:
  /// Starts the thread, which works the proof out first: that may take long for a large model, and nobody waits for it
  /// before the first version is there to be proven. Without files there is no proof.
  Reader(const WorkerSeat& seat, const config::Topology& topology, std::span<const checkpoint::Checkpoint> files,
         const EventSink& sink, const BoundMemory& memory)
    : seat_(seat), topology_(topology), files_(files), sink_(sink), memory_(memory), thread_([this] { run(); }) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { finish(); }

  /// The engine's hooks, on deltawire's thread: nothing may be thrown there.
  void on_commit(Version version, std::uint64_t session, std::span<const Change> changes) {
    VersionHeld held;
    held.session = session;
    held.worker = seat_.index;
    held.version = version;
    held.tensors = changes.size();
    for (const Change& change : changes)
      held.elements += change.elements;
    const std::lock_guard lock(mutex_);
    waiting_ = held;
    changed_.notify_all();
  }

  void on_pause() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !waiting_; });
  }

  /// Waits for the last version to be read; why there is no proof, or the first dump that failed.
  Result<void> finish() {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        finished_ = true;
        changed_.notify_all();
      }
      thread_.join();
    }
    return proof_ ? output_ : pass_on(std::move(proof_));
  }

private:
  using MaybeProof = Result<std::optional<Proof>>;

  void run() {
    proof_ = make_proof();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return waiting_ || finished_; });
      if (!waiting_)
        return;
      VersionHeld held = *waiting_;
      lock.unlock();
      read(held);
      lock.lock();
      waiting_.reset();
      changed_.notify_all();
    }
  }

  [[nodiscard]] MaybeProof make_proof() const {
    if (files_.empty())
      return std::nullopt;
    std::optional<Proof> proof;
    Result<void> worked = catching([&]() -> Result<void> {
      auto made = Proof::make(topology_, files_.front(), seat_.index);
      if (!made)
        return pass_on(std::move(made));
      proof = std::move(*made);
      return {};
    });
    if (!worked)
      return pass_on(std::move(worked));
    return proof;
  }

  void read(VersionHeld& held) {
    if (!proof_ || *proof_) {
      const Result<void> equal = catching([&] { return compare(held.version); });
      held.proof = equal ? VersionHeld::Proof::equal : VersionHeld::Proof::different;
      if (!equal)
        held.difference = equal.error().message;
    }
    if (!seat_.dump_each_into.empty() && output_)
      output_ = dumped("--dump-each", dump_path(fmt::format("{}/v{}", seat_.dump_each_into, held.version), seat_.index),
                       memory_);
    sink_(held);
  }

  [[nodiscard]] Result<void> compare(Version version) const {
    if (!proof_)
      return fail(proof_.error().code, "{}", proof_.error().message);
    if (version < 1 || version > files_.size())
      return fail(Code::verification_failed, "worker {}: there is no checkpoint of this version, only of 1 to {}",
                  seat_.index, files_.size());
    return memory_.prove(**proof_, files_[version - 1]);
  }

  const WorkerSeat& seat_;
  const config::Topology& topology_;
  std::span<const checkpoint::Checkpoint> files_;
  const EventSink& sink_;
  const BoundMemory& memory_;
  MaybeProof proof_; ///< the thread's, until it has ended
  Result<void> output_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<VersionHeld> waiting_; ///< committed and not read yet
  bool finished_ = false;
  std::thread thread_; ///< last: runs on all of the above
};

} // namespace

std::string dump_path(const std::string& directory, std::uint32_t worker) {
  return (std::filesystem::path(directory) / fmt::format("worker-{}.safetensors", worker)).string();
}

Result<void> run_worker(const WorkerSeat& seat, const config::Topology& topology,
                        std::span<const checkpoint::Checkpoint> files, const EventSink& sink) {
  return catching([&]() -> Result<void> {
    BoundMemory memory; // outlives the subscriber, which writes it
    Reader reader(seat, topology, files, sink, memory);
    Subscriber subscriber = Subscriber::open(
      seat.topology, {.worker = seat.index, .overrides = seat.overrides, .metrics_index = seat.metrics_index});
    if (auto allocated = memory.allocate(subscriber.parameters()); !allocated)
      return allocated;
    memory.bind_to(subscriber);
    subscriber.on_pause([&reader] { reader.on_pause(); });
    subscriber.on_commit([&reader, &subscriber](Version version, std::span<const Change> changes) {
      reader.on_commit(version, subscriber.status().session, changes);
    });
    subscriber.start();
    subscriber.wait();
    subscriber.close(); // no commit runs any more
    if (auto output = reader.finish(); !output)
      return output;
    return seat.dump_file.empty() ? Result<void>{} : dumped("--dump", seat.dump_file, memory);
  });
}

} // namespace deltawire::replay
