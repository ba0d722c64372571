// One trainer rank at work: rollouts from the workers, a step of learning, and again. How the new weights get to the
// workers in between is not its business: embed_trainer.cpp and copied.cpp each have the loop around it.
#pragma once

#include "channel.hpp"
#include "learner.hpp"
#include "record.hpp"
#include "settings.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace trainer {

class Training {
public:
  /// `workers`: channels to all of them, on rank 0; none on the others.
  Training(Group ranks, std::vector<Channel> workers, const Settings& settings);

  /// Supervised steps, so that the policy finds right answers at all; the workers then know that updates will come.
  /// `progress` is called every now and then.
  void warm_up(const std::function<void(std::uint32_t steps)>& progress);

  /// This rank's part of the weights.
  [[nodiscard]] const std::vector<Shard>& shards() const noexcept { return learner_.shards(); }
  [[nodiscard]] std::uint64_t updates() const noexcept { return settings_.updates; }

  /// For what brings the weights: throws where it saw other changes than there are.
  void delivered(const Delivery& delivery);

  /// Rollouts with the weights of this update, which the workers have now, and a step of learning from them; after the
  /// last update rollouts only. Throws where a worker does not hold what it should. Rank 0 gets the record.
  void step(std::uint64_t update);

  std::function<void(const UpdateRecord&)> on_record;

  // For Sync::copy, on rank 0.

  void send_whole_weights(std::uint64_t update);

  /// The workers have answered for the last time.
  void stop_workers();

private:
  [[nodiscard]] Rollouts collect(const RolloutRequest& request, UpdateRecord& record);

  Settings settings_;
  Group ranks_;
  std::vector<Channel> workers_;
  Learner learner_;
  std::uint64_t changed_ = 0; ///< elements, since the weights were last delivered
  Delivery delivery_;
};

} // namespace trainer
