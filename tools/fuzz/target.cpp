#include "target.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace deltawire::fuzz {

void require(bool holds, std::string_view what) {
  if (holds)
    return;
  std::fprintf(stderr, "fuzz target: does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

AllocationBound::~AllocationBound() {
  const std::size_t taken = allocated_bytes() - before_;
  if (taken <= most_)
    return;
  std::fprintf(stderr, "fuzz target: took %zu bytes, where %zu are justified\n", taken, most_);
  std::abort();
}

std::uint64_t Input::number(std::size_t size) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size && i < bytes_.size(); ++i)
    value |= std::to_integer<std::uint64_t>(bytes_[i]) << (8 * i);
  bytes_ = bytes_.subspan(std::min(size, bytes_.size()));
  return value;
}

std::vector<Line> lines_of(std::string_view text) {
  std::vector<Line> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty())
      continue;
    const std::size_t blank = std::min(line.find(' '), line.size());
    lines.push_back({line.substr(0, blank), line.substr(std::min(blank + 1, line.size()))});
  }
  return lines;
}

std::vector<std::int64_t> numbers_of(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at < text.size();) {
    std::int64_t number = 0;
    std::size_t digits = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && digits < 18; ++at, ++digits)
      number = number * 10 + (text[at] - '0');
    if (digits > 0)
      numbers.push_back(number);
    else
      ++at;
  }
  return numbers;
}

} // namespace deltawire::fuzz
