// How a transport finds the end of our frames. A transport knows nothing else about them.
#pragma once

#include "transport/transport.hpp"

namespace deltawire::wire {

/// Headers of header_bytes bytes, checked by read_header before their length is believed.
[[nodiscard]] transport::Framing framing() noexcept;

} // namespace deltawire::wire
