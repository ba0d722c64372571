// Matchers whose names differ between the generations of Catch2.
#pragma once

#include "catch.hpp"

#include <string>

namespace deltawire::test {

inline auto contains(const std::string& part) {
#if __has_include(<catch2/catch_test_macros.hpp>)
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Matchers::Contains(part);
#endif
}

inline auto starts_with(const std::string& part) {
  return Catch::Matchers::StartsWith(part);
}

} // namespace deltawire::test
