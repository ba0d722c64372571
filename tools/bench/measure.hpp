// Timing on a machine that others use too. Contenders take turns within each round, so that a slow moment hits all of
// them; a turn counts the processor time of its slowest thread, not the time that other processes took; and what
// counts is the median over the rounds.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace deltawire::bench {

/// Something to time against the others.
struct Contender {
  std::function<void()> prepare;         ///< before each turn, not timed; may be empty
  std::function<void(std::size_t)> work; ///< called with 0 .. threads - 1, each on a thread of its own
};

/// seconds[contender][round].
using Turns = std::vector<std::vector<double>>;

/// Runs one round to warm up and then `rounds` that count; in each, every contender once, in order.
[[nodiscard]] Turns take_turns(std::span<const Contender> contenders, std::size_t threads, std::size_t rounds);

/// The middle value; of an even number, the upper one of the middle two. Requires at least one.
[[nodiscard]] double median(std::vector<double> values);

/// Median over the rounds of reference / own: how much of the reference's speed is reached.
[[nodiscard]] double median_ratio(const std::vector<double>& own, const std::vector<double>& reference);

/// Makes the compiler believe that `value` is used.
void keep(std::size_t value) noexcept;

} // namespace deltawire::bench
