#include "numbers.hpp"

#include <fmt/format.h>

#include <array>
#include <span>

namespace deltawire::replay {

namespace {

std::string scaled(double value, double step, std::span<const char* const> units) {
  std::size_t unit = 0;
  while (value >= step * 0.9995 && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  return three_digits(value) + units[unit];
}

} // namespace

std::string three_digits(double value) {
  if (value < 9.995)
    return fmt::format("{:.2f}", value);
  if (value < 99.95)
    return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

std::string short_count(std::uint64_t count) {
  if (count < 10'000'000)
    return std::to_string(count);
  static constexpr std::array units{"M", "G", "T"};
  return scaled(static_cast<double>(count) * 1e-6, 1000, units);
}

std::string percent(double part, double whole) {
  return whole > 0 ? three_digits(100 * part / whole) + "%" : "-";
}

std::string short_bytes(std::uint64_t bytes) {
  if (bytes < 1000)
    return std::to_string(bytes) + "B";
  static constexpr std::array units{"KiB", "MiB", "GiB", "TiB"};
  return scaled(static_cast<double>(bytes) / 1024, 1024, units);
}

} // namespace deltawire::replay
