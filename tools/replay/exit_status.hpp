// The exit status of the command: part of its contract with scripts.
#pragma once

#include "deltawire/error.hpp"
#include "result.hpp"

#include <exception>
#include <new>

namespace deltawire::replay {

enum class ExitStatus : int {
  verified = 0,            ///< every version, bit for bit, on every worker; or the command did what it was asked
  verification_failed = 1, ///< bits or digests differ
  bad_input = 2,           ///< usage, topology or checkpoints
  peer_failed = 3,         ///< a peer failed, a deadline passed, or the port is taken
  output_failed = 4,       ///< a file or standard output could not be written
  internal = 5,            ///< a defect of deltawire
};

[[nodiscard]] constexpr ExitStatus exit_status(Code code) noexcept {
  switch (code) {
  case Code::invalid_argument:
  case Code::invalid_topology:
  case Code::invalid_input:
  case Code::disagreement:
  case Code::call_order:
  case Code::unsupported:
  case Code::limit_exceeded:
    return ExitStatus::bad_input;
  case Code::peer_failed:
  case Code::timed_out:
  case Code::address_in_use:
  case Code::superseded:
    return ExitStatus::peer_failed;
  case Code::verification_failed:
    return ExitStatus::verification_failed;
  case Code::output_failed:
    return ExitStatus::output_failed;
  case Code::internal:
    break;
  }
  return ExitStatus::internal;
}

/// Runs what may throw (the facade, the standard library) and makes a Failure of it.
template <class Body>
[[nodiscard]] Result<void> catching(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    return tl::make_unexpected(Failure{error.code(), error.what()});
  } catch (const std::bad_alloc&) {
    return fail(Code::internal, "out of memory");
  } catch (const std::exception& error) {
    return fail(Code::internal, "unexpected failure: {}", error.what());
  }
}

} // namespace deltawire::replay
