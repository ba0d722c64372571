// A session in which no rank has an element would verify every update of nothing; those who start one refuse it.
#pragma once

#include "layout/plan.hpp"

namespace deltawire::layout {

/// The plan, unless it has no element (Code::disagreement).
[[nodiscard]] inline Result<Plan> some_elements(Result<Plan> plan) {
  if (plan && plan->blocks == 0)
    return fail(Code::disagreement, "no rank provides an element of any slot: there is nothing to deliver");
  return plan;
}

} // namespace deltawire::layout
