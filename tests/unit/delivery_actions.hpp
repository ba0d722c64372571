// What the root's machine says, as tests ask for it.
#pragma once

#include "sync/root_delivery.hpp"

#include <cstdint>
#include <variant>
#include <vector>

namespace deltawire::test {

/// The workers that are sent this message, in the order in which it goes out.
template <class Message>
std::vector<std::uint32_t> to_whom(const sync::RootDelivery::Actions& actions) {
  std::vector<std::uint32_t> workers;
  for (const auto& [w, message] : actions.send)
    if (std::holds_alternative<Message>(message))
      workers.push_back(w);
  return workers;
}

} // namespace deltawire::test
