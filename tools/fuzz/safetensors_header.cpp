// The JSON header of a safetensors file. Input: a byte for where the data starts, four for the bytes it has, the text.
#include "checkpoint/header.hpp"

#include "target.hpp"

#include <tuple>

namespace deltawire::fuzz {
namespace {

using checkpoint::HeaderEntry;

bool same(const HeaderEntry& a, const HeaderEntry& b) {
  return std::tie(a.name, a.dtype, a.shape, a.begin, a.end) == std::tie(b.name, b.dtype, b.shape, b.begin, b.end);
}

/// What the reader promises of entries, by arithmetic of our own.
void check(const std::vector<HeaderEntry>& entries, std::uint64_t data_start, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  for (const HeaderEntry& entry : entries) {
    require(entry.begin == at && entry.end >= at && entry.end <= data_bytes, "entries cover the data one by one");
    at = entry.end;
    require((data_start + entry.begin) % size_of(entry.dtype) == 0, "data is aligned");
    std::uint64_t bytes = size_of(entry.dtype);
    bool fits = true;
    bool empty = false;
    for (const layout::Index extent : entry.shape) {
      require(extent >= 0, "no extent is negative");
      empty = empty || extent == 0;
      fits = fits && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes);
    }
    require(empty || fits, "a shape is countable");
    require((empty ? 0 : bytes) == entry.end - entry.begin, "a range is as long as dtype and shape say");
  }
  require(at == data_bytes, "entries cover the data to its end");
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  Input input(bytes);
  const std::uint64_t data_start = input.u8();
  const std::uint64_t data_bytes = input.number(4);
  const std::string_view text = as_text(input.rest());
  Result<std::vector<HeaderEntry>> entries;
  {
    const AllocationBound bound(16384 + 256 * text.size());
    entries = checkpoint::parse_header(text, data_start, data_bytes);
  }
  if (!entries) {
    require(entries.error().code == Code::invalid_input, "a bad header has the code of bad input");
    return false;
  }
  check(*entries, data_start, data_bytes);
  const auto written = checkpoint::header_text(*entries);
  require(written.has_value(), "entries that were read can be written");
  require((8 + written->size()) % 8 == 0, "a header is padded");
  const auto again = checkpoint::parse_header(*written, data_start, data_bytes);
  require(again && again->size() == entries->size(), "a header that was written can be read");
  for (std::size_t i = 0; i < entries->size(); ++i)
    require(same((*entries)[i], (*again)[i]), "entries come back as they were");
  return true;
}

} // namespace deltawire::fuzz
