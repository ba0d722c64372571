// `deltawire keys`: every key of the topology file, from the parser's own schema (src/config/schema.hpp).
#pragma once

#include "replay/exit_status.hpp"

#include <string>

namespace deltawire::keys {

struct KeysOptions {
  std::string under; ///< only keys whose full name starts with this: "update", "actors.differ"; empty: all
  bool json = false;
  bool markdown = false; ///< README's tables; of all keys
};

/// Runs it; messages go to standard error.
[[nodiscard]] replay::ExitStatus keys_command(const KeysOptions& options);

} // namespace deltawire::keys
