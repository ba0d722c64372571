// Callbacks are the user's: what they throw must not end a thread of the transport.
#pragma once

#include "result.hpp"

#include <exception>
#include <optional>
#include <string>

namespace deltawire::transport {

/// Calls, and tells what a callback threw.
template <class Call>
std::optional<Failure> guarded(const std::string& who, Call call) noexcept {
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& error) {
    return Failure{Code::internal, fmt::format("{}: a callback threw: {}", who, error.what())};
  } catch (...) {
    return Failure{Code::internal, fmt::format("{}: a callback threw", who)};
  }
}

} // namespace deltawire::transport
