// "host:port", as a topology or the environment has it.
#include "config/address.hpp"

#include "target.hpp"

namespace deltawire::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  const AllocationBound bound(4096 + 16 * input.size());
  const auto address = config::parse_address(text);
  const auto plain = config::parse_master(text, false);
  const auto encrypted = config::parse_master(text, true);
  if (!address) {
    require(address.error().code == Code::invalid_topology, "a bad address has the code of a bad topology");
    require(!plain && !encrypted, "no master address is a bad address");
    return false;
  }
  const auto again = config::parse_address(config::to_string(*address));
  require(again && *again == *address, "an address comes back from its text");
  require(encrypted && *encrypted == *address, "with a secret any address will do");
  require(plain.has_value() == config::is_loopback(address->host),
          "without one all loopback addresses do, and no other");
  return true;
}

} // namespace deltawire::fuzz
