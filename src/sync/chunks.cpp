#include "sync/chunks.hpp"

#include "delta/piece.hpp"
#include "wire/frame.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace deltawire::sync {
namespace {

/// A piece is never larger, whatever the caps: offers name pieces by 32-bit lengths, and larger pieces gain nothing.
constexpr std::uint64_t largest_piece = 64ull << 20;

/// The most elements of `size` bytes whose worst case fits `inflight`, at most `wanted`. At least 1 (piece_limit() saw
/// to it).
std::uint64_t fitting_elements(std::uint64_t wanted, std::size_t size, std::size_t piece_limit,
                               std::uint64_t inflight) noexcept {
  std::uint64_t fits = 1, above = wanted + 1;
  while (above - fits > 1) {
    const std::uint64_t middle = fits + (above - fits) / 2;
    (delta::worst_case_bytes(middle, size, piece_limit) <= inflight ? fits : above) = middle;
  }
  return fits;
}

/// Of `wanted` elements: what fits, in whole tiles where there is room for one.
std::uint64_t range_elements(std::uint64_t wanted, std::size_t size, std::size_t piece_limit,
                             std::uint64_t inflight) noexcept {
  const std::uint64_t fits = fitting_elements(std::max<std::uint64_t>(1, wanted), size, piece_limit, inflight);
  return fits > delta::tile_elements ? fits - fits % delta::tile_elements : fits;
}

} // namespace

std::size_t largest_element(std::span<const layout::SlotSpec> slots) noexcept {
  std::size_t largest = 1;
  for (const layout::SlotSpec& slot : slots)
    largest = std::max(largest, size_of(slot.dtype));
  return largest;
}

Result<std::size_t> piece_limit(std::uint64_t inflight, std::uint64_t max_round, std::uint64_t flush_cap,
                                std::size_t largest, bool compressed) {
  const std::uint64_t least = delta::least_piece_limit(largest);
  const auto check = [&](std::string_view key, std::uint64_t cap, std::uint64_t framing) -> Result<void> {
    if (cap < least + framing)
      return fail(Code::limit_exceeded, "{}: {} bytes hold no piece of one element of {} bytes: at least {} are needed",
                  key, cap, largest, least + framing);
    return {};
  };
  // A chunk of one element must fit the credit too, with whatever its worst case adds.
  const std::uint64_t one = std::max<std::uint64_t>(least, delta::worst_case_bytes(1, largest, least));
  if (inflight < one)
    return fail(Code::limit_exceeded,
                "actors.differ.inflight: {} bytes hold no piece of one element of {} bytes: at least {} are needed",
                inflight, largest, one);
  if (auto checked = check("actors.gather_queue.max_round", max_round, 0); !checked)
    return pass_on(std::move(checked));
  if (auto checked = check("actors.flush_bucket.cap", flush_cap, wire::header_bytes); !checked)
    return pass_on(std::move(checked));
  const std::uint64_t most = compressed ? delta::most_plain_bytes : largest_piece;
  return static_cast<std::size_t>(std::min({inflight, max_round, flush_cap - wire::header_bytes, most}));
}

std::uint64_t chunk_elements(std::size_t size, std::uint64_t chunk_bytes, std::uint64_t inflight,
                             std::size_t piece_limit) noexcept {
  return range_elements(std::min(chunk_bytes, largest_chunk) / size, size, piece_limit, inflight);
}

std::size_t snapshot_bytes(const layout::Block& block) noexcept {
  const std::size_t bytes = static_cast<std::size_t>(layout::element_count(block)) * size_of(block.dtype);
  return (bytes + snapshot_alignment - 1) / snapshot_alignment * snapshot_alignment;
}

Chunks cut_chunks(std::span<const layout::Block> blocks, std::uint64_t chunk_bytes, std::uint64_t inflight,
                  std::size_t piece_limit) {
  chunk_bytes = std::min(chunk_bytes, largest_chunk);
  Chunks out;
  Chunk chunk;
  std::uint64_t bytes = 0;
  const auto close = [&] {
    if (!chunk.ranges.empty())
      out.chunks.push_back(std::exchange(chunk, {}));
    bytes = 0;
  };
  for (std::uint32_t b = 0; b < blocks.size(); ++b) {
    const layout::Block& block = blocks[b];
    const std::size_t size = size_of(block.dtype);
    const auto total = static_cast<std::uint64_t>(layout::element_count(block));
    out.elements += total;
    out.snapshot_offsets.push_back(out.snapshot_bytes);
    out.snapshot_bytes += snapshot_bytes(block);

    const std::uint64_t step = range_elements(std::min(total, chunk_bytes / size), size, piece_limit, inflight);
    for (std::uint64_t first = 0; first < total; first += step) {
      const std::uint64_t count = std::min(step, total - first);
      const std::uint64_t worst = delta::worst_case_bytes(count, size, piece_limit);
      if (!chunk.ranges.empty() &&
          (chunk.window != block.window || bytes + count * size > chunk_bytes || worst > inflight - chunk.worst_case))
        close();
      chunk.window = block.window;
      chunk.ranges.push_back({b, first, count});
      chunk.worst_case += worst;
      bytes += count * size;
    }
  }
  close();
  return out;
}

} // namespace deltawire::sync
