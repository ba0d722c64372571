// Runs a kernel test on every instruction set that this build and this processor have.
#pragma once

#include "catch.hpp"

#include "kernels/instruction_sets.hpp"

#include <string>

namespace deltawire::test {

/// The kernels use `name` while this lives, and the best one again afterwards.
class OnInstructionSet {
public:
  explicit OnInstructionSet(const std::string& name) {
    INFO(name);
    REQUIRE(kernels::use_instruction_set(name));
    REQUIRE(kernels::instruction_set() == name);
  }
  ~OnInstructionSet() { kernels::use_instruction_set(""); }
  OnInstructionSet(const OnInstructionSet&) = delete;
  OnInstructionSet& operator=(const OnInstructionSet&) = delete;
};

} // namespace deltawire::test

/// First in a test case: the rest of it runs once for every instruction set.
#define ON_EVERY_INSTRUCTION_SET()                                                                                     \
  const std::string instruction_set_ = GENERATE(from_range(::deltawire::kernels::instruction_sets()));                 \
  CAPTURE(instruction_set_);                                                                                           \
  const ::deltawire::test::OnInstructionSet on_instruction_set_(instruction_set_)
