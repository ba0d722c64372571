#include "worker_seat.hpp"

#include "exit_status.hpp"
#include "proof.hpp"

#include <filesystem>
#include <memory>

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

  [[nodiscard]] Result<void> prove(const Proof& proof, const checkpoint::File& file) const {
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

/// What happens at each commit, on a thread of deltawire: nothing may be thrown there.
struct Commits {
  const WorkerSeat& seat;
  std::span<const checkpoint::File> files;
  const EventSink& sink;
  const BoundMemory& memory;
  std::optional<Proof> proof;
  Result<void> output; ///< the first dump that failed

  void on_commit(Version version, std::span<const Change> changes) {
    VersionHeld held;
    held.worker = seat.index;
    held.version = version;
    held.tensors = changes.size();
    for (const Change& change : changes)
      held.elements += change.elements;
    if (proof) {
      const Result<void> equal = catching([&] { return compare(version); });
      held.proof = equal ? VersionHeld::Proof::equal : VersionHeld::Proof::different;
      if (!equal)
        held.difference = equal.error().message;
    }
    if (!seat.dump_each_into.empty() && output)
      output = catching(
        [&] { return memory.dump(dump_path(fmt::format("{}/v{}", seat.dump_each_into, version), seat.index)); });
    sink(held);
  }

private:
  Result<void> compare(Version version) const {
    if (version < 1 || version > files.size())
      return fail(Code::verification_failed, "worker {}: there is no checkpoint of this version, only of 1 to {}",
                  seat.index, files.size());
    return memory.prove(*proof, files[version - 1]);
  }
};

} // namespace

std::string dump_path(const std::string& directory, std::uint32_t worker) {
  return (std::filesystem::path(directory) / fmt::format("worker-{}.safetensors", worker)).string();
}

Result<void> run_worker(const WorkerSeat& seat, const config::Topology& topology,
                        std::span<const checkpoint::File> files, const EventSink& sink) {
  return catching([&]() -> Result<void> {
    BoundMemory memory; // outlives the subscriber, which writes it
    Commits commits{seat, files, sink, memory, std::nullopt, {}};
    if (!files.empty()) {
      auto proof = Proof::make(topology, files.front(), seat.index);
      if (!proof)
        return pass_on(std::move(proof));
      commits.proof = std::move(*proof);
    }
    Subscriber subscriber = Subscriber::open(seat.topology, {.worker = seat.index, .overrides = seat.overrides});
    if (auto allocated = memory.allocate(subscriber.parameters()); !allocated)
      return allocated;
    memory.bind_to(subscriber);
    subscriber.on_commit(
      [&commits](Version version, std::span<const Change> changes) { commits.on_commit(version, changes); });
    subscriber.start();
    subscriber.wait();
    subscriber.close(); // no commit runs any more
    if (!commits.output)
      return commits.output;
    return seat.dump_file.empty() ? Result<void>{} : memory.dump(seat.dump_file);
  });
}

} // namespace deltawire::replay
