// The agreement of a large session, a Mixture-of-Experts model of 94 layers of 128 experts on 64 ranks: what each
// process does at start-up, what the root compiles, and what an update without any change costs in bookkeeping. No
// weights are allocated. The machine has no limit to compare with: each row tells its seconds and bytes.
#pragma once

#include "report.hpp"

namespace deltawire::bench {

[[nodiscard]] Report plan_bench();

} // namespace deltawire::bench
