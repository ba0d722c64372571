// One worker of a run, on the caller's thread: binds memory, proves and dumps every version.
#pragma once

#include "events.hpp"
#include "inputs.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace deltawire::replay {

struct WorkerSeat {
  std::string topology;
  std::vector<std::string> overrides;
  std::uint32_t index = 0;
  std::string dump_file;      ///< written after the session; empty: not
  std::string dump_each_into; ///< directory: v<version>/worker-<index>.safetensors after every version; empty: not
  std::optional<std::uint32_t> metrics_index{}; ///< as the facade's
};

/// "DIR/worker-3.safetensors".
[[nodiscard]] std::string dump_path(const std::string& directory, std::uint32_t worker);

/// Runs until the trainer closes the session. Tells of every version, with proof where `files` (one a version) are
/// given; may be empty. Fails as the facade does, and with Code::output_failed for dumps.
[[nodiscard]] Result<void> run_worker(const WorkerSeat& seat, const config::Topology& topology,
                                      std::span<const checkpoint::Checkpoint> files, const EventSink& sink);

} // namespace deltawire::replay
