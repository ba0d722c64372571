// The report of a replay: JSON for scripts, a contract (units are in the names).
#pragma once

#include "deltawire/deltawire.hpp"
#include "result.hpp"

#include <span>
#include <string>

namespace deltawire::replay {

/// The report as indented JSON text with a final newline. High-water marks are the largest of all updates.
[[nodiscard]] std::string report_text(std::span<const Outcome> updates, bool verified);

/// Writes text to a file, or to what else the path names. Fails with Code::output_failed naming path and cause.
[[nodiscard]] Result<void> write_text(const std::string& path, const std::string& text);

} // namespace deltawire::replay
