// The encodings that `deltawire diff` compares: the product's own, through its encoder, and plain ones for reference.
// One table: an encoding that joins it appears in every report.
#pragma once

#include "deltawire/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace deltawire::diff {

/// Measures one encoding, tensor by tensor: start(), add_tile() ascending, finish(). Not thread-safe.
class EncodingMeter {
public:
  EncodingMeter() = default;
  EncodingMeter(const EncodingMeter&) = delete;
  EncodingMeter& operator=(const EncodingMeter&) = delete;
  virtual ~EncodingMeter() = default;

  /// A tensor of `elements` elements.
  virtual void start(DType dtype, std::uint64_t elements) = 0;
  /// The changes of a tile (delta::tile_elements elements from `first`, or the tensor's rest): positions relative to
  /// `first`, strictly increasing and not empty, and the new and the old values at them, dense.
  virtual void add_tile(std::uint64_t first, std::span<const std::uint16_t> positions, const std::byte* values,
                        const std::byte* before) = 0;
  /// Bytes of the whole tensor.
  [[nodiscard]] virtual std::uint64_t finish() = 0;
};

struct Encoding {
  std::string_view key;   ///< in JSON
  std::string_view title; ///< in the table
  std::unique_ptr<EncodingMeter> (*meter)();
};

/// In the order of the columns.
[[nodiscard]] std::span<const Encoding> encodings() noexcept;

} // namespace deltawire::diff
