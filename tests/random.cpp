#include "random.hpp"

#include <cstdlib>

namespace deltawire::test {

std::uint64_t seed() {
  if (const char* text = std::getenv("DELTAWIRE_TEST_SEED"))
    return std::strtoull(text, nullptr, 0);
  return 20261129;
}

std::mt19937_64 generator(std::uint64_t stream) {
  return std::mt19937_64{seed() * 0x9E3779B97F4A7C15ull + stream};
}

} // namespace deltawire::test
