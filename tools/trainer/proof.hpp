// The proof that deltawire does for a real training run what full copies do: the same run with either has the same
// numbers, bit for bit; and the policy gets better. What is tested is fixed here, before any run.
#pragma once

#include "record.hpp"
#include "settings.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace trainer {

/// Runs with these seeds, which no choice of the model or of its learning rate was tried on.
inline constexpr std::uint64_t proof_seeds[] = {101, 102, 103};
/// The hypothesis, for each seed: mean rewards of the last 20 updates are larger than those of the first 20 (the update
/// 0, which only seeds, apart), by a one-sided Mann-Whitney test at p < 0.001.
inline constexpr std::size_t compared_updates = 20;
inline constexpr double significance = 0.001;
inline constexpr std::uint32_t least_updates = 100;

/// The exact probability, ties included, that of all ways to divide these numbers in two such groups as large a sum of
/// ranks falls to `later` as did.
[[nodiscard]] double mann_whitney_p(std::span<const double> earlier, std::span<const double> later);

/// mann_whitney_p of a run's rewards, by the hypothesis above; it needs twice compared_updates.
[[nodiscard]] double reward_rises_p(const std::vector<UpdateRecord>& records);

} // namespace trainer
