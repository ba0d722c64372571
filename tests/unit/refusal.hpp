// What a refusal must say.
#pragma once

#include "catch.hpp"

#include "result.hpp"

#include <initializer_list>
#include <string>

namespace deltawire::test {

/// The result is a failure of this code, and its message contains each text.
template <class T>
void check_refused(const Result<T>& result, Code code, std::initializer_list<const char*> texts) {
  REQUIRE(!result);
  INFO(result.error().message);
  CHECK(result.error().code == code);
  for (const char* text : texts) {
    CAPTURE(text);
    CHECK(result.error().message.find(text) != std::string::npos);
  }
}

} // namespace deltawire::test
