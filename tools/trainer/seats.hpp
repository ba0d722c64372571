// What a child process of a run does, from its start to its end.
#pragma once

#include "launch.hpp"
#include "settings.hpp"

namespace trainer {

/// Both tell the launcher how it went, and return the exit status.
[[nodiscard]] int trainer_rank(const Seat& seat, const Settings& settings);
[[nodiscard]] int rollout_worker(const Seat& seat, const Settings& settings);

} // namespace trainer
