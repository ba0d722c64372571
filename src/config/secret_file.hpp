// The secret that all processes of a job share (transport.secret_file): a file of one's own, text or bytes.
#pragma once

#include "result.hpp"

#include <string>

namespace deltawire::config {

/// The least and the most bytes of a secret, without what is trimmed.
inline constexpr std::size_t least_secret = 32;
inline constexpr std::size_t most_secret = 65'536;

/// The bytes of the file without ASCII white space at both ends. Fails (Code::invalid_topology, the path in the
/// message) where it cannot be read, is no regular file, may be read or written by group or others, or has too few
/// bytes or too many.
[[nodiscard]] Result<std::string> read_secret(const std::string& path);

} // namespace deltawire::config
