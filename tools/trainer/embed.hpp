// deltawire in a trainer rank and in a rollout worker: all that the two programs have to do with it.
#pragma once

#include "channel.hpp"
#include "engine.hpp"
#include "training.hpp"

#include <deltawire/deltawire.hpp>

#include <string>

namespace trainer {

/// All updates of a rank that has warmed up.
void train_with_deltawire(const std::string& topology, const deltawire::TrainerOptions& options, Training& training);

/// Serves rollouts to `trainer` until it says stop.
void serve_with_deltawire(const std::string& topology, const deltawire::WorkerOptions& options, Engine& engine,
                          Channel& trainer);

} // namespace trainer
