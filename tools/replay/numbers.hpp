// Numbers as tables show them: short, and with the digits that count.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire::replay {

/// Three digits: "2.45", "24.5", "245". Requires a value that is not negative.
[[nodiscard]] std::string three_digits(double value);

/// "1183432", "51.2M": decimal units from ten million on.
[[nodiscard]] std::string short_count(std::uint64_t count);

/// "981B", "158KiB", "1.25MiB": three digits, binary units.
[[nodiscard]] std::string short_bytes(std::uint64_t bytes);

/// "2.41%"; "-" where the whole is nothing.
[[nodiscard]] std::string percent(double part, double whole);

} // namespace deltawire::replay
