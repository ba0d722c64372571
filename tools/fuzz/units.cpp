// Byte sizes and durations of a topology: "64MiB", "1.5s".
#include "config/units.hpp"

#include "target.hpp"

namespace deltawire::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text = as_text(input);
  const AllocationBound bound(8192 + 32 * input.size());
  const auto size = config::parse_byte_size(text);
  if (size) {
    require(*size <= INT64_MAX, "a size fits a signed number");
    require(config::parse_byte_size(config::byte_size_text(*size)) == size, "a size comes back from its text");
  }
  const auto duration = config::parse_duration(text);
  if (duration) {
    require(duration->count() >= 0, "a duration is not negative");
    require(config::parse_duration(config::duration_text(*duration)) == duration, "a duration comes back");
  }
  return size || duration;
}

} // namespace deltawire::fuzz
