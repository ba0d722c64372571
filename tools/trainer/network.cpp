#include "network.hpp"

#include "digest.hpp"
#include "sorting.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

namespace trainer::network {

namespace {

using namespace model;

std::string layer_name(std::int64_t layer, const char* rest) {
  return fmt::format("model.layers.{}.{}", layer, rest);
}

std::vector<Parameter> list_parameters() {
  std::vector<Parameter> list{
    {"model.embed_tokens.weight", {vocabulary, hidden}},
    {"model.embed_positions.weight", {static_cast<std::int64_t>(sorting::input_length), hidden}},
  };
  for (std::int64_t l = 0; l < layers; ++l)
    list.insert(list.end(), {
                              {layer_name(l, "input_layernorm.weight"), {hidden}},
                              {layer_name(l, "self_attn.q_proj.weight"), {heads * head, hidden}},
                              {layer_name(l, "self_attn.k_proj.weight"), {kv_heads * head, hidden}},
                              {layer_name(l, "self_attn.v_proj.weight"), {kv_heads * head, hidden}},
                              {layer_name(l, "self_attn.o_proj.weight"), {hidden, heads * head}},
                              {layer_name(l, "post_attention_layernorm.weight"), {hidden}},
                              {layer_name(l, "mlp.gate_proj.weight"), {intermediate, hidden}},
                              {layer_name(l, "mlp.up_proj.weight"), {intermediate, hidden}},
                              {layer_name(l, "mlp.down_proj.weight"), {hidden, intermediate}},
                            });
  list.insert(list.end(), {{"model.norm.weight", {hidden}}, {"lm_head.weight", {vocabulary, hidden}}});
  return list;
}

/// This worker's piece of a dim, equal ones of ceil(n / workers).
at::Tensor piece(const at::Tensor& whole, std::int64_t dim, std::uint32_t worker) {
  const auto [begin, end] = rows_of(whole.size(dim), worker, worker_count);
  return whole.slice(dim, begin, end);
}

} // namespace

const std::vector<Parameter>& parameters() {
  static const std::vector<Parameter> list = list_parameters();
  return list;
}

Weights initial(std::uint64_t seed) {
  at::manual_seed(seed);
  Weights weights;
  for (const Parameter& p : parameters())
    if (p.shape.size() == 1)
      weights[p.name] = at::ones(p.shape);
    else
      weights[p.name] = at::randn(p.shape) / std::sqrt(static_cast<double>(p.shape[1]));
  return weights;
}

std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t rows, std::uint32_t part, std::uint32_t parts) {
  const std::int64_t most = (rows + parts - 1) / parts;
  return {std::min(rows, most * part), std::min(rows, most * (part + 1))};
}

Weights packed_part(const Weights& whole, std::uint32_t worker) {
  Weights part;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) { part[name] = tensor.contiguous(); };
  const auto rows = [&](const std::string& name) { return piece(whole.at(name), 0, worker); };
  const auto columns = [&](const std::string& name) { return piece(whole.at(name), 1, worker); };
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    add(name, rows(name));
  for (const char* name : {"model.embed_positions.weight", "model.norm.weight"})
    add(name, whole.at(name));
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto in_layer = [&](const char* rest) { return layer_name(l, rest); };
    add(in_layer("self_attn.qkv_proj.weight"),
        at::cat({rows(in_layer("self_attn.q_proj.weight")), rows(in_layer("self_attn.k_proj.weight")),
                 rows(in_layer("self_attn.v_proj.weight"))}));
    add(in_layer("mlp.gate_up_proj.weight"),
        at::cat({rows(in_layer("mlp.gate_proj.weight")), rows(in_layer("mlp.up_proj.weight"))}));
    for (const char* rest : {"self_attn.o_proj.weight", "mlp.down_proj.weight"})
      add(in_layer(rest), columns(in_layer(rest)));
    for (const char* rest : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      add(in_layer(rest), whole.at(in_layer(rest)));
  }
  return part;
}

std::uint64_t digest(const Weights& weights) {
  Digest sum;
  for (const auto& [name, tensor] : weights) {
    sum.add(std::as_bytes(std::span(name)));
    sum.add({static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
  }
  return sum.value();
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-6) * weight;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t positions = q.size(1);
  const std::int64_t length = k.size(1);
  const auto by_head = [](const at::Tensor& x) {
    return x.reshape({x.size(0), x.size(1), x.size(2) / head, head}).transpose(1, 2);
  };
  const std::int64_t sharing = q.size(2) / k.size(2); // query heads with one key and value head
  const at::Tensor keys = by_head(k).repeat_interleave(sharing, 1);
  const at::Tensor values = by_head(v).repeat_interleave(sharing, 1);
  const at::Tensor future = at::ones({positions, length}, at::kBool).triu(1 + length - positions);
  const at::Tensor scores = at::matmul(by_head(q), keys.transpose(2, 3)) / std::sqrt(static_cast<double>(head));
  const at::Tensor shares = at::softmax(scores.masked_fill(future, -1e9), -1);
  return at::matmul(shares, values).transpose(1, 2).reshape({q.size(0), positions, q.size(2)});
}

at::Tensor answer_logits(const Weights& weights, const at::Tensor& tokens) {
  const auto weight = [&](const std::string& name) { return weights.at(name); };
  at::Tensor x = at::embedding(weight("model.embed_tokens.weight"), tokens) + weight("model.embed_positions.weight");
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto in_layer = [&](const char* rest) { return weights.at(layer_name(l, rest)); };
    const at::Tensor a = rms_norm(x, in_layer("input_layernorm.weight"));
    const at::Tensor attended =
      attention(at::linear(a, in_layer("self_attn.q_proj.weight")), at::linear(a, in_layer("self_attn.k_proj.weight")),
                at::linear(a, in_layer("self_attn.v_proj.weight")));
    x = x + at::linear(attended, in_layer("self_attn.o_proj.weight"));
    const at::Tensor m = rms_norm(x, in_layer("post_attention_layernorm.weight"));
    const at::Tensor gated =
      at::silu(at::linear(m, in_layer("mlp.gate_proj.weight"))) * at::linear(m, in_layer("mlp.up_proj.weight"));
    x = x + at::linear(gated, in_layer("mlp.down_proj.weight"));
  }
  x = x.slice(1, sorting::prompt_length - 1);
  return at::linear(rms_norm(x, weight("model.norm.weight")), weight("lm_head.weight"));
}

} // namespace trainer::network
