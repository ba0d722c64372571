// One GET over plain HTTP/1.0, within a deadline.
#pragma once

#include "result.hpp"

#include <chrono>
#include <string>

namespace deltawire::top {

/// The body of http://host:port/path. Fails with Code::peer_failed or Code::timed_out, naming the address, where
/// nothing answers in time, and where the answer is not 200 or longer than 64 MiB.
[[nodiscard]] Result<std::string> http_get(const std::string& host, std::uint16_t port, const std::string& path,
                                           std::chrono::milliseconds deadline);

} // namespace deltawire::top
