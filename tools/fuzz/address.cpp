// "host:port", as a topology or the environment has it.
#include "config/address.hpp"

#include "target.hpp"

namespace deltawire::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  const AllocationBound bound(4096 + 16 * input.size());
  const auto address = config::parse_address(text);
  const auto master = config::parse_master(text);
  if (!address) {
    require(address.error().code == Code::invalid_topology, "a bad address has the code of a bad topology");
    require(!master, "no master address is a bad address");
    return false;
  }
  const auto again = config::parse_address(config::to_string(*address));
  require(again && *again == *address, "an address comes back from its text");
  require(master.has_value() == config::is_loopback(address->host), "a master address is loopback, and any of them is");
  return true;
}

} // namespace deltawire::fuzz
