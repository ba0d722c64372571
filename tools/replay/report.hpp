// The report of a replay: JSON for scripts, a contract (units are in the names).
#pragma once

#include "deltawire/deltawire.hpp"
#include "memory_speed.hpp"
#include "result.hpp"

#include <span>
#include <string>

namespace deltawire::replay {

/// What a report tells of a run beside its updates.
struct RunFacts {
  bool verified = false;
  std::uint64_t session = 0;         ///< the trainer's; 0: no worker ever took a version
  std::uint64_t parameter_bytes = 0; ///< of a version, as the trainer holds it
  std::uint64_t snapshot_bytes = 0;  ///< the same in the dtypes that are sent
  MemorySpeed memory;                ///< of the machine that all of it ran on
};

/// The report as indented JSON text with a final newline. High-water marks are the largest of all updates.
[[nodiscard]] std::string report_text(std::span<const Outcome> updates, const RunFacts& run);

/// Writes text to a file, or to what else the path names. Fails with Code::output_failed naming `option`, under which
/// the path was given, path and cause.
[[nodiscard]] Result<void> write_text(const std::string& option, const std::string& path, const std::string& text);

} // namespace deltawire::replay
