// The task: put six digits in ascending order. An answer can be verified, and that is all that the policy is told.
// Everything follows from seeds by integer arithmetic, the same in every process.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace trainer::sorting {

inline constexpr std::size_t digits = 6;
inline constexpr std::uint8_t separator = 10;
/// What the policy sees before it answers, and before it gives the last digit of its answer.
inline constexpr std::size_t prompt_length = digits + 1;
inline constexpr std::size_t input_length = prompt_length + digits - 1;

using Prompt = std::array<std::uint8_t, prompt_length>; ///< digits, then the separator
using Answer = std::array<std::uint8_t, digits>;

/// A well mixed number of a seed and up to three counters.
[[nodiscard]] std::uint64_t mixed(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);
/// The same, evenly spread over [0, 1).
[[nodiscard]] double uniform(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0);

/// `count` prompts; `occasion` tells batches of one seed apart.
[[nodiscard]] std::vector<Prompt> prompts(std::uint64_t seed, std::uint64_t occasion, std::size_t count);

/// The right answer.
[[nodiscard]] Answer solution(const Prompt& prompt);

/// 1 for the right answer, 0 for any other.
[[nodiscard]] float reward(const Prompt& prompt, const Answer& answer);

} // namespace trainer::sorting
