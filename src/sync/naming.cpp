#include "sync/naming.hpp"

namespace deltawire::sync {

std::string peer_name(wire::Role role, std::uint32_t index) {
  return fmt::format("{} {}", role == wire::Role::rank ? "rank" : "worker", index);
}

Failure naming(wire::Role role, std::uint32_t index, const Failure& reason, std::string_view address) {
  const std::string name = peer_name(role, index);
  std::string_view message = reason.message;
  // "worker 12 ..." does not name worker 1.
  if (message.starts_with(name) && message.substr(name.size()).find_first_of("0123456789") != 0)
    return reason;
  if (address.empty())
    return {reason.code, fmt::format("{}: {}", name, message)};
  if (message.starts_with(fmt::format("{}: ", address)))
    message.remove_prefix(address.size() + 2);
  return {reason.code, fmt::format("{} ({}): {}", name, address, message)};
}

} // namespace deltawire::sync
