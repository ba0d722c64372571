// What a user should know about how the caps of a topology work together: which of them binds, where stages wait for
// each other, what will be refused. And which transports must be trusted.
#pragma once

#include "coverage.hpp"

#include <string>
#include <vector>

namespace deltawire::plan {

/// Requires caps that sync::piece_limit() accepts, at least for elements of one byte. Without a checkpoint, elements
/// are taken to have 2 bytes where it matters.
[[nodiscard]] std::vector<std::string> remarks_on(const config::Topology& topology, const Coverage* coverage);

/// Connections over a network (design, section 6.9), one a line: whether they are encrypted, and who must be trusted.
[[nodiscard]] std::vector<std::string> trusted_planes(const config::Topology& topology);

} // namespace deltawire::plan
