// How messages name a peer: once, and in front. Whoever knows whom a reason is about says so by naming(); said again on
// its way, it stays as it is.
#pragma once

#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace deltawire::sync {

/// "rank 3" or "worker 1"
[[nodiscard]] std::string peer_name(wire::Role role, std::uint32_t index);

/// "worker 1 (127.0.0.1:41234): the peer closed the connection", of a reason that may begin with the address, or with
/// the peer's name, already. Without an address "worker 1: ...".
[[nodiscard]] Failure naming(wire::Role role, std::uint32_t index, const Failure& reason,
                             std::string_view address = {});

} // namespace deltawire::sync
