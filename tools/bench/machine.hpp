// What the figures were measured on, and what it can do at best.
#pragma once

#include "changing_weights.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::bench {

/// Processor, cores, memory, page size and the use of huge pages: (name, value).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> describe_machine();

/// Bytes that can be taken without pushing others out; nothing where the system does not tell.
[[nodiscard]] std::optional<std::uint64_t> available_memory();

/// Bytes that all cores together compare (of each of two equal arrays) and copy in a second.
struct MemorySpeeds {
  double compare = 0;
  double copy = 0;
};

/// Two equal arrays, past the caches where `bytes` is.
class MemoryLimits {
public:
  explicit MemoryLimits(std::size_t bytes);

  /// Measured by the clock, now.
  [[nodiscard]] MemorySpeeds measure();

private:
  HugeArray a_;
  HugeArray b_;
};

} // namespace deltawire::bench
