// Addresses of sockets as people write them.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <string>

namespace deltawire::transport {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// "host:port", "[::1]:port", "[fe80::1%eth0]:port".
[[nodiscard]] Result<HostPort> split_address(const std::string& address);

} // namespace deltawire::transport
