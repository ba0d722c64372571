#include "actors/rank_work.hpp"

#include "wire/frame.hpp"

#include <algorithm>
#include <new>
#include <string_view>

namespace deltawire::actors {
namespace {

constexpr std::size_t alignment = 64;
/// A piece is never larger, whatever the caps: offers name pieces by 32-bit lengths, and larger pieces gain nothing.
constexpr std::uint64_t largest_piece = 64ull << 20;
constexpr std::uint64_t largest_chunk = 256ull << 20;

/// The most elements of `size` bytes whose worst case fits `inflight`, at most `wanted`. At least 1 (piece_limit() saw
/// to it).
std::uint64_t fitting_elements(std::uint64_t wanted, std::size_t size, std::size_t piece_limit,
                               std::uint64_t inflight) {
  std::uint64_t fits = 1, above = wanted + 1;
  while (above - fits > 1) {
    const std::uint64_t middle = fits + (above - fits) / 2;
    (delta::worst_case_bytes(middle, size, piece_limit) <= inflight ? fits : above) = middle;
  }
  return fits;
}

} // namespace

void AlignedDelete::operator()(std::byte* bytes) const noexcept {
  ::operator delete[](bytes, std::align_val_t{alignment});
}

AlignedBytes allocate_aligned(std::size_t bytes) {
  return AlignedBytes(
    static_cast<std::byte*>(::operator new[](std::max<std::size_t>(bytes, 1), std::align_val_t{alignment})));
}

Result<std::size_t> piece_limit(std::uint64_t inflight, std::uint64_t max_round, std::uint64_t flush_cap,
                                std::size_t largest) {
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
  return static_cast<std::size_t>(std::min({inflight, max_round, flush_cap - wire::header_bytes, largest_piece}));
}

std::shared_ptr<RankWork> RankWork::make(std::uint32_t rank, std::vector<layout::Block> blocks, std::uint32_t windows,
                                         std::uint64_t chunk_bytes, std::uint64_t inflight, std::size_t piece_limit,
                                         std::vector<const std::byte*> parameters) {
  auto work = std::make_shared<RankWork>();
  work->rank = rank;
  work->windows = windows;
  work->piece_limit = piece_limit;
  work->blocks = std::move(blocks);
  work->memory.parameters = std::move(parameters);

  chunk_bytes = std::min(chunk_bytes, largest_chunk);
  Chunk chunk;
  std::uint64_t bytes = 0;
  const auto close = [&] {
    if (!chunk.ranges.empty())
      work->chunks.push_back(std::exchange(chunk, {}));
    bytes = 0;
  };
  std::size_t snapshot_bytes = 0;
  for (std::uint32_t b = 0; b < work->blocks.size(); ++b) {
    const layout::Block& block = work->blocks[b];
    const std::size_t size = size_of(block.dtype);
    const auto total = static_cast<std::uint64_t>(layout::element_count(block));
    work->elements += total;
    work->memory.snapshot_offsets.push_back(snapshot_bytes);
    snapshot_bytes += (total * size + alignment - 1) / alignment * alignment;

    const std::uint64_t wanted = std::max<std::uint64_t>(1, std::min(total, chunk_bytes / size));
    std::uint64_t step = fitting_elements(wanted, size, piece_limit, inflight);
    if (step > delta::tile_elements)
      step -= step % delta::tile_elements; // whole tiles where there is room for one
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
  work->memory.snapshot = allocate_aligned(snapshot_bytes);
  work->memory.logs.resize(work->chunks.size());
  return work;
}

delta::OwnedBlock RankWork::owned(std::uint32_t b) {
  const layout::Block& block = blocks[b];
  return {&block, memory.parameters[block.parameter], memory.snapshot.get() + memory.snapshot_offsets[b]};
}

} // namespace deltawire::actors
