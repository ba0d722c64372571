#include "sorting.hpp"

#include <algorithm>

namespace trainer::sorting {

namespace {

/// The output function of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t finalised(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

} // namespace

std::uint64_t mixed(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return finalised(finalised(finalised(finalised(seed) ^ a) ^ b) ^ c);
}

double uniform(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return static_cast<double>(mixed(seed, a, b, c) >> 11) * 0x1p-53;
}

std::vector<Prompt> prompts(std::uint64_t seed, std::uint64_t occasion, std::size_t count) {
  std::vector<Prompt> all(count);
  for (std::size_t p = 0; p < count; ++p) {
    for (std::size_t i = 0; i < digits; ++i)
      all[p][i] = static_cast<std::uint8_t>(mixed(seed, occasion, p, i) % 10);
    all[p][digits] = separator;
  }
  return all;
}

Answer solution(const Prompt& prompt) {
  Answer answer{};
  std::copy_n(prompt.begin(), digits, answer.begin());
  std::sort(answer.begin(), answer.end());
  return answer;
}

float reward(const Prompt& prompt, const Answer& answer) {
  return answer == solution(prompt) ? 1.0F : 0.0F;
}

} // namespace trainer::sorting
