// Which instruction set the kernels run on: the best that both this build and the processor have, chosen at the first
// call of a kernel. Results do not depend on it. Choosing another one is for tests and benchmarks.
#pragma once

#include <string>
#include <vector>

namespace deltawire::kernels {

/// Those that this build and this processor have, best first, e.g. "AVX3_DL" (AVX-512 with VBMI2), "AVX3" (AVX-512),
/// "AVX2", "NEON", "SCALAR" (plain C++).
[[nodiscard]] std::vector<std::string> instruction_sets();

/// The one in use.
[[nodiscard]] std::string instruction_set();

/// Uses this one from now on; empty: the best one again. False where it is not among instruction_sets(). Not
/// thread-safe: no kernel may be running.
bool use_instruction_set(const std::string& name);

} // namespace deltawire::kernels
