// Control messages to bytes and back, by cereal into an archive of ours that is bounded: a length that the remaining
// bytes cannot hold is refused before anything is allocated, and trailing bytes are an error.
#pragma once

#include "wire/messages.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace deltawire::wire {

/// Defined for every struct of messages.hpp.
template <class Message>
[[nodiscard]] std::vector<std::byte> encode(const Message& message);

/// Fails with Code::invalid_input, naming the message type.
template <class Message>
[[nodiscard]] Result<Message> decode(std::span<const std::byte> payload);

/// "Hello", "Seal", ... for messages and logs; "unknown type N" otherwise.
[[nodiscard]] std::string type_name(std::uint16_t type);

} // namespace deltawire::wire
