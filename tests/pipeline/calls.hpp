// What tests of the facade's calls share: everyone connects, and what a call that must fail says.
#pragma once

#include "catch.hpp"
#include "session.hpp"

#include <string>

namespace deltawire::test {

/// All ranks and workers connect; none may fail.
inline void connect(Session& session) {
  for (const std::string& thrown : session.connect())
    REQUIRE(thrown == "");
}

/// Runs `call`, which must throw a deltawire::Error of this code; returns its message.
template <class Call>
std::string error_of(Code code, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(static_cast<int>(error.code()) == static_cast<int>(code));
    return error.what();
  }
  return "nothing was thrown";
}

} // namespace deltawire::test
