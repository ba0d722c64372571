// A worker process of a simulated job: sync/worker.hpp and a stage over its memory, put together as actors/applier.cpp
// does. Digests are compared in audits and not in deliveries, so that there the protocol alone must keep the promises.
#pragma once

#include "faults.hpp"
#include "job.hpp"
#include "network.hpp"
#include "oracle.hpp"

#include "delta/stage.hpp"
#include "sync/root_delivery.hpp"
#include "sync/worker.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <variant>

namespace deltawire::simulation {

/// What everybody in a simulation has.
struct Surroundings {
  Network& network;
  Oracle& oracle;
  Counts& counts;
  Planted planted = Planted::none;
  bool told = false; ///< what happens is printed
  /// Counts a fault, in the phase that the job is in.
  std::function<void(Fault)> struck;

  template <class... Args>
  void tell(fmt::format_string<Args...> format, Args&&... args) const {
    if (told)
      fmt::print("{:>8} {}\n", network.now(), fmt::format(format, std::forward<Args>(args)...));
  }
};

using Payload = std::shared_ptr<const std::vector<std::byte>>;
using Answer = std::variant<wire::Ready, wire::FlushStaged, wire::Staged, wire::Applied, wire::Released, wire::Undone,
                            wire::Failed, wire::Agreed, wire::Audited>;

/// What it is, and what about.
[[nodiscard]] std::string describe(const sync::RootDelivery::Message& message);
[[nodiscard]] std::string describe(const Answer& answer);

/// What is compiled for one worker.
struct Compiled {
  std::uint32_t blocks = 0; ///< ids are below
  std::vector<layout::Block> own;
};

/// Digests of all cells of a memory whose parameters lie at `offsets`: of each there is one copy.
[[nodiscard]] sync::Digests digests_of(const Compiled& compiled, const std::vector<std::size_t>& offsets,
                                       std::span<Bits> memory);

/// A worker's connections to one trainer.
struct Link {
  explicit Link(Network& network) : control(network), data(network), up(network) {}
  Queue control, data, up; ///< down, down, and what the worker says
  bool cut = false;        ///< nothing that is said from now on arrives
  std::function<void(const Answer&)> to_root;
};

class Worker {
public:
  Worker(std::uint32_t index, const Job& job, Surroundings surroundings);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Its connection. What comes from another link than its own is ignored.
  void connect(Link& link) {
    link_ = &link;
    ++incarnation_;
  }
  void agree(Link& link, std::uint64_t session, std::shared_ptr<const Compiled> compiled);
  void receive(Link& link, const sync::RootDelivery::Message& message);
  void flush(Link& link, std::uint64_t delivery, std::uint64_t sequence, const Payload& payload);
  void lost(Link& link);

  // Faults.
  void restart();
  void fail_next_pause() noexcept { pause_fails_ = true; }
  void fail_next_flush() noexcept { flush_fails_ = true; }
  /// Before the next audit reads it.
  void change_memory() noexcept { memory_changes_ = true; }

  void calm_down() noexcept { pause_fails_ = flush_fails_ = memory_changes_ = false; }

  [[nodiscard]] Link* link() const noexcept { return link_; }
  [[nodiscard]] const layout::Declaration& declaration() const noexcept { return declaration_; }
  [[nodiscard]] const std::vector<std::size_t>& offsets() const noexcept { return offsets_; }
  [[nodiscard]] std::span<const Bits> memory() const noexcept { return memory_; }
  [[nodiscard]] std::uint64_t incarnation() const noexcept { return incarnation_; }
  [[nodiscard]] std::uint64_t version() const noexcept { return protocol_.version(); }
  [[nodiscard]] bool unsettled() const noexcept { return protocol_.unsettled(); }
  /// It has applied a delivery and was not told what becomes of it.
  [[nodiscard]] bool applied() const noexcept { return applied_; }

private:
  delta::BoundBlock bound(std::uint32_t block);
  void take_compiled();
  void forget_delivery();
  void put_back();
  [[nodiscard]] bool pause();
  void take_pieces(std::span<const std::byte> rest);
  void staged_if_complete();
  void take(const wire::Begin& message);
  void take(const wire::Seal& message);
  void take(const wire::Commit& message);
  void take(const wire::Release& message);
  void take(const wire::Undo& message);
  void take(const wire::Settle& message);
  void take(const wire::Audit& message);
  void take(const wire::Adopt& message);
  void serve();
  void show();
  void say(Answer answer);
  /// What an honest root never makes it say, unless it does not know yet what an audit has found.
  void refuse(const Failure& failure, std::uint64_t delivery);
  void fail_delivery(const Failure& failure, std::uint64_t delivery);

  std::uint32_t index_;
  Surroundings around_;
  layout::Declaration declaration_;
  std::vector<std::size_t> offsets_; ///< in memory, by declared parameter
  std::vector<Bits> memory_;
  std::uint64_t incarnation_ = 1; ///< of its process, and of each attempt to connect
  Link* link_ = nullptr;
  sync::WorkerProtocol protocol_;
  std::shared_ptr<const Compiled> compiled_, next_compiled_;
  std::optional<delta::Stage> stage_;
  wire::Begin begun_;
  std::uint64_t version_ = 0; ///< what the engine is told
  bool paused_ = false, applied_ = false, pause_fails_ = false, flush_fails_ = false, memory_changes_ = false;
  bool found_wrong_ = false; ///< by an audit, and no delivery began since: the root may not have heard of it
};

} // namespace deltawire::simulation
