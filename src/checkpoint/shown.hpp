// How messages show names that come from a file.
#pragma once

#include <string>
#include <string_view>

namespace deltawire::checkpoint {

/// In quotes, control characters escaped, and cut where it is too long to read.
[[nodiscard]] std::string shown(std::string_view name);

} // namespace deltawire::checkpoint
