// What a run tells of each update: numbers that must not depend on how the weights travelled, and what the journey
// cost.
#pragma once

#include "settings.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

/// What brought the weights of an update to the workers says of it.
struct Delivery {
  std::uint64_t changed = 0; ///< elements that it found changed; all of them the first time
  std::uint64_t wire_bytes = 0;
  double committed_s = 0;
  double pause_s = 0;
};

struct UpdateRecord {
  // The same in two runs that differ in Settings::sync only, bit for bit.
  std::uint64_t update = 0; ///< optimizer steps behind the weights, since the warm-up; 0: the seed
  double reward = 0;        ///< mean over the rollouts
  double loss = 0;
  double largest_gap = 0;                                   ///< see Learned
  std::uint64_t rollouts = 0;                               ///< digest of answers, log probabilities and rewards
  std::uint64_t weights = 0;                                ///< digest of the trainer's bf16 weights
  std::array<std::uint64_t, worker_count> worker_weights{}; ///< of what each worker holds, read from its memory
  std::uint64_t changed = 0;                                ///< elements, counted by the trainer itself
  std::uint64_t elements = 0;

  Delivery delivery{};
};

/// Empty where the numbers are the same, bit for bit; else names the first that are not.
[[nodiscard]] std::string difference(const std::vector<UpdateRecord>& a, const std::vector<UpdateRecord>& b);

/// One line of JSON, without a newline. Numbers are written so that they read back as they are.
[[nodiscard]] std::string json_line(const UpdateRecord& record);

/// Above and below a table of records, and a row of it.
[[nodiscard]] std::string table_head();
[[nodiscard]] std::string table_row(const UpdateRecord& record);
/// Rewards, a character for each few updates, from 0 (low) to 1 (high).
[[nodiscard]] std::string curve(const std::vector<UpdateRecord>& records);

} // namespace trainer
