// Seeds for random tests: DELTAWIRE_TEST_SEED when set, otherwise a fixed default, so that a default run repeats.
// Print the seed with INFO or CAPTURE so that a failure names it.
#pragma once

#include <cstdint>
#include <random>

namespace deltawire::test {

/// The seed of this run.
std::uint64_t seed();

/// A generator for one test, independent of the others: seed() mixed with `stream`.
std::mt19937_64 generator(std::uint64_t stream);

} // namespace deltawire::test
