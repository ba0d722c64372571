// Capture, tile by tile. A tile that did not change costs one comparison; a tile that did reads each changed element
// once more, and what was read then is what the snapshot, the encoder and the digest all see, even if the trainer
// writes meanwhile.
#include "delta/capture.hpp"

#include "delta/tiles.hpp"
#include "kernels/digest.hpp"
#include "kernels/mask.hpp"
#include "kernels/values.hpp"

namespace deltawire::delta {
namespace {

/// Elements [first, first + count) of one tile as a dense array: in place where local memory is one run, else packed.
const std::byte* dense_tile(Walk& walk, const std::byte* local, std::size_t size, std::uint64_t first,
                            std::size_t count, TileValues& packed) {
  const auto bytes = static_cast<layout::Index>(size);
  const auto address = [&](const Run& run, std::uint64_t element) {
    return local + (run.local + static_cast<layout::Index>(element - run.first) * walk.local_stride()) * bytes;
  };
  if (walk.local_stride() == 1)
    if (const Run& run = walk.at(first); first + count <= run.end)
      return address(run, first);
  for_each_run(walk, first, count, [&](const Run& run, std::uint64_t from, std::size_t length) {
    kernels::pack(address(run, first + from), walk.local_stride(), length, size, packed.data() + from * size);
  });
  return packed.data();
}

} // namespace

Captured capture_changes(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count, PieceEncoder* encoder,
                         PositionLog& log) {
  const std::size_t size = size_of(owned.block->dtype);
  Walk walk(*owned.block);
  Captured captured;
  TileValues packed;
  TileValues before;
  TileValues after;
  TilePositions positions;
  std::array<std::uint64_t, kernels::mask_words(tile_elements)> mask;
  if (encoder)
    encoder->start_range(*owned.block, first, count, owned.snapshot);
  for_each_tile_part(first, first + count, [&](std::uint64_t part, std::size_t length) {
    const std::byte* now = dense_tile(walk, owned.local, size, part, length, packed);
    std::byte* snapshot = owned.snapshot + part * size;
    if (kernels::compare(now, snapshot, length, size, mask.data()) == 0)
      return;
    const std::size_t changed =
      kernels::mask_to_positions(std::span(mask).first(kernels::mask_words(length)), positions.data());
    const auto at = std::span<const std::uint16_t>(positions).first(changed);
    kernels::gather(now, {}, at, size, after.data());
    kernels::gather(snapshot, {}, at, size, before.data());
    kernels::scatter(snapshot, {}, at, size, after.data());
    for_each_run_of(
      walk, part, at,
      [&](const Run& run, std::ptrdiff_t origin, std::span<const std::uint16_t> group, std::size_t index) {
        captured.digest_change +=
          kernels::digest_change_at(static_cast<std::uint64_t>(run.slot), {walk.slot_stride(), origin}, group, size,
                                    before.data() + index * size, after.data() + index * size);
      });
    captured.changed += changed;
    log.add_tile(part, at);
    if (encoder)
      encoder->add_changes(part, at, after.data(), before.data());
  });
  if (encoder)
    encoder->finish_range();
  return captured;
}

Captured capture_all(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count) {
  const std::size_t size = size_of(owned.block->dtype);
  const auto bytes = static_cast<layout::Index>(size);
  Walk walk(*owned.block);
  Captured captured;
  // By tiles, so that the digest reads what the copy left in the cache.
  for_each_tile_part(first, first + count, [&](std::uint64_t part, std::size_t length) {
    for_each_run(walk, part, length, [&](const Run& run, std::uint64_t from, std::size_t elements) {
      const auto inside = static_cast<layout::Index>(part + from - run.first);
      std::byte* snapshot = owned.snapshot + (part + from) * size;
      kernels::pack(owned.local + (run.local + inside * walk.local_stride()) * bytes, walk.local_stride(), elements,
                    size, snapshot);
      captured.digest_change +=
        kernels::digest_run(snapshot, 1, elements, size,
                            static_cast<std::uint64_t>(run.slot + inside * walk.slot_stride()), walk.slot_stride());
    });
  });
  captured.changed = count;
  return captured;
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
