// The JSON header of a safetensors file: text in, checked entries out. Knows no file and touches no tensor data.
#pragma once

#include "deltawire/dtype.hpp"
#include "layout/shape.hpp"
#include "result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::checkpoint {

/// The format's own limit on the header, in bytes.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;

/// A tensor as the header describes it. Bytes begin..end count from the start of the data.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::bf16;
  layout::Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Parses and checks a header whose data has `data_bytes` bytes, starting at byte `data_start` of the file. Returns the
/// entries in the order of the data. Afterwards each range is within the data and as long as dtype and shape say, the
/// ranges cover the data without overlap or hole, each starts at a multiple of its element size, and no name repeats.
/// Fails with Code::invalid_input, naming the tensor and the rule, but not the file.
[[nodiscard]] Result<std::vector<HeaderEntry>> parse_header(std::string_view text, std::uint64_t data_start,
                                                            std::uint64_t data_bytes);

/// The header of these entries, padded with spaces so that 8 bytes of length and the header are a multiple of 8.
/// Fails with Code::invalid_argument on a name that is no UTF-8.
[[nodiscard]] Result<std::string> header_text(const std::vector<HeaderEntry>& entries);

} // namespace deltawire::checkpoint
