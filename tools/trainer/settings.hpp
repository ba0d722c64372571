// What one run is, and the sizes of its model: known to every process of the run, and nothing else is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

/// How the weights get to the workers.
enum class Sync : std::uint8_t {
  deltawire, ///< by the facade: embed_trainer.cpp and embed_worker.cpp
  copy,      ///< all of them, every time, over plain sockets: what deltawire is compared with
};

/// Processes of each side, as in topology.toml.
inline constexpr std::uint32_t rank_count = 2;
inline constexpr std::uint32_t worker_count = 2;

/// The transformer: pre-norm, grouped-query attention, gated MLP.
namespace model {
inline constexpr std::int64_t vocabulary = 11; ///< ten digits and the separator; does not divide by the workers
inline constexpr std::int64_t hidden = 64;
inline constexpr std::int64_t layers = 2;
inline constexpr std::int64_t heads = 4;
inline constexpr std::int64_t kv_heads = 2;
inline constexpr std::int64_t head = 16;
inline constexpr std::int64_t intermediate = 160;
} // namespace model

struct Settings {
  Sync sync = Sync::deltawire;
  std::uint64_t seed = 1;
  std::uint32_t updates = 100;
  std::uint32_t warm_up = 45; ///< supervised steps before the first update
  std::uint32_t prompts = 32; ///< of one update, divided among the ranks
  std::uint32_t group = 8;    ///< answers to each prompt, which are compared with each other
  double learning_rate = 1e-4;
  std::chrono::seconds deadline{60}; ///< for any one process to get on
  std::string topology;              ///< file
  std::vector<std::string> overrides{};
};

} // namespace trainer
