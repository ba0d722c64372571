#include "learner.hpp"

#include "network.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/Parallel.h>

namespace trainer {

namespace {

constexpr double beta1 = 0.9;
constexpr double beta2 = 0.95;
constexpr double epsilon = 1e-8;

/// What this rank keeps of one parameter.
struct Owned {
  at::Tensor master, momentum, variance; ///< fp32
  at::Tensor bits;                       ///< bf16, at the same place for ever
};

void append(Bytes& bytes, const at::Tensor& tensor) {
  const at::Tensor row_major = tensor.contiguous();
  const auto* begin = static_cast<const std::byte*>(row_major.data_ptr());
  bytes.insert(bytes.end(), begin, begin + row_major.nbytes());
}

/// Fills a contiguous tensor with what comes next.
void take(std::span<const std::byte>& bytes, const at::Tensor& to) {
  if (bytes.size() < to.nbytes())
    throw std::runtime_error("a rank sent fewer weights than it holds");
  std::memcpy(to.data_ptr(), bytes.data(), to.nbytes());
  bytes = bytes.subspan(to.nbytes());
}

/// [answers, input_length]: the prompt, and the answer but for its last digit.
at::Tensor inputs_of(std::span<const sorting::Prompt> prompts, std::span<const sorting::Answer> answers,
                     std::uint32_t group) {
  at::Tensor tokens = at::empty({static_cast<std::int64_t>(answers.size()), sorting::input_length}, at::kLong);
  auto* row = tokens.data_ptr<std::int64_t>();
  for (std::size_t a = 0; a < answers.size(); ++a, row += sorting::input_length) {
    std::copy_n(prompts[a / group].begin(), sorting::prompt_length, row);
    std::copy_n(answers[a].begin(), sorting::digits - 1, row + sorting::prompt_length);
  }
  return tokens;
}

/// log p of each digit of each answer, [answers, digits]
at::Tensor log_probabilities(const network::Weights& weights, const at::Tensor& inputs,
                             std::span<const sorting::Answer> answers) {
  at::Tensor chosen = at::empty({inputs.size(0), sorting::digits}, at::kLong);
  for (std::size_t a = 0; a < answers.size(); ++a)
    std::copy_n(answers[a].begin(), sorting::digits, chosen.data_ptr<std::int64_t>() + a * sorting::digits);
  const at::Tensor all = at::log_softmax(network::answer_logits(weights, inputs), -1);
  return all.gather(-1, chosen.unsqueeze(-1)).squeeze(-1);
}

/// Rewards against those of the same prompt.
std::vector<float> advantages(const std::vector<float>& rewards, std::uint32_t group) {
  std::vector<float> all(rewards.size());
  for (std::size_t first = 0; first < rewards.size(); first += group) {
    const std::span<const float> own(rewards.data() + first, group);
    double mean = 0;
    double square = 0;
    for (const float reward : own)
      mean += reward / static_cast<double>(group);
    for (const float reward : own)
      square += (reward - mean) * (reward - mean) / static_cast<double>(group);
    for (std::size_t a = 0; a < group; ++a)
      all[first + a] = static_cast<float>((own[a] - mean) / (std::sqrt(square) + 1e-4));
  }
  return all;
}

} // namespace

struct Learner::State {
  Group& ranks;
  std::vector<Owned> owned; ///< in the order of network::parameters()
  std::vector<Shard> shards;
  double learning_rate = 0;
  std::uint64_t steps = 0; ///< of the optimizer

  network::Weights whole;  ///< bf16, of all ranks
  network::Weights leaves; ///< the same in fp32, with gradients

  explicit State(Group& group) : ranks(group) {}

  /// This rank's share of so many things in equal parts.
  [[nodiscard]] std::pair<std::size_t, std::size_t> share(std::size_t count) const {
    const auto [begin, end] = network::rows_of(static_cast<std::int64_t>(count), ranks.index(), ranks.size());
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
  }

  /// Gradients of all ranks for this one's rows, then a step of Adam.
  void step(const at::Tensor& loss) {
    loss.backward();
    std::vector<Bytes> outgoing(ranks.size());
    for (const network::Parameter& p : network::parameters())
      for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
        const auto [begin, end] = network::rows_of(p.shape[0], rank, ranks.size());
        append(outgoing[rank], leaves.at(p.name).grad().slice(0, begin, end));
      }
    const std::vector<Bytes> incoming = ranks.exchange(std::move(outgoing));
    std::vector<std::span<const std::byte>> unread(incoming.begin(), incoming.end());
    ++steps;
    for (Owned& own : owned) {
      at::Tensor gradient = at::zeros_like(own.master);
      for (auto& bytes : unread) { // in the order of ranks: the same sum in every run
        at::Tensor part = at::empty_like(own.master);
        take(bytes, part);
        gradient += part;
      }
      own.momentum.mul_(beta1).add_(gradient, 1 - beta1);
      own.variance.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
      const double momentum_share = 1 - std::pow(beta1, static_cast<double>(steps));
      const double variance_share = 1 - std::pow(beta2, static_cast<double>(steps));
      own.master.addcdiv_(own.momentum, (own.variance / variance_share).sqrt().add_(epsilon),
                          -learning_rate / momentum_share);
      own.bits.copy_(own.master); // to the nearest, ties to even
    }
  }

  /// Sums of a few numbers, and the largest of one, over all ranks.
  [[nodiscard]] Learned over_ranks(const Learned& own) {
    Learned all;
    for (const Bytes& message : ranks.all_gather(Writer().put(own).take())) {
      const auto part = Reader(message).get<Learned>();
      all.loss += part.loss;
      all.largest_gap = std::max(all.largest_gap, part.largest_gap);
    }
    return all;
  }

  [[nodiscard]] Learned run(const RolloutRequest& request, const Rollouts& rollouts, bool learn) {
    const std::uint32_t group = request.group;
    const auto [first, end] = share(request.prompts.size());
    const std::span prompts = std::span(request.prompts).subspan(first, end - first);
    const std::span answers = std::span(rollouts.answers).subspan(first * group, (end - first) * group);
    const at::Tensor ours = log_probabilities(leaves, inputs_of(prompts, answers, group), answers);
    at::Tensor theirs = at::empty(ours.sizes());
    std::copy_n(rollouts.log_probabilities.begin() + static_cast<std::ptrdiff_t>(first * group * sorting::digits),
                theirs.numel(), theirs.data_ptr<float>());
    at::Tensor advantage = at::empty({ours.size(0), 1});
    std::copy_n(advantages(rollouts.rewards, group).begin() + static_cast<std::ptrdiff_t>(first * group),
                advantage.numel(), advantage.data_ptr<float>());
    const at::Tensor loss = -(advantage * ours).sum() / static_cast<double>(rollouts.answers.size() * sorting::digits);
    const double gap = (ours.detach() - theirs).abs().max().item<double>();
    if (learn)
      step(loss);
    return over_ranks({loss.item<double>(), gap});
  }
};

Learner::Learner(Group& ranks, const Settings& settings) : state_(std::make_unique<State>(ranks)) {
  at::set_num_threads(1); // sums in one order
  const network::Weights initial = network::initial(settings.seed);
  for (const network::Parameter& p : network::parameters()) {
    const auto [begin, end] = network::rows_of(p.shape[0], ranks.index(), ranks.size());
    Owned own;
    own.master = initial.at(p.name).slice(0, begin, end).clone();
    own.bits = own.master.to(at::kBFloat16);
    state_->shards.push_back({p.name, p.shape, own.bits.data_ptr()});
    state_->owned.push_back(own);
  }
}

Learner::~Learner() = default;

const std::vector<Shard>& Learner::shards() const noexcept {
  return state_->shards;
}

std::uint64_t Learner::gather() {
  Bytes own;
  for (const Owned& o : state_->owned)
    append(own, o.bits);
  const std::vector<Bytes> all = state_->ranks.all_gather(own);
  std::vector<std::span<const std::byte>> unread(all.begin(), all.end());
  std::uint64_t changed = 0;
  for (const network::Parameter& p : network::parameters()) {
    at::Tensor now = at::empty(p.shape, at::kBFloat16);
    for (std::uint32_t rank = 0; rank < state_->ranks.size(); ++rank) {
      const auto [begin, end] = network::rows_of(p.shape[0], rank, state_->ranks.size());
      take(unread[rank], now.slice(0, begin, end));
    }
    at::Tensor& before = state_->whole[p.name];
    // As integers: bits, not values.
    changed += static_cast<std::uint64_t>(
      before.defined() ? now.view(at::kShort).ne(before.view(at::kShort)).sum().item<std::int64_t>() : now.numel());
    before = now;
    state_->leaves[p.name] = now.to(at::kFloat).set_requires_grad(true);
  }
  return changed;
}

void Learner::imitate(std::span<const sorting::Prompt> prompts) {
  const auto [first, end] = state_->share(prompts.size());
  const std::span own = prompts.subspan(first, end - first);
  std::vector<sorting::Answer> answers;
  for (const sorting::Prompt& prompt : own)
    answers.push_back(sorting::solution(prompt));
  const at::Tensor log_p = log_probabilities(state_->leaves, inputs_of(own, answers, 1), answers);
  state_->step(-log_p.sum() / static_cast<double>(prompts.size() * sorting::digits));
}

Learned Learner::reinforce(const RolloutRequest& request, const Rollouts& rollouts) {
  return state_->run(request, rollouts, true);
}

Learned Learner::compare(const RolloutRequest& request, const Rollouts& rollouts) {
  return state_->run(request, rollouts, false);
}

void Learner::restart_optimizer(double learning_rate) {
  state_->learning_rate = learning_rate;
  state_->steps = 0;
  for (Owned& own : state_->owned) {
    own.momentum = at::zeros_like(own.master);
    own.variance = at::zeros_like(own.master);
  }
}

std::uint64_t Learner::elements() const {
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : state_->whole)
    sum += static_cast<std::uint64_t>(tensor.numel());
  return sum;
}

std::uint64_t Learner::digest() const {
  return network::digest(state_->whole);
}

std::uint64_t Learner::worker_digest(std::uint32_t worker) const {
  return network::digest(network::packed_part(state_->whole, worker));
}

Bytes Learner::whole_weights() const {
  Bytes bytes;
  for (const network::Parameter& p : network::parameters())
    append(bytes, state_->whole.at(p.name));
  return bytes;
}

} // namespace trainer
