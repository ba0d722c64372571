// Capture, a few tiles at a time: one pass compares them with the snapshot and refreshes it. What that pass saved of
// the changed elements is what the snapshot, the encoder and the digest all see, even if the trainer writes meanwhile.
#include "delta/capture.hpp"

#include "delta/tiles.hpp"
#include "kernels/digest.hpp"
#include "kernels/mask.hpp"
#include "kernels/values.hpp"

#include <utility>

namespace deltawire::delta {
namespace {

/// Elements [first, first + count) of one tile as a dense array: in place where local memory is one run, else packed.
const std::byte* dense_tile(Walk& walk, const std::byte* local, std::size_t size, std::uint64_t first,
                            std::size_t count, std::byte* packed) {
  const auto bytes = static_cast<layout::Index>(size);
  const auto address = [&](const Run& run, std::uint64_t element) {
    return local + (run.local + static_cast<layout::Index>(element - run.first) * walk.local_stride()) * bytes;
  };
  if (walk.local_stride() == 1)
    if (const Run& run = walk.at(first); first + count <= run.end)
      return address(run, first);
  for_each_run(walk, first, count, [&](const Run& run, std::uint64_t from, std::size_t length) {
    kernels::pack(address(run, first + from), walk.local_stride(), length, size, packed + from * size);
  });
  return packed;
}

/// Bytes of an element in memory.
std::size_t held_size(const OwnedBlock& owned) noexcept {
  return owned.cast ? kernels::size_before(*owned.cast) : size_of(owned.block->dtype);
}

/// Tile parts that are compared in one call, and what that call writes. Large enough that the call costs nothing, small
/// enough that what it read and wrote stays in the second-level cache until log and encoder have seen it. On the stack:
/// a capture of a small tensor touches little of it.
class Comparison {
public:
  static_assert(kernels::part_elements == tile_elements);

  /// Elements of `size` bytes; `cast`: to them, from what lies in memory.
  Comparison(std::size_t size, std::optional<kernels::Cast> cast)
    : size_(size), now_size_(cast ? kernels::size_before(*cast) : size), cast_(cast),
      most_(bytes / (tile_elements * std::max(size_, now_size_))) {}

  [[nodiscard]] bool full() const noexcept { return count_ == most_; }

  /// Room for the elements of the next part where memory is not dense.
  [[nodiscard]] std::byte* room() noexcept { return packed_.data() + count_ * tile_elements * now_size_; }

  void add(std::uint64_t first, const std::byte* now, std::byte* snapshot, std::size_t elements) noexcept {
    firsts_[count_] = first;
    parts_[count_++] = {now, snapshot, elements};
  }

  using Mask = std::span<const std::uint64_t, kernels::part_mask_words>;

  /// Compares, refreshes, calls visit(first, positions, mask, before, after) for each part that changed, and forgets
  /// them.
  template <class Visit>
  void run(Visit&& visit) {
    const std::size_t count = std::exchange(count_, 0);
    const kernels::DiffOutput out{masks_.data(), changed_.data(), before_.data(), after_.data()};
    const auto parts = std::span(parts_).first(count);
    const std::size_t changed =
      cast_ ? kernels::cast_diff_and_refresh(parts, *cast_, out) : kernels::diff_and_refresh(parts, size_, out);
    if (changed == 0)
      return;
    std::size_t saved = 0; // bytes
    for (std::size_t part = 0; part < count; ++part) {
      if (changed_[part] == 0)
        continue;
      const Mask mask(masks_.data() + part * kernels::part_mask_words, kernels::part_mask_words);
      kernels::mask_to_positions(mask, positions_.data());
      visit(firsts_[part], std::span<const std::uint16_t>(positions_).first(changed_[part]), mask,
            before_.data() + saved, after_.data() + saved);
      saved += changed_[part] * size_;
    }
  }

private:
  static constexpr std::size_t bytes = std::size_t{64} << 10;
  static constexpr std::size_t most = bytes / tile_elements;

  std::size_t size_;
  std::size_t now_size_;
  std::optional<kernels::Cast> cast_;
  std::size_t most_;
  std::size_t count_ = 0;
  std::array<std::uint64_t, most> firsts_;
  std::array<kernels::DiffPart, most> parts_;
  std::array<std::uint32_t, most> changed_;
  std::array<std::uint64_t, most * kernels::part_mask_words> masks_;
  TilePositions positions_;
  std::array<std::byte, bytes> packed_;
  std::array<std::byte, bytes> before_;
  std::array<std::byte, bytes> after_;
};

/// Digests and logs what changed in a tile part.
void take_changes(Walk& walk, std::size_t size, std::uint64_t part, std::span<const std::uint16_t> at,
                  Comparison::Mask mask, const std::byte* before, const std::byte* after, Captured& captured,
                  PositionLog& log) {
  for_each_run_of(walk, part, at,
                  [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group, std::size_t index) {
                    captured.digest_change +=
                      kernels::digest_change_at(static_cast<std::uint64_t>(run.slot), {walk.slot_stride(), origin},
                                                group, size, before + index * size, after + index * size);
                  });
  captured.changed += at.size();
  log.add_tile(part, at, mask);
}

/// Casts a run of memory into dense values.
void cast_run(kernels::Cast cast, const std::byte* from, std::ptrdiff_t stride, std::size_t count, std::byte* to) {
  if (stride == 1)
    return kernels::cast_elements(from, count, cast, to);
  const std::size_t size = kernels::size_before(cast);
  alignas(64) std::array<std::byte, tile_elements * sizeof(std::uint32_t)> packed; // a run is within a tile
  kernels::pack(from, stride, count, size, packed.data());
  kernels::cast_elements(packed.data(), count, cast, to);
}

} // namespace

std::optional<kernels::Cast> cast_between(DType held, DType wire) noexcept {
  if (held == wire)
    return std::nullopt;
  if (held == DType::f32)
    return wire == DType::bf16 ? kernels::Cast::fp32_to_bf16 : kernels::Cast::fp32_to_fp16;
  return held == DType::bf16 ? kernels::Cast::bf16_to_fp32 : kernels::Cast::fp16_to_fp32;
}

Captured capture_changes(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count, PieceEncoder* encoder,
                         PositionLog& log) {
  const std::size_t size = size_of(owned.block->dtype);
  Walk walk(*owned.block);
  Captured captured;
  Comparison comparison(size, owned.cast);
  const auto take = [&](std::uint64_t part, std::span<const std::uint16_t> at, Comparison::Mask mask,
                        const std::byte* before, const std::byte* after) {
    take_changes(walk, size, part, at, mask, before, after, captured, log);
    if (encoder)
      encoder->add_changes(part, at, after, before);
  };
  if (encoder)
    encoder->start_range(*owned.block, first, count, owned.snapshot);
  for_each_tile_part(first, first + count, [&](std::uint64_t part, std::size_t length) {
    const std::byte* now = dense_tile(walk, owned.local, held_size(owned), part, length, comparison.room());
    comparison.add(part, now, owned.snapshot + part * size, length);
    if (comparison.full())
      comparison.run(take);
  });
  comparison.run(take);
  if (encoder)
    encoder->finish_range();
  return captured;
}

Captured capture_tile(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count, const std::byte* now,
                      PositionLog& log) {
  const std::size_t size = size_of(owned.block->dtype);
  Walk walk(*owned.block);
  Captured captured;
  Comparison comparison(size, std::nullopt);
  comparison.add(first, now, owned.snapshot + first * size, static_cast<std::size_t>(count));
  comparison.run(
    [&](std::uint64_t part, std::span<const std::uint16_t> at, Comparison::Mask mask, const std::byte* before,
        const std::byte* after) { take_changes(walk, size, part, at, mask, before, after, captured, log); });
  return captured;
}

Captured capture_all(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count) {
  const std::size_t size = size_of(owned.block->dtype);
  const auto bytes = static_cast<layout::Index>(held_size(owned));
  Walk walk(*owned.block);
  Captured captured;
  // By tiles, so that the digest reads what the copy left in the cache.
  for_each_tile_part(first, first + count, [&](std::uint64_t part, std::size_t length) {
    for_each_run(walk, part, length, [&](const Run& run, std::uint64_t from, std::size_t elements) {
      const auto inside = static_cast<layout::Index>(part + from - run.first);
      std::byte* snapshot = owned.snapshot + (part + from) * size;
      const std::byte* local = owned.local + (run.local + inside * walk.local_stride()) * bytes;
      if (owned.cast)
        cast_run(*owned.cast, local, walk.local_stride(), elements, snapshot);
      else
        kernels::pack(local, walk.local_stride(), elements, size, snapshot);
      captured.digest_change +=
        kernels::digest_run(snapshot, 1, elements, size,
                            static_cast<std::uint64_t>(run.slot + inside * walk.slot_stride()), walk.slot_stride());
    });
  });
  captured.changed = count;
  return captured;
}

Digest digest_of_snapshot(const layout::Block& block, const std::byte* snapshot, std::uint64_t first,
                          std::uint64_t count) {
  const std::size_t size = size_of(block.dtype);
  Walk walk(block);
  Digest sum = 0;
  for_each_run(walk, first, count, [&](const Run& run, std::uint64_t from, std::size_t elements) {
    const auto inside = static_cast<layout::Index>(first + from - run.first);
    sum += kernels::digest_run(snapshot + (first + from) * size, 1, elements, size,
                               static_cast<std::uint64_t>(run.slot + inside * walk.slot_stride()), walk.slot_stride());
  });
  return sum;
}

void encode_logged(const layout::Block& block, const std::byte* snapshot, std::uint64_t first, std::uint64_t count,
                   const PositionLog& log, PieceEncoder& encoder) {
  const std::size_t size = size_of(block.dtype);
  const std::uint64_t end = first + count;
  TileValues values;
  encoder.start_range(block, first, count, snapshot);
  log.for_each_tile([&](std::uint64_t tile, std::span<const std::uint16_t> positions) {
    if (tile >= end || tile + tile_elements <= first)
      return;
    // Only what lies in the range: a log may cover more than one delivery item.
    if (tile < first)
      positions = positions.subspan(static_cast<std::size_t>(
        std::lower_bound(positions.begin(), positions.end(), static_cast<std::uint16_t>(first - tile)) -
        positions.begin()));
    if (end - tile < tile_elements)
      positions = positions.first(static_cast<std::size_t>(
        std::lower_bound(positions.begin(), positions.end(), static_cast<std::uint16_t>(end - tile)) -
        positions.begin()));
    if (positions.empty())
      return;
    kernels::gather(snapshot + tile * size, {}, positions, size, values.data());
    encoder.add_changes(tile, positions, values.data());
  });
  encoder.finish_range();
}

void encode_all(const layout::Block& block, const std::byte* snapshot, std::uint64_t first, std::uint64_t count,
                PieceEncoder& encoder) {
  encoder.add_values(block, first, count, snapshot + first * size_of(block.dtype));
}

} // namespace deltawire::delta
