#include "config/address.hpp"

#include <algorithm>

namespace deltawire::config {

namespace {

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

bool is_host_character(char c) noexcept {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_';
}

bool is_ipv6_character(char c) noexcept {
  return is_host_character(c) || c == ':' || c == '%';
}

} // namespace

Result<Address> parse_address(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return fail(Code::invalid_topology, "\"{}\" is not an address: {}; write \"host:port\", e.g. \"127.0.0.1:29500\"",
                text, why);
  };
  std::string_view host;
  std::string_view rest;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos)
      return refuse("the bracket is not closed");
    host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
    if (host.find(':') == std::string_view::npos || !std::all_of(host.begin(), host.end(), is_ipv6_character))
      return refuse("no IPv6 address between the brackets");
  } else {
    const auto colon = text.find(':');
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos)
      return refuse("an IPv6 host needs brackets, as in \"[::1]:29500\"");
    host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon);
    if (host.empty())
      return refuse("it has no host");
    if (!std::all_of(host.begin(), host.end(), is_host_character))
      return refuse("the host has a character that no host has");
  }
  if (rest.empty())
    return refuse("it has no port");
  if (rest.front() != ':')
    return refuse("a colon must follow the bracket");
  rest.remove_prefix(1);
  if (rest.empty() || !std::all_of(rest.begin(), rest.end(), is_digit))
    return refuse("the port is not a number");
  std::uint32_t port = 0;
  for (char c : rest) {
    port = port * 10 + static_cast<std::uint32_t>(c - '0');
    if (port > 65535)
      return refuse("the port is past 65535");
  }
  return Address{std::string{host}, static_cast<std::uint16_t>(port)};
}

std::string to_string(const Address& address) {
  if (address.host.find(':') != std::string::npos)
    return fmt::format("[{}]:{}", address.host, address.port);
  return fmt::format("{}:{}", address.host, address.port);
}

Result<Address> metrics_address(std::string_view prometheus, std::uint32_t index) {
  auto address = parse_address(prometheus);
  if (!address || address->port == 0)
    return address;
  if (index > 65535u - address->port)
    return fail(Code::invalid_topology,
                "telemetry.prometheus: {}: the process of index {} would serve at port {}, past 65535", prometheus,
                index, address->port + index);
  address->port = static_cast<std::uint16_t>(address->port + index);
  return address;
}

bool is_loopback(std::string_view host) noexcept {
  if (host == "localhost" || host == "::1" || host == "[::1]")
    return true;
  // Four decimal numbers of at most 255, the first 127. "127.evil.example" is a name and may point anywhere.
  int parts = 0;
  std::size_t at = 0;
  while (parts < 4) {
    int value = 0;
    std::size_t digits = 0;
    for (; at < host.size() && is_digit(host[at]) && digits < 4; ++at, ++digits)
      value = value * 10 + (host[at] - '0');
    if (digits == 0 || digits > 3 || value > 255 || (parts == 0 && value != 127))
      return false;
    ++parts;
    if (parts < 4 && (at >= host.size() || host[at++] != '.'))
      return false;
  }
  return at == host.size();
}

Result<Address> parse_master(std::string_view text, bool encrypted) {
  auto address = parse_address(text);
  if (address && !encrypted && !is_loopback(address->host))
    return fail(
      Code::invalid_topology,
      "\"{}\" is not a loopback address, so connections must be encrypted: set transport.secret_file to a file "
      "that all processes have, made with \"openssl rand -hex 32\" and chmod 600 (or use 127.x.x.x, localhost "
      "or [::1])",
      text);
  return address;
}

} // namespace deltawire::config
