// Frames through memory that both processes see. A Unix socket carries messages (shm_messages.hpp): small frames whole,
// of large ones where their bodies lie (shm_arena.hpp). The reader copies a body out before anybody looks at it: what
// the peer writes later changes nothing that was checked.
#pragma once

#include "transport/byte_stream.hpp"
#include "transport/shm_arena.hpp"

namespace deltawire::transport {

/// A connected socket of type SOCK_SEQPACKET, and where large bodies are sent from.
[[nodiscard]] std::shared_ptr<ByteStream> make_shm_stream(Socket socket, std::shared_ptr<Arena> arena);

} // namespace deltawire::transport
