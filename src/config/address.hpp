// "host:port" as the topology file and the environment write it. Text only: nothing is looked up.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace deltawire::config {

/// deltawire's own port, used where only a host is known (MASTER_ADDR; torchrun's store owns MASTER_PORT).
inline constexpr std::uint16_t default_port = 29717;

struct Address {
  std::string host;       ///< without brackets: "127.0.0.1", "localhost", "::1"
  std::uint16_t port = 0; ///< 0: the system chooses; legal where one command starts all processes

  friend bool operator==(const Address&, const Address&) = default;
};

/// Reads "127.0.0.1:29500", "localhost:0", "[::1]:29500". Fails on a missing host or port, a port past 65535, an IPv6
/// address without brackets, and characters that no host has.
[[nodiscard]] Result<Address> parse_address(std::string_view text);

/// "host:port" again, with brackets around an IPv6 host.
[[nodiscard]] std::string to_string(const Address& address);

/// Where the process of an index serves its metrics, of what telemetry.prometheus says: its port and the index; port 0
/// stays 0. Fails as parse_address() and where that passes 65535, naming the key.
[[nodiscard]] Result<Address> metrics_address(std::string_view prometheus, std::uint32_t index);

/// 127.x.x.x, "localhost" or "::1", with or without brackets; decided by the text alone.
[[nodiscard]] bool is_loopback(std::string_view host) noexcept;

/// What a master address has to be: parse_address, and loopback unless connections are `encrypted`
/// (Code::invalid_topology otherwise, with what to do).
[[nodiscard]] Result<Address> parse_master(std::string_view text, bool encrypted);

} // namespace deltawire::config
