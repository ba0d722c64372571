// The one exception type of the facade, and the codes that tell its kinds apart.
// Plain types: every room may include this header (rooms under src return the codes, the facade throws).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace deltawire {

/// What kind of thing went wrong; the message says what, where and what to do.
enum class Code : std::uint8_t {
  invalid_argument = 1,     ///< a call or command-line argument that cannot be right
  invalid_topology = 2,     ///< the topology file: file, line and key are in the message
  invalid_input = 3,        ///< a checkpoint, frame or message that breaks its format
  disagreement = 4,         ///< ranks and workers do not fit together (layout, settings, coverage)
  call_order = 5,           ///< a call that the current state does not allow; nothing changed
  unsupported = 6,          ///< a documented feature that this version does not have yet
  limit_exceeded = 7,       ///< a cap or format limit; the message names the least that works
  peer_failed = 8,          ///< a named rank or worker died, hung up or reported a failure
  timed_out = 9,            ///< a deadline passed; the message names who was waited for
  address_in_use = 10,      ///< the port to listen on is taken
  verification_failed = 11, ///< bits or digests differ from what they must be
  output_failed = 12,       ///< a file could not be written
  internal = 13,            ///< a defect of deltawire
  superseded = 14,          ///< an update that was given up: the next one brings its changes too
};

/// Thrown by the facade, and nothing else is.
class Error : public std::runtime_error {
public:
  /// `message` says what went wrong, where, and what to do.
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// The kind, for a program to act on.
  [[nodiscard]] Code code() const noexcept { return code_; }

private:
  Code code_;
};

} // namespace deltawire
