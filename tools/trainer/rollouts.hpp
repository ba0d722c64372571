// What the trainer asks of the workers, and what they answer: the experience that the policy learns from.
#pragma once

#include "channel.hpp"
#include "sorting.hpp"

#include <cstdint>
#include <vector>

namespace trainer {

struct RolloutRequest {
  std::uint64_t version = 0; ///< of the weights to answer with
  std::uint32_t group = 0;   ///< answers to each prompt
  std::vector<sorting::Prompt> prompts;
};

/// Answers to the first prompt, then to the second, and so on.
struct Rollouts {
  std::vector<sorting::Answer> answers;
  std::vector<float> log_probabilities; ///< of each digit of each answer, under the policy that sampled it
  std::vector<float> rewards;           ///< of each answer
  std::uint64_t weights_digest = 0;     ///< of this worker's memory while it answered; last in a message, or left out
};

/// What a message to a worker is.
enum class Order : std::uint8_t {
  wait,     ///< the trainer warms up
  begin,    ///< updates come from now on
  weights,  ///< Sync::copy: a version, and all of its weights
  rollouts, ///< a RolloutRequest
  stop,
};

[[nodiscard]] inline Bytes encoded(const RolloutRequest& request) {
  return Writer()
    .put(Order::rollouts)
    .put(request.version)
    .put(request.group)
    .put(std::span<const sorting::Prompt>(request.prompts))
    .take();
}

/// Of what follows the order.
[[nodiscard]] inline RolloutRequest decoded_request(Reader& reader) {
  RolloutRequest request;
  request.version = reader.get<std::uint64_t>();
  request.group = reader.get<std::uint32_t>();
  request.prompts = reader.get_all<sorting::Prompt>();
  return request;
}

[[nodiscard]] inline Bytes encoded(const Rollouts& rollouts) {
  return Writer()
    .put(std::span<const sorting::Answer>(rollouts.answers))
    .put(std::span<const float>(rollouts.log_probabilities))
    .put(std::span<const float>(rollouts.rewards))
    .put(rollouts.weights_digest)
    .take();
}

[[nodiscard]] inline Rollouts decoded_rollouts(const Bytes& message) {
  Reader reader(message);
  Rollouts rollouts;
  rollouts.answers = reader.get_all<sorting::Answer>();
  rollouts.log_probabilities = reader.get_all<float>();
  rollouts.rewards = reader.get_all<float>();
  if (!reader.rest().empty())
    rollouts.weights_digest = reader.get<std::uint64_t>();
  return rollouts;
}

} // namespace trainer
