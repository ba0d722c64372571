#include "machine.hpp"

#include "measure.hpp"
#include "parallel.hpp"
#include "replay/numbers.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <unistd.h>

namespace deltawire::bench {
namespace {

/// What follows "key...: " in a file of lines such as /proc/cpuinfo; "unknown" without one.
std::string value_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) {
      const std::size_t value = line.find_first_not_of(" \t:", key.size());
      return value == std::string::npos ? "" : line.substr(value);
    }
  return "unknown";
}

/// The bracketed word of "always [madvise] never".
std::string huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  std::getline(file, words);
  const std::size_t open = words.find('['), close = words.find(']');
  return open == std::string::npos || close == std::string::npos ? "not known"
                                                                 : words.substr(open + 1, close - open - 1);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

} // namespace

std::vector<std::pair<std::string, std::string>> describe_machine() {
  return {{"processor", value_in("/proc/cpuinfo", "model name")},
          {"cores", std::to_string(usable_cores())},
          {"memory", replay::short_bytes(static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                         static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)))},
          {"page size", replay::short_bytes(static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)))},
          {"transparent huge pages", huge_pages()}};
}

std::optional<std::uint64_t> available_memory() {
  std::istringstream value(value_in("/proc/meminfo", "MemAvailable"));
  std::uint64_t kib = 0;
  return value >> kib ? std::optional(kib * 1024) : std::nullopt;
}

MemoryLimits::MemoryLimits(std::size_t bytes) : a_(bytes), b_(bytes) {
  std::memset(a_.data(), 1, bytes);
  std::memset(b_.data(), 1, bytes);
}

MemorySpeeds MemoryLimits::measure() {
  const std::size_t bytes = a_.size();
  const std::size_t threads = usable_cores();
  const auto timed = [&](auto&& work) {
    const auto begin = std::chrono::steady_clock::now();
    in_parallel(threads, threads, [&](std::size_t part, std::size_t) {
      const std::size_t first = bytes * part / threads;
      work(first, bytes * (part + 1) / threads - first);
    });
    return static_cast<double>(bytes) / seconds_since(begin);
  };
  MemorySpeeds speeds;
  speeds.compare = timed([&](std::size_t first, std::size_t count) {
    keep(static_cast<std::size_t>(std::memcmp(a_.data() + first, b_.data() + first, count)));
  });
  speeds.copy =
    timed([&](std::size_t first, std::size_t count) { std::memcpy(b_.data() + first, a_.data() + first, count); });
  return speeds;
}

} // namespace deltawire::bench
