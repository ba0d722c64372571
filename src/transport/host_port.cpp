#include "transport/host_port.hpp"

namespace deltawire::transport {

Result<HostPort> split_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort result;
  if (colon != std::string::npos) {
    result.host = address.substr(0, colon);
    if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']')
      result.host = result.host.substr(1, result.host.size() - 2);
    else if (result.host.find_first_of(":[]") != std::string::npos)
      result.host.clear();
    const std::string port = address.substr(colon + 1);
    unsigned value = 0;
    for (const char digit : port)
      value = digit >= '0' && digit <= '9' && value <= 65535 ? value * 10 + static_cast<unsigned>(digit - '0') : 65536;
    if (!result.host.empty() && !port.empty() && value <= 65535) {
      result.port = static_cast<std::uint16_t>(value);
      return result;
    }
  }
  return fail(Code::invalid_argument, "\"{}\" is no address: write \"host:port\" or \"[ipv6]:port\"", address);
}

} // namespace deltawire::transport
