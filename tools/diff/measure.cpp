#include "measure.hpp"

#include "delta/tiles.hpp"
#include "encodings.hpp"
#include "kernels/mask.hpp"
#include "kernels/values.hpp"
#include "ulp.hpp"

#include <algorithm>
#include <tuple>

namespace deltawire::diff {

namespace {

/// What is counted while elements pass.
struct Tally {
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  GapDistribution gaps;
  DifferenceDistribution differences;
  std::vector<std::uint64_t> bytes = std::vector<std::uint64_t>(encodings().size());

  void clear() {
    elements = 0;
    changed = 0;
    gaps.clear();
    differences.clear();
    std::fill(bytes.begin(), bytes.end(), 0);
  }

  void add_all(const Tally& other) {
    elements += other.elements;
    changed += other.changed;
    gaps.add_all(other.gaps);
    differences.add_all(other.differences);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] += other.bytes[i];
  }

  [[nodiscard]] Figures figures() const {
    Figures figures{elements, changed, {}, {}, bytes};
    if (changed > 0) {
      figures.gaps = gaps.figures();
      figures.differences = differences.figures();
    }
    return figures;
  }
};

class Measurement {
public:
  Measurement() {
    for (const Encoding& encoding : encodings())
      meters_.push_back(encoding.meter());
  }

  /// Tallies one tensor. Both sides have the same dtype and shape.
  const Tally& measure(const checkpoint::TensorView& before, const checkpoint::TensorView& after) {
    const std::size_t size = size_of(before.dtype);
    const std::uint64_t elements = before.data.size() / size;
    const AddDifferences add_differences = add_differences_of(before.dtype);
    tally_.clear();
    tally_.elements = elements;
    for (const auto& meter : meters_)
      meter->start(before.dtype, elements);
    std::uint64_t expected = 0; // the element that a gap of 0 stands for
    delta::for_each_tile_part(0, elements, [&](std::uint64_t first, std::size_t length) {
      const std::byte* old_tile = before.data.data() + first * size;
      const std::byte* new_tile = after.data.data() + first * size;
      const std::size_t changed = kernels::compare(old_tile, new_tile, length, size, mask_.data());
      if (changed == 0)
        return;
      tally_.changed += changed;
      kernels::mask_to_positions(std::span(mask_).first(kernels::mask_words(length)), positions_.data());
      const auto positions = std::span<const std::uint16_t>(positions_).first(changed);
      for (const std::uint16_t position : positions) {
        tally_.gaps.add(first + position - expected);
        expected = first + position + 1;
      }
      add_differences(old_tile, new_tile, positions, tally_.differences);
      kernels::gather(new_tile, {}, positions, size, values_.data());
      kernels::gather(old_tile, {}, positions, size, before_.data());
      for (const auto& meter : meters_)
        meter->add_tile(first, positions, values_.data(), before_.data());
    });
    for (std::size_t i = 0; i < meters_.size(); ++i)
      tally_.bytes[i] = meters_[i]->finish();
    return tally_;
  }

private:
  std::vector<std::unique_ptr<EncodingMeter>> meters_;
  Tally tally_;
  std::array<std::uint64_t, kernels::mask_words(delta::tile_elements)> mask_{};
  delta::TilePositions positions_{};
  delta::TileValues values_{}, before_{};
};

} // namespace

Comparison compare(const checkpoint::Checkpoint& before, const checkpoint::Checkpoint& after) {
  Comparison comparison;
  Measurement measurement;
  Tally total;
  for (const checkpoint::TensorView& tensor : before.tensors()) {
    const Tally& tally = measurement.measure(tensor, *after.find(tensor.name));
    total.add_all(tally);
    comparison.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tally.figures()});
  }
  comparison.total = total.figures();
  std::sort(comparison.tensors.begin(), comparison.tensors.end(), [](const TensorFigures& a, const TensorFigures& b) {
    return std::tie(b.figures.changed, a.name) < std::tie(a.figures.changed, b.name);
  });
  return comparison;
}

} // namespace deltawire::diff
