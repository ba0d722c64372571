// A trainer rank's share of the policy, as FSDP with mixed precision has it: of each parameter this rank's rows, as an
// fp32 master with its optimizer state and a bf16 copy. A step gathers the bf16 copies of all ranks, runs the policy
// whole, sums gradients over the ranks, each rank those of its rows, and moves the masters (Adam). The bf16 copies are
// what the workers are to have.
#pragma once

#include "channel.hpp"
#include "rollouts.hpp"
#include "settings.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer {

/// This rank's rows of a parameter, bf16, row-major; always at the same place.
struct Shard {
  std::string name;
  std::vector<std::int64_t> full_shape;
  const void* data = nullptr;
};

/// Of one step, over all ranks.
struct Learned {
  double loss = 0;
  double largest_gap = 0; ///< between a log probability that a worker reported and the same by the trainer's weights
};

class Learner {
public:
  /// Every rank with the same settings.
  Learner(Group& ranks, const Settings& settings);
  ~Learner();
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  [[nodiscard]] const std::vector<Shard>& shards() const noexcept;

  // Collectives: every rank calls them in the same order.

  /// Gathers the bf16 weights of all ranks, which the rest goes by. Returns how many elements have other bits than when
  /// it was called last; all, the first time.
  std::uint64_t gather();
  /// One supervised step on this rank's share of a batch.
  void imitate(std::span<const sorting::Prompt> prompts);
  /// One step of policy gradient: rewards less the mean of their group, in its standard deviations (GRPO). Takes all
  /// rollouts and uses this rank's share.
  Learned reinforce(const RolloutRequest& request, const Rollouts& rollouts);
  /// Without a step: what reinforce() would say of the gap.
  Learned compare(const RolloutRequest& request, const Rollouts& rollouts);
  /// Forgets the optimizer's state.
  void restart_optimizer(double learning_rate);

  // Of the weights gathered last.

  [[nodiscard]] std::uint64_t elements() const;
  [[nodiscard]] std::uint64_t digest() const;
  /// What the worker's memory must have.
  [[nodiscard]] std::uint64_t worker_digest(std::uint32_t worker) const;
  /// The bits of all parameters in whole, one after the other.
  [[nodiscard]] Bytes whole_weights() const;

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace trainer
