// `deltawire trainer`: one trainer rank, by hand across machines or as a child of `replay --processes`.
#pragma once

#include "child_ties.hpp"

#include <string>
#include <vector>

namespace deltawire::replay {

struct TrainerCommand {
  std::string topology;
  std::uint32_t rank = 0;
  std::vector<std::string> checkpoints; ///< one a version
  std::vector<std::string> overrides;   ///< "key.path=value"
  std::size_t parts = 0;                ///< of an update; 0: all parameters in one call
  int listening_socket = -1;            ///< inherited from a parent, for the root
  ChildTies ties;
};

/// Runs it; the root prints a line an update.
[[nodiscard]] ExitStatus trainer_command(const TrainerCommand& command);

} // namespace deltawire::replay
