#include "engine.hpp"

#include "network.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trainer {

using namespace model;

struct Engine::State {
  Group group;
  Settings settings;
  network::Weights packed;  ///< bf16: what is bound
  network::Weights derived; ///< fp32

  std::mutex mutex;
  std::condition_variable changed;
  bool paused = true;
  bool sampling = false;
  std::uint64_t version = 0;

  State(Group members, const Settings& given) : group(std::move(members)), settings(given) {
    at::set_num_threads(1); // sums in one order
    network::Weights zeros;
    for (const network::Parameter& p : network::parameters())
      zeros[p.name] = at::zeros(p.shape, at::kBFloat16);
    packed = network::packed_part(zeros, group.index());
    for (auto& [name, tensor] : packed) {
      tensor = tensor.clone(); // not the memory of `zeros`
      derived[name] = tensor.to(at::kFloat);
    }
  }

  [[nodiscard]] const at::Tensor& weight(const std::string& name) const { return derived.at(name); }

  /// The sum over all workers.
  [[nodiscard]] at::Tensor reduced(const at::Tensor& partial) {
    const at::Tensor sum = partial.contiguous();
    group.all_reduce({sum.data_ptr<float>(), static_cast<std::size_t>(sum.numel())});
    return sum;
  }

  /// Rows of the vocabulary lie on one worker each: the others add zeros.
  [[nodiscard]] at::Tensor embedded(const at::Tensor& tokens) {
    const auto [begin, end] = network::rows_of(vocabulary, group.index(), worker_count);
    const at::Tensor elsewhere = at::logical_or(tokens.lt(begin), tokens.ge(end));
    const at::Tensor local = (tokens - begin).masked_fill(elsewhere, 0);
    return reduced(at::embedding(weight("model.embed_tokens.weight"), local).masked_fill(elsewhere.unsqueeze(-1), 0));
  }

  /// Keys and values of what was read so far, a pair a layer.
  using Cache = std::array<std::pair<at::Tensor, at::Tensor>, layers>;

  /// Reads tokens [batch, n], which follow those in the cache -> logits of the next one, [batch, vocabulary]
  [[nodiscard]] at::Tensor next_logits(const at::Tensor& tokens, Cache& cache) {
    const std::int64_t start = cache[0].first.defined() ? cache[0].first.size(1) : 0;
    const at::Tensor& positions = weight("model.embed_positions.weight");
    at::Tensor x = embedded(tokens) + positions.slice(0, start, start + tokens.size(1));
    for (std::int64_t l = 0; l < layers; ++l) {
      const auto in_layer = [&](const char* rest) { return weight(fmt::format("model.layers.{}.{}", l, rest)); };
      const at::Tensor qkv =
        at::linear(network::rms_norm(x, in_layer("input_layernorm.weight")), in_layer("self_attn.qkv_proj.weight"));
      constexpr std::int64_t q = heads * head / worker_count;
      constexpr std::int64_t kv = kv_heads * head / worker_count;
      const std::vector<at::Tensor> parts = qkv.split_with_sizes({q, kv, kv}, -1);
      auto& [keys, values] = cache[static_cast<std::size_t>(l)];
      keys = start > 0 ? at::cat({keys, parts[1]}, 1) : parts[1];
      values = start > 0 ? at::cat({values, parts[2]}, 1) : parts[2];
      x = x + reduced(at::linear(network::attention(parts[0], keys, values), in_layer("self_attn.o_proj.weight")));
      const std::vector<at::Tensor> gate_up =
        at::linear(network::rms_norm(x, in_layer("post_attention_layernorm.weight")),
                   in_layer("mlp.gate_up_proj.weight"))
          .chunk(2, -1);
      x = x + reduced(at::linear(at::silu(gate_up[0]) * gate_up[1], in_layer("mlp.down_proj.weight")));
    }
    const at::Tensor last = network::rms_norm(x.select(1, x.size(1) - 1), weight("model.norm.weight"));
    return gathered_logits(at::linear(last, weight("lm_head.weight")).contiguous());
  }

  [[nodiscard]] at::Tensor gathered_logits(const at::Tensor& own) {
    const auto* begin = static_cast<const std::byte*>(own.data_ptr());
    const std::vector<Bytes> all = group.all_gather(Bytes(begin, begin + own.nbytes()));
    std::vector<at::Tensor> parts;
    for (std::uint32_t worker = 0; worker < worker_count; ++worker) {
      const auto [first, end] = network::rows_of(vocabulary, worker, worker_count);
      at::Tensor part = at::empty({own.size(0), end - first});
      if (part.nbytes() != all[worker].size())
        throw std::runtime_error(fmt::format("worker {} has logits of another size", worker));
      std::memcpy(part.data_ptr(), all[worker].data(), part.nbytes());
      parts.push_back(part);
    }
    return at::cat(parts, 1);
  }
};

namespace {

/// Beside the streams of random numbers in training.cpp.
constexpr std::uint64_t draw_stream = 2;

struct Chosen {
  std::uint8_t token;
  float log_probability;
};

/// By the inverse of the distribution: the same draw gives the same token on every worker.
Chosen choose(const float* logits, double draw) {
  const double largest = *std::max_element(logits, logits + vocabulary);
  std::array<double, vocabulary> weights{};
  double sum = 0;
  for (std::size_t t = 0; t < weights.size(); ++t)
    sum += weights[t] = std::exp(logits[t] - largest);
  std::size_t token = 0;
  for (double below = weights[0]; token + 1 < weights.size() && below <= draw * sum; below += weights[token])
    ++token;
  return {static_cast<std::uint8_t>(token), static_cast<float>(logits[token] - largest - std::log(sum))};
}

} // namespace

Engine::Engine(Group group, const Settings& settings) : state_(std::make_unique<State>(std::move(group), settings)) {}

Engine::~Engine() = default;

void* Engine::weights(const std::string& name, const std::vector<std::int64_t>& shape) {
  const auto found = state_->packed.find(name);
  if (found == state_->packed.end())
    throw std::runtime_error(fmt::format("the engine has no parameter {}", name));
  if (found->second.sizes() != at::IntArrayRef(shape))
    throw std::runtime_error(fmt::format("the engine holds {} as [{}], not as [{}]", name,
                                         fmt::join(found->second.sizes().vec(), ", "), fmt::join(shape, ", ")));
  return found->second.data_ptr();
}

void Engine::pause() {
  std::unique_lock lock(state_->mutex);
  state_->paused = true;
  state_->changed.wait(lock, [&] { return !state_->sampling; }); // which ends: each of its waits has a deadline
}

void Engine::refresh(const std::string& name) {
  state_->derived.at(name).copy_(state_->packed.at(name));
}

void Engine::resume(std::uint64_t version) {
  const std::lock_guard lock(state_->mutex);
  state_->version = version;
  state_->paused = false;
  state_->changed.notify_all();
}

void Engine::load(std::span<const std::byte> whole) {
  network::Weights weights;
  for (const network::Parameter& p : network::parameters()) {
    at::Tensor& tensor = weights[p.name] = at::empty(p.shape, at::kBFloat16);
    if (whole.size() < tensor.nbytes())
      throw std::runtime_error(fmt::format("the copy of the weights ends before {}", p.name));
    std::memcpy(tensor.data_ptr(), whole.data(), tensor.nbytes());
    whole = whole.subspan(tensor.nbytes());
  }
  for (const auto& [name, part] : network::packed_part(weights, state_->group.index())) {
    state_->packed.at(name).copy_(part);
    refresh(name);
  }
}

Rollouts Engine::sample(const RolloutRequest& request) {
  {
    std::unique_lock lock(state_->mutex);
    const auto ready = [&] { return !state_->paused && state_->version == request.version; };
    if (!state_->changed.wait_for(lock, state_->settings.deadline, ready))
      throw std::runtime_error(fmt::format(
        "rollouts of version {} are asked for, and the engine {} version {} after {} s (--deadline)", request.version,
        state_->paused ? "is paused at" : "serves", state_->version, state_->settings.deadline.count()));
    state_->sampling = true;
  }
  struct Done {
    State& state;
    ~Done() {
      const std::lock_guard lock(state.mutex);
      state.sampling = false;
      state.changed.notify_all();
    }
  } const done{*state_};

  const std::size_t count = request.prompts.size() * request.group;
  Rollouts rollouts;
  rollouts.answers.resize(count);
  rollouts.log_probabilities.resize(count * sorting::digits);
  at::Tensor unread = at::empty({static_cast<std::int64_t>(count), sorting::prompt_length}, at::kLong);
  for (std::size_t a = 0; a < count; ++a)
    std::copy_n(request.prompts[a / request.group].begin(), sorting::prompt_length,
                unread.data_ptr<std::int64_t>() + a * sorting::prompt_length);
  State::Cache cache;
  for (std::size_t d = 0; d < sorting::digits; ++d) {
    const at::Tensor logits = state_->next_logits(unread, cache);
    unread = at::empty({static_cast<std::int64_t>(count), 1}, at::kLong);
    for (std::size_t a = 0; a < count; ++a) {
      const double draw = sorting::uniform(sorting::mixed(state_->settings.seed, draw_stream), request.version, a, d);
      const Chosen chosen = choose(logits.data_ptr<float>() + a * vocabulary, draw);
      rollouts.answers[a][d] = chosen.token;
      rollouts.log_probabilities[a * sorting::digits + d] = chosen.log_probability;
      unread.data_ptr<std::int64_t>()[a] = chosen.token;
    }
  }
  for (std::size_t a = 0; a < count; ++a)
    rollouts.rewards.push_back(sorting::reward(request.prompts[a / request.group], rollouts.answers[a]));
  rollouts.weights_digest = network::digest(state_->packed);
  return rollouts;
}

void await_updates(Channel& trainer) {
  while (Reader(trainer.receive()).get<Order>() == Order::wait) {
  }
}

void serve(Engine& engine, Channel& trainer) {
  for (;;) {
    const Bytes message = trainer.receive();
    Reader reader(message);
    switch (reader.get<Order>()) {
    case Order::weights: {
      const auto version = reader.get<std::uint64_t>();
      engine.pause();
      engine.load(reader.rest());
      engine.resume(version);
      break;
    }
    case Order::rollouts:
      trainer.send(encoded(engine.sample(decoded_request(reader))));
      break;
    case Order::stop:
      return;
    case Order::wait:
    case Order::begin:
      throw std::runtime_error("an order of the warm-up came after it");
    }
  }
}

} // namespace trainer
