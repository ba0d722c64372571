// A topology as the text of a topology file that says everything and includes nothing.
#pragma once

#include "config/topology.hpp"

#include <string>

namespace deltawire::fuzz {

/// All settings but telemetry.
[[nodiscard]] std::string topology_text(const config::Topology& topology);

} // namespace deltawire::fuzz
