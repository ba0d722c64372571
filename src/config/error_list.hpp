// Every error of a topology, collected so that the user sees all of them at once, in the order of the files.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::config {

/// Where a value was written.
struct Place {
  std::uint32_t source = 0; ///< order of reading: the main file is 0, its includes follow, overrides come last
  std::uint32_t line = 0;   ///< 0: no line (an override, or a file as a whole)
  std::string file;         ///< path as given, or "--set key=value"

  /// "file:line", or the file or override alone where there is no line.
  [[nodiscard]] std::string text() const { return line == 0 ? file : fmt::format("{}:{}", file, line); }
};

class ErrorList {
public:
  /// Adds "place: key: message"; without the key where it is empty.
  void add(Code code, const Place& place, std::string_view key, std::string_view message);

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// All messages joined by newlines, by source and line. The code is `unsupported` where every error is.
  /// Requires !empty().
  [[nodiscard]] Failure to_failure() const;

private:
  struct Entry {
    std::uint32_t source;
    std::uint32_t line;
    Code code;
    std::string message;
  };

  std::vector<Entry> entries_;
};

} // namespace deltawire::config
