#include "encodings.hpp"

#include "config/topology.hpp"
#include "delta/piece.hpp"
#include "layout/plan.hpp"

#include <algorithm>
#include <array>

namespace deltawire::diff {

namespace {

/// An encoding whose bytes follow from the number of changes. A tensor without a change takes none.
template <std::uint64_t (*bytes_of)(std::uint64_t elements, std::uint64_t changed, std::uint64_t size)>
class CountedMeter final : public EncodingMeter {
public:
  void start(DType dtype, std::uint64_t elements) override {
    size_ = size_of(dtype);
    elements_ = elements;
    changed_ = 0;
  }
  void add_tile(std::uint64_t, std::span<const std::uint16_t> positions, const std::byte*, const std::byte*) override {
    changed_ += positions.size();
  }
  std::uint64_t finish() override { return bytes_of(elements_, changed_, size_); }

private:
  std::uint64_t size_ = 1;
  std::uint64_t elements_ = 0;
  std::uint64_t changed_ = 0;
};

/// All values, whatever changed: what a copy of the checkpoint costs.
std::uint64_t dense(std::uint64_t elements, std::uint64_t, std::uint64_t size) {
  return elements * size;
}

/// A bit an element, and the values.
std::uint64_t bitmap(std::uint64_t elements, std::uint64_t changed, std::uint64_t size) {
  return changed == 0 ? 0 : (elements + 7) / 8 + changed * size;
}

/// A flat 32-bit index and the value; 64-bit where the tensor needs it.
std::uint64_t index_and_value(std::uint64_t elements, std::uint64_t changed, std::uint64_t size) {
  return changed * ((elements > std::uint64_t{1} << 32 ? 8 : 4) + size);
}

/// The product's pieces, as one rank that holds the whole tensor makes them with the caps of an empty topology file.
class PieceMeter final : public EncodingMeter {
public:
  explicit PieceMeter(delta::Encoding encoding) : encoder_(piece_limit, encoding) {}

  void start(DType dtype, std::uint64_t elements) override {
    block_.dtype = dtype;
    block_.extents = {static_cast<layout::Index>(elements)};
    block_.local_strides = {1};
    block_.slot_strides = {1};
    elements_ = elements;
    chunk_elements_ = config::Differ{}.chunk / size_of(dtype);
    chunk_end_ = 0;
    bytes_ = 0;
  }

  void add_tile(std::uint64_t first, std::span<const std::uint16_t> positions, const std::byte* values,
                const std::byte* before) override {
    if (first >= chunk_end_) {
      close_chunk();
      const std::uint64_t chunk = first / chunk_elements_ * chunk_elements_;
      chunk_end_ = std::min(elements_, chunk + chunk_elements_);
      encoder_.start_range(block_, chunk, chunk_end_ - chunk);
    }
    encoder_.add_changes(first, positions, values, before);
  }

  std::uint64_t finish() override {
    close_chunk();
    return bytes_;
  }

private:
  void close_chunk() {
    if (chunk_end_ == 0)
      return;
    encoder_.finish_range();
    bytes_ += encoder_.take().bytes.size();
    chunk_end_ = 0;
  }

  /// The largest that any caps allow.
  static constexpr std::size_t piece_limit = std::size_t{64} << 20;

  delta::PieceEncoder encoder_;
  layout::Block block_;
  std::uint64_t elements_ = 0;
  std::uint64_t chunk_elements_ = 1;
  std::uint64_t chunk_end_ = 0; ///< 0: no chunk is open
  std::uint64_t bytes_ = 0;
};

template <class Meter>
std::unique_ptr<EncodingMeter> make() {
  return std::make_unique<Meter>();
}

/// What an update sends; the same with values as they are, for workers that are behind; and that with plain gaps.
template <bool u8, bool ulp>
std::unique_ptr<EncodingMeter> make_pieces() {
  delta::Encoding encoding;
  if (u8)
    encoding.positions = delta::PositionCodec::gaps_u8;
  encoding.ulp = ulp;
  return std::make_unique<PieceMeter>(encoding);
}

constexpr std::array table{
  Encoding{"pieces", "pieces", make_pieces<false, true>},
  Encoding{"pieces_raw", "raw values", make_pieces<false, false>},
  Encoding{"u8_gaps", "u8 gaps", make_pieces<true, false>},
  Encoding{"u32_index", "u32 index", make<CountedMeter<index_and_value>>},
  Encoding{"bitmap", "bitmap", make<CountedMeter<bitmap>>},
  Encoding{"dense", "dense", make<CountedMeter<dense>>},
};

} // namespace

std::span<const Encoding> encodings() noexcept {
  return table;
}

} // namespace deltawire::diff
