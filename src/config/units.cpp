#include "config/units.hpp"

#include <array>
#include <limits>
#include <optional>
#include <span>

namespace deltawire::config {

namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor; ///< in the smallest unit
};

constexpr std::array<Unit, 9> byte_units{{
  {"B", 1},
  {"KB", 1'000},
  {"MB", 1'000'000},
  {"GB", 1'000'000'000},
  {"TB", 1'000'000'000'000},
  {"KiB", 1ull << 10},
  {"MiB", 1ull << 20},
  {"GiB", 1ull << 30},
  {"TiB", 1ull << 40},
}};

constexpr std::array<Unit, 6> time_units{{
  {"ns", 1},
  {"us", 1'000},
  {"ms", 1'000'000},
  {"s", 1'000'000'000},
  {"min", 60'000'000'000},
  {"h", 3'600'000'000'000},
}};

constexpr std::uint64_t year_ns = 365ull * 24 * 3'600'000'000'000;
constexpr std::size_t max_decimals = 6;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string names_of(std::span<const Unit> units) {
  std::string text;
  for (const Unit& unit : units)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", unit.name);
  return text;
}

/// Amount and unit of "1.5GiB", in the smallest unit. `example` and `smallest` make the messages concrete.
Result<std::uint64_t> parse_amount(std::string_view text, std::span<const Unit> units, std::uint64_t limit,
                                   std::string_view example, std::string_view smallest) {
  if (text.starts_with('-'))
    return fail(Code::invalid_topology, "\"{}\" is negative", text);

  // The whole part saturates, so that any number of digits is read and then refused as too large.
  std::size_t at = 0;
  std::uint64_t whole = 0;
  bool saturated = false;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    const auto digit = static_cast<std::uint64_t>(text[at] - '0');
    saturated = saturated || whole > (limit - digit) / 10;
    whole = saturated ? limit : whole * 10 + digit;
  }
  if (at == 0)
    return fail(Code::invalid_topology, "\"{}\" does not start with a number; write it like \"{}\"", text, example);

  std::uint64_t fraction = 0;
  std::uint64_t scale = 1;
  if (at < text.size() && text[at] == '.') {
    const std::size_t first = ++at;
    for (; at < text.size() && is_digit(text[at]); ++at) {
      if (at - first == max_decimals)
        return fail(Code::invalid_topology, "\"{}\" has more than {} decimals", text, max_decimals);
      fraction = fraction * 10 + static_cast<std::uint64_t>(text[at] - '0');
      scale *= 10;
    }
    if (at == first)
      return fail(Code::invalid_topology, "\"{}\" has no digit after the point", text);
  }

  std::string_view name = text.substr(at);
  if (name.starts_with(' '))
    name.remove_prefix(1);
  if (name.empty())
    return fail(Code::invalid_topology, "\"{}\" has no unit; write it like \"{}\" (units: {})", text, example,
                names_of(units));
  for (const Unit& unit : units) {
    if (unit.name != name)
      continue;
    if (saturated || whole > limit / unit.factor)
      return fail(Code::invalid_topology, "\"{}\" is too large", text);
    // fraction < 10^6 and factor <= 2^42, so the product fits
    if (fraction * unit.factor % scale != 0)
      return fail(Code::invalid_topology, "\"{}\" is not a whole number of {}", text, smallest);
    const std::uint64_t part = fraction * unit.factor / scale;
    if (part > limit - whole * unit.factor)
      return fail(Code::invalid_topology, "\"{}\" is too large", text);
    return whole * unit.factor + part;
  }
  return fail(Code::invalid_topology, "\"{}\" has the unknown unit \"{}\"; known: {}", text, name, names_of(units));
}

std::string shortest(std::uint64_t amount, std::span<const Unit> units) {
  const Unit* best = &units.front();
  for (const Unit& unit : units)
    if (amount != 0 && amount % unit.factor == 0 && unit.factor > best->factor)
      best = &unit;
  return fmt::format("{}{}", amount / best->factor, best->name);
}

} // namespace

Result<std::uint64_t> parse_byte_size(std::string_view text) {
  constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return parse_amount(text, byte_units, limit, "64MiB", "bytes");
}

Result<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  auto amount = parse_amount(text, time_units, year_ns, "20s", "nanoseconds");
  if (!amount)
    return pass_on(std::move(amount));
  return std::chrono::nanoseconds{static_cast<std::int64_t>(*amount)};
}

std::string byte_size_text(std::uint64_t bytes) {
  static constexpr std::array<Unit, 5> binary{
    {{"B", 1}, {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}}};
  return shortest(bytes, binary);
}

std::string duration_text(std::chrono::nanoseconds duration) {
  return shortest(static_cast<std::uint64_t>(duration.count()), time_units);
}

} // namespace deltawire::config
