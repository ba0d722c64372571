#include "update_processes.hpp"

#include "changing_weights.hpp"
#include "update_session.hpp"

#include "config/topology.hpp"

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace deltawire::bench {
namespace {

using replay::Peer;

/// Descriptors that children inherit are kept above those that replay gives them.
constexpr int first_inherited = 16;

replay::ChildProcess child(const UpdateSettings& settings, const SharedArray& weights, const std::string& topology,
                           const std::vector<std::string>& overrides, std::size_t updates, Peer peer) {
  const ModelShape& shape = settings.shape;
  replay::ChildProcess child{peer,
                             {"bench-peer", topology, peer.side == Peer::Side::trainer ? "--rank" : "--index",
                              std::to_string(peer.index), "--weights-fd", std::to_string(weights.descriptor()),
                              "--bytes", std::to_string(shape.bytes), "--tensors", std::to_string(shape.tensors),
                              "--ranks", std::to_string(shape.ranks), "--workers", std::to_string(shape.workers),
                              "--updates", std::to_string(updates)}};
  for (const std::string& text : overrides)
    child.arguments.insert(child.arguments.end(), {"--set", text});
  return child;
}

Result<void> be_trainer(const PeerCommand& command, const ModelPlan& plan, const std::byte* weights,
                        const replay::EventSink& sink) {
  const auto rank = static_cast<std::uint32_t>(command.rank);
  Publisher publisher = Publisher::open(command.topology, {.rank = rank,
                                                           .world = plan.shape().ranks,
                                                           .overrides = command.overrides,
                                                           .listening_socket = command.listening_socket});
  add_rows(plan, publisher, [&](const Matrix& matrix) {
    return weights + matrix.offset + plan.rows_of(matrix, rank).first * matrix.columns * 2;
  });
  publisher.connect();
  const auto turns = replay::turns_from(command.ties.events_descriptor);
  for (std::size_t update = 0; update < command.updates; ++update) {
    if (!turns(update))
      return fail(Code::peer_failed, "the run was given up before update {}", update + 1);
    const Outcome outcome = publisher.publish(update).wait();
    if (rank == 0)
      sink(replay::UpdateEnded{outcome});
    if (!outcome.committed)
      return fail(outcome.error_message.empty() ? Code::internal : outcome.error, "version {} was not committed: {}",
                  outcome.version, outcome.error_message);
  }
  publisher.close();
  return {};
}

/// Compares a worker's memory after each commit, on its own thread: the worker serves meanwhile.
class Comparer {
public:
  Comparer(const ModelPlan& plan, const std::byte* weights, std::uint32_t worker, const std::byte* memory,
           const replay::EventSink& sink)
    : thread_([this, &plan, weights, worker, memory, &sink] {
        while (const std::optional<Version> version = next()) {
          const Result<void> equal = compare_worker(plan, weights, worker, memory);
          compared();
          replay::VersionHeld held;
          held.worker = worker;
          held.version = *version;
          held.proof = equal ? replay::VersionHeld::Proof::equal : replay::VersionHeld::Proof::different;
          held.difference = equal ? "" : equal.error().message;
          sink(held);
        }
      }) {}
  Comparer(const Comparer&) = delete;
  Comparer& operator=(const Comparer&) = delete;
  ~Comparer() {
    {
      const std::lock_guard lock(mutex_);
      finished_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void committed(Version version) {
    {
      const std::lock_guard lock(mutex_);
      waiting_ = version;
    }
    changed_.notify_all();
  }

  /// Returns when memory is not read: before it changes. The next update waits for that anyway, by way of other
  /// processes, which a sanitizer of threads cannot see.
  void pause() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !comparing_; });
  }

private:
  /// Nothing once it is over.
  std::optional<Version> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_ || waiting_; });
    comparing_ = waiting_.has_value();
    return std::exchange(waiting_, std::nullopt);
  }

  void compared() {
    {
      const std::lock_guard lock(mutex_);
      comparing_ = false;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Version> waiting_; ///< the next update waits until it is compared
  bool comparing_ = false;
  bool finished_ = false;
  std::thread thread_; ///< last: runs on all of the above
};

Result<void> be_worker(const PeerCommand& command, const ModelPlan& plan, const std::byte* weights,
                       const replay::EventSink& sink) {
  const auto worker = static_cast<std::uint32_t>(command.index);
  const HugeArray memory(plan.held_by(worker).bytes);
  std::memset(memory.data(), 0, memory.size());
  Comparer comparer(plan, weights, worker, memory.data(), sink);
  Subscriber subscriber = Subscriber::open(command.topology, {.worker = worker, .overrides = command.overrides});
  bind_all(plan, worker, memory.data(), subscriber);
  subscriber.on_pause([&] { comparer.pause(); });
  subscriber.on_commit([&](Version version, std::span<const Change>) { comparer.committed(version); });
  subscriber.start();
  subscriber.wait();
  subscriber.close(); // no commit runs any more
  return {};
}

} // namespace

Result<SharedArray> SharedArray::make(std::size_t bytes) {
  const int low = ::memfd_create("deltawire-bench", MFD_CLOEXEC);
  const int descriptor = low < 0 ? -1 : ::fcntl(low, F_DUPFD, first_inherited);
  if (low >= 0)
    ::close(low);
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    if (descriptor >= 0)
      ::close(descriptor);
    return fail(Code::internal, "no shared memory of {} bytes: {}", bytes, std::strerror(error));
  }
  return inherited(descriptor, bytes);
}

Result<SharedArray> SharedArray::inherited(int descriptor, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED)
    return fail(Code::internal, "shared memory of {} bytes cannot be mapped: {}", bytes, std::strerror(errno));
  ::madvise(data, bytes, MADV_HUGEPAGE); // where refused, plain pages do
  return SharedArray(descriptor, static_cast<std::byte*>(data), bytes);
}

SharedArray::SharedArray(SharedArray&& other) noexcept
  : descriptor_(std::exchange(other.descriptor_, -1)), data_(std::exchange(other.data_, nullptr)),
    bytes_(std::exchange(other.bytes_, 0)) {}

SharedArray& SharedArray::operator=(SharedArray&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedArray::~SharedArray() {
  if (data_ != nullptr)
    ::munmap(data_, bytes_);
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

Result<void> run_in_processes(const UpdateSettings& settings, const SharedArray& weights, const std::string& topology,
                              UpdateRounds& rounds) {
  auto loaded = config::load(topology, settings.overrides);
  if (!loaded)
    return pass_on(std::move(loaded));
  auto socket = replay::ListeningSocket::open({"127.0.0.1", 0});
  if (!socket)
    return pass_on(std::move(socket));
  std::vector<std::string> overrides = settings.overrides;
  overrides.push_back(fmt::format("transport.master=\"{}\"", socket->address()));
  std::vector<replay::ChildProcess> children;
  for (std::uint32_t rank = 0; rank < settings.shape.ranks; ++rank)
    children.push_back(child(settings, weights, topology, overrides, rounds.updates(), {Peer::Side::trainer, rank}));
  for (std::uint32_t worker = 0; worker < settings.shape.workers; ++worker)
    children.push_back(child(settings, weights, topology, overrides, rounds.updates(), {Peer::Side::worker, worker}));

  replay::Record record(rounds.updates(), settings.shape.workers);
  replay::Progress progress(false);
  Result<void> measured;
  const auto before_turn = [&](std::size_t held) {
    const Outcome outcome = record.updates().at(held - 1);
    measured = rounds.ended({outcome, outcome.committed_s});
    return measured.has_value();
  };
  if (auto ran = replay::run_in_processes(children, {Peer::Side::trainer, 0}, std::move(*socket), loaded->update.stall,
                                          record, progress, before_turn);
      !ran)
    return ran;
  if (!measured)
    return measured;
  if (auto cause = record.cause())
    return tl::make_unexpected(std::move(*cause));
  return {};
}

replay::ExitStatus peer_command(const PeerCommand& command) {
  const bool trainer = command.rank >= 0;
  const Peer peer{trainer ? Peer::Side::trainer : Peer::Side::worker,
                  static_cast<std::uint32_t>(trainer ? command.rank : command.index)};
  return replay::run_as(peer, command.ties, {}, [&](const replay::EventSink& sink) -> Result<void> {
    if (!command.ties.is_child())
      return fail(Code::invalid_argument, "bench-peer is started by bench update --processes only");
    const ModelPlan plan(command.shape);
    auto weights = SharedArray::inherited(command.weights, plan.bytes());
    if (!weights)
      return pass_on(std::move(weights));
    return trainer ? be_trainer(command, plan, weights->data(), sink) : be_worker(command, plan, weights->data(), sink);
  });
}

} // namespace deltawire::bench
