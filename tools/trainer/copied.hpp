// Full copies in place of deltawire: what it is compared with. Nothing here, and nothing that is called from here,
// knows of deltawire.
#pragma once

#include "channel.hpp"
#include "engine.hpp"
#include "training.hpp"

namespace trainer {

/// All updates of a rank that has warmed up: every weight to every worker, each time.
inline void train_with_copies(Training& training) {
  for (std::uint64_t update = 0; update <= training.updates(); ++update) {
    training.send_whole_weights(update);
    training.step(update);
  }
}

/// Serves rollouts until the trainer says stop; the weights come by the same channel.
inline void serve_with_copies(Engine& engine, Channel& trainer) {
  serve(engine, trainer);
}

} // namespace trainer
