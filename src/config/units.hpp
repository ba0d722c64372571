// Byte sizes and durations as the topology file writes them. Pure functions; exact (no floating point); failures say
// what was read and what is accepted, but not where: the caller knows the file, line and key.
#pragma once

#include "result.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace deltawire::config {

/// "64MiB", "1.5GiB", "100KB", "7B", with or without one space before the unit. B, KB, MB, GB, TB are powers of 1000,
/// KiB, MiB, GiB, TiB powers of 1024. Fails on a missing or unknown unit, a negative amount, more than 6 decimals, a
/// part of a byte, or 2^63 bytes and more.
[[nodiscard]] Result<std::uint64_t> parse_byte_size(std::string_view text);

/// "500ms", "20s", "1.5s", "10min", "1h"; also "us" and "ns". Fails on a missing or unknown unit, a negative amount,
/// more than 6 decimals, a part of a nanosecond, or more than 365 days (so that adding it to a clock cannot overflow).
[[nodiscard]] Result<std::chrono::nanoseconds> parse_duration(std::string_view text);

/// The shortest text that parse_byte_size reads back to the same value, in the largest binary unit that divides it.
[[nodiscard]] std::string byte_size_text(std::uint64_t bytes);

/// The same for durations: "20s", "1500ms", "10min".
[[nodiscard]] std::string duration_text(std::chrono::nanoseconds duration);

} // namespace deltawire::config
