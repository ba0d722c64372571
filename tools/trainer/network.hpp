// The transformer: its parameters, as the trainer names them and as a worker packs and cuts them, and the layers that
// training and generation share. Training runs it whole and with gradients (`answer_logits`); generation runs a
// worker's part of it (engine.cpp). Weights are bf16; the arithmetic is fp32.
#pragma once

#include "settings.hpp"

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trainer::network {

using Weights = std::map<std::string, at::Tensor>;

struct Parameter {
  std::string name; ///< as Hugging Face's: the slots of topology.toml
  std::vector<std::int64_t> shape;
};

/// In the order that everything here goes by.
[[nodiscard]] const std::vector<Parameter>& parameters();

/// fp32, all of them.
[[nodiscard]] Weights initial(std::uint64_t seed);

/// The rows of dim 0 that one of `parts` holds: pieces of ceil(rows / parts).
[[nodiscard]] std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t rows, std::uint32_t part, std::uint32_t parts);

/// What a worker holds of the weights: q, k and v in one parameter, gate and up in one, and its part of each. What
/// topology.toml tells deltawire in its own words is said here in those of an engine's loader.
[[nodiscard]] Weights packed_part(const Weights& whole, std::uint32_t worker);

/// Of names and bits, in the order of names.
[[nodiscard]] std::uint64_t digest(const Weights& weights);

/// x [.., hidden]
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight);
/// Causal, for any number of heads: k and v [batch, length, kv_heads * head], q [batch, n, heads * head] of the last n
/// positions.
[[nodiscard]] at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Of fp32 weights. tokens [batch, sorting::input_length] -> [batch, sorting::digits, vocabulary], one row for each
/// digit of the answer.
[[nodiscard]] at::Tensor answer_logits(const Weights& weights, const at::Tensor& tokens);

} // namespace trainer::network
