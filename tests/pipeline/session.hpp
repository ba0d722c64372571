// All ranks and workers of a scenario in this process, through the facade, over the in-process transport.
//
// Used by one thread; what waits for others (connect, start, close) runs on a thread a member. Trainer memory is
// scribbled over as soon as captured() says that it may change, worker memory is poisoned before it is bound.
//
// With DELTAWIRE_TEST_GPU in the environment the trainers' memory is an emulated GPU's: "device" (snapshots too),
// "host" (snapshots on the host) or "mixed" (every other parameter, snapshots where they fit). What a publish() sends
// is then written late, on a stream that the publish is told of.
#pragma once

#include "gpu/emulated_gpus.hpp"
#include "scenario.hpp"
#include "unit/scratch_folder.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

namespace deltawire::test {

inline constexpr std::byte poison{0xFF};

/// Memory of one Held, with what is known of it.
class HeldMemory {
public:
  /// `gpus`: it is of the first of these.
  explicit HeldMemory(const Held& held, std::shared_ptr<EmulatedGpus> gpus = nullptr);

  [[nodiscard]] bool on_gpu() const { return on_gpu_ != nullptr; }
  [[nodiscard]] std::byte* data() {
    return (on_gpu_ ? on_gpu_.get() : bytes_.data()) + static_cast<std::size_t>(held_->offset) * size_;
  }
  /// Writes every element that is not padding; of a GPU's memory, on this stream where there is one.
  void store(const std::vector<Values>& tensors, std::optional<void*> stream = {});
  void scribble();
  /// Empty, or what differs first: each element from the tensors, everything else poison.
  [[nodiscard]] std::string compare(const std::vector<Values>& tensors) const;
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

private:
  const Held* held_;
  std::size_t size_;
  std::vector<std::byte> bytes_; ///< what it holds
  std::vector<std::size_t> at_;  ///< byte offset of each element
  std::shared_ptr<EmulatedGpus> gpus_;
  std::shared_ptr<std::byte> on_gpu_; ///< where it is, if it is a GPU's
};

class Session {
public:
  struct Committed {
    Version version = 0;
    std::vector<Change> changes;
  };

  /// Opens, adds and binds. `scenario` must outlive the session. The engines of `polled` workers commit by poll() and
  /// commit(): that is the caller's.
  Session(const Scenario& scenario, const std::vector<std::string>& overrides = {}, std::set<std::size_t> polled = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Everyone meets. Returns what each member threw, ranks first; empty: nothing.
  [[nodiscard]] std::vector<std::string> connect();

  /// Ranks publish the tensors' values of now. Returns when every rank may change its memory (and has: scribbled).
  void publish(const std::vector<Values>& tensors, std::uint64_t step);
  /// The outcome of the oldest publish that was not waited for, by rank.
  [[nodiscard]] std::vector<Outcome> wait();

  /// Empty, or the first difference of any worker's memory from these values; of one worker's.
  [[nodiscard]] std::string compare(const std::vector<Values>& tensors) const;
  [[nodiscard]] std::string compare(const std::vector<Values>& tensors, std::size_t worker) const;
  /// Every byte of every worker is as it was bound.
  [[nodiscard]] bool untouched() const;

  [[nodiscard]] std::vector<Committed> committed(std::size_t worker) const;
  /// The memory of what a rank holds, in the order of the scenario.
  [[nodiscard]] HeldMemory& memory(std::size_t rank, std::size_t held) { return rank_memory_[rank][held]; }
  [[nodiscard]] HeldMemory& worker_memory(std::size_t worker, std::size_t held) { return worker_memory_[worker][held]; }
  [[nodiscard]] Publisher& rank(std::size_t rank) { return publishers_[rank]; }
  [[nodiscard]] Subscriber& worker(std::size_t worker) { return subscribers_[worker]; }
  [[nodiscard]] std::size_t workers() const { return subscribers_.size(); }

  /// Another process in the worker's place: memory as it was bound first, nothing known. The old one closes before, or
  /// never (its machine is gone). `load` may fill the memory first. What the new one threw; empty: it joined.
  [[nodiscard]] std::string restart(std::size_t worker, bool close_before = true,
                                    const std::function<void(std::vector<HeldMemory>&)>& load = nullptr);

  /// Everyone closes, at the same time.
  void close();

private:
  void open_worker(std::size_t worker);
  void bind_and_start(std::size_t worker);
  std::vector<std::string> at_once(std::size_t members, const std::function<void(std::size_t)>& call) const;

  const Scenario* scenario_;
  ScratchFolder folder_;
  std::string topology_;
  std::vector<std::string> overrides_;
  std::set<std::size_t> polled_;
  std::vector<Subscriber> replaced_;
  std::vector<std::vector<HeldMemory>> rank_memory_;
  std::vector<std::optional<void*>> streams_; ///< by rank, where it has memory on a GPU
  std::vector<std::vector<HeldMemory>> worker_memory_;
  std::vector<Publisher> publishers_;
  std::vector<Subscriber> subscribers_;
  std::deque<std::vector<Ticket>> tickets_; ///< by publish that was not waited for, by rank
  mutable std::mutex mutex_;
  std::vector<std::vector<Committed>> committed_;
};

void apply(std::vector<Values>& tensors, const std::vector<Edit>& edits);

/// Two ranks with half of `w` each, `replicas` workers with all of it.
[[nodiscard]] Scenario two_ranks(std::size_t elements = 8, std::size_t replicas = 2);

/// Those that this run's trainers have their memory on; null: on the host.
[[nodiscard]] std::shared_ptr<EmulatedGpus> trainer_gpus();

/// Overrides that keep a session within this process, at an address of its own.
[[nodiscard]] std::vector<std::string> inproc_overrides();

/// Runs a scenario to its end; returns what went wrong first, empty for nothing.
[[nodiscard]] std::string run(const Scenario& scenario, const std::vector<std::string>& overrides = {});

} // namespace deltawire::test
