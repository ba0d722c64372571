#include "training.hpp"

#include "digest.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace trainer {

namespace {

constexpr double warm_up_rate = 2e-3;
constexpr std::size_t warm_up_batch = 64;

/// Two ways to add up the same products in fp32 differ by far less, two policies by far more.
constexpr double largest_gap_allowed = 1e-3;

/// Streams of random numbers.
constexpr std::uint64_t warm_up_stream = 0;
constexpr std::uint64_t prompt_stream = 1;

/// Versions count from 1, as deltawire's; updates from 0.
std::uint64_t version_of(std::uint64_t update) {
  return update + 1;
}

} // namespace

Training::Training(Group ranks, std::vector<Channel> workers, const Settings& settings)
  : settings_(settings), ranks_(std::move(ranks)), workers_(std::move(workers)), learner_(ranks_, settings) {}

void Training::warm_up(const std::function<void(std::uint32_t)>& progress) {
  learner_.restart_optimizer(warm_up_rate);
  for (std::uint32_t s = 0; s < settings_.warm_up; ++s) {
    learner_.gather();
    learner_.imitate(sorting::prompts(sorting::mixed(settings_.seed, warm_up_stream), s, warm_up_batch));
    if (s % 10 == 0) {
      progress(s);
      for (Channel& worker : workers_)
        worker.send(Writer().put(Order::wait).take());
    }
  }
  learner_.gather();
  changed_ = learner_.elements(); // the first update brings them all
  learner_.restart_optimizer(settings_.learning_rate);
  for (Channel& worker : workers_)
    worker.send(Writer().put(Order::begin).take());
}

void Training::delivered(const Delivery& delivery) {
  if (delivery.changed != changed_)
    throw std::runtime_error(
      fmt::format("{} elements were delivered as changed, and {} have changed", delivery.changed, changed_));
  delivery_ = delivery;
}

Rollouts Training::collect(const RolloutRequest& request, UpdateRecord& record) {
  for (Channel& worker : workers_)
    worker.send(encoded(request));
  Bytes first;
  for (std::uint32_t w = 0; w < workers_.size(); ++w) {
    Bytes answer = workers_[w].receive();
    record.worker_weights[w] = decoded_rollouts(answer).weights_digest;
    if (record.worker_weights[w] != learner_.worker_digest(w))
      throw std::runtime_error(fmt::format("{} does not hold the weights of update {}: digest {:016x}, not {:016x}",
                                           workers_[w].peer(), record.update, record.worker_weights[w],
                                           learner_.worker_digest(w)));
    answer.resize(answer.size() - sizeof(std::uint64_t)); // the digest, which differs from worker to worker
    if (w == 0)
      first = std::move(answer);
    else if (answer != first)
      throw std::runtime_error(
        fmt::format("{} and {} sampled different answers", workers_[0].peer(), workers_[w].peer()));
  }
  first = ranks_.all_gather(first).front(); // rank 0's
  Digest digest;
  digest.add(first);
  record.rollouts = digest.value();
  Rollouts rollouts = decoded_rollouts(first);
  if (rollouts.answers.size() != request.prompts.size() * request.group)
    throw std::runtime_error(fmt::format("{} answers to {} prompts came, not {} to each", rollouts.answers.size(),
                                         request.prompts.size(), request.group));
  return rollouts;
}

void Training::step(std::uint64_t update) {
  const RolloutRequest request{
    version_of(update), settings_.group,
    sorting::prompts(sorting::mixed(settings_.seed, prompt_stream), update, settings_.prompts)};
  UpdateRecord record{.update = update,
                      .weights = learner_.digest(),
                      .changed = changed_,
                      .elements = learner_.elements(),
                      .delivery = delivery_};
  const Rollouts rollouts = collect(request, record);
  for (const float reward : rollouts.rewards)
    record.reward += reward / static_cast<double>(rollouts.rewards.size());
  const bool last = update == settings_.updates;
  const Learned learned = last ? learner_.compare(request, rollouts) : learner_.reinforce(request, rollouts);
  record.loss = learned.loss;
  record.largest_gap = learned.largest_gap;
  if (learned.largest_gap > largest_gap_allowed)
    throw std::runtime_error(fmt::format(
      "update {}: the workers' log probabilities differ from the trainer's by {:.2g}: they run another policy", update,
      learned.largest_gap));
  changed_ = learner_.gather();
  if (on_record)
    on_record(record);
}

void Training::send_whole_weights(std::uint64_t update) {
  const Bytes weights = learner_.whole_weights();
  Bytes message = Writer().put(Order::weights).put(version_of(update)).take();
  message.insert(message.end(), weights.begin(), weights.end());
  for (Channel& worker : workers_)
    worker.send(message);
  delivered({.changed = changed_, .wire_bytes = weights.size() * workers_.size()});
}

void Training::stop_workers() {
  for (Channel& worker : workers_)
    worker.send(Writer().put(Order::stop).take());
}

} // namespace trainer
