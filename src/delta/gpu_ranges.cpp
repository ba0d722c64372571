#include "delta/gpu_ranges.hpp"

#include "delta/tiles.hpp"

#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

namespace deltawire::delta {
namespace {

using device::Home;
using kernels::cuda::Changes;
using kernels::cuda::Found;
using kernels::cuda::Part;

constexpr std::size_t largest_element = 8;
constexpr std::size_t least_copy = 4096; ///< bytes of memory that copies of ranges take

constexpr std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + 255) / 256 * 256;
}

std::size_t held_size(const OwnedBlock& owned) noexcept {
  return owned.cast ? kernels::size_before(*owned.cast) : size_of(owned.block->dtype);
}

} // namespace

bool compares_on_gpu(const std::optional<kernels::Cast>& cast) noexcept {
  return !cast || device::casts_on_gpu(*cast);
}

std::size_t GpuRanges::buffer_bytes(const Settings& settings) noexcept {
  return aligned(settings.parts * sizeof(Part)) + aligned(sizeof(Found)) + aligned(sizeof(std::uint64_t)) +
         aligned(settings.parts * sizeof(std::uint32_t)) + aligned(settings.room * sizeof(std::uint16_t)) +
         2 * aligned(settings.room * largest_element) + aligned(kernels::cuda::workspace_bytes(settings.parts));
}

void GpuRanges::lay_out(Buffers& buffers) const {
  std::byte* next = buffers.memory->data();
  const auto take = [&next](std::size_t bytes) { return std::exchange(next, next + aligned(bytes)); };
  buffers.parts = reinterpret_cast<Part*>(take(settings_.parts * sizeof(Part)));
  buffers.changes.found = reinterpret_cast<Found*>(take(sizeof(Found)));
  buffers.changes.digests = reinterpret_cast<std::uint64_t*>(take(sizeof(std::uint64_t)));
  buffers.changes.counts = reinterpret_cast<std::uint32_t*>(take(settings_.parts * sizeof(std::uint32_t)));
  buffers.changes.positions = reinterpret_cast<std::uint16_t*>(take(settings_.room * sizeof(std::uint16_t)));
  buffers.changes.before = take(settings_.room * largest_element);
  buffers.changes.after = take(settings_.room * largest_element);
  buffers.changes.room = settings_.room;
  buffers.workspace = take(kernels::cuda::workspace_bytes(settings_.parts));
}

Result<std::unique_ptr<GpuRanges>> GpuRanges::open(std::shared_ptr<device::Gpu> gpu, const Settings& settings) {
  assert(settings.parts > 0 && settings.room >= kernels::part_elements);
  std::unique_ptr<GpuRanges> made(new GpuRanges(std::move(gpu), settings));
  if (auto allocated = made->named(made->allocate()); !allocated)
    return pass_on(std::move(allocated));
  return made;
}

Result<void> GpuRanges::allocate() {
  auto stream = gpu_->open_stream();
  if (!stream)
    return pass_on(std::move(stream));
  stream_ = std::move(*stream);
  const std::size_t bytes = buffer_bytes(settings_);
  for (const auto& [buffers, home] : {std::pair(&gpu_side_, Home::device), std::pair(&host_side_, Home::pinned)}) {
    auto made = gpu_->allocate(home, bytes);
    if (!made)
      return pass_on(std::move(made));
    buffers->memory = std::move(*made);
  }
  lay_out(gpu_side_);
  lay_out(host_side_);
  return {};
}

GpuRanges::~GpuRanges() {
  if (!lost_)
    return;
  // Releasing any of it would wait for work that does not end, or give its memory to somebody else.
  for (auto* memory : {&gpu_side_.memory, &host_side_.memory, &packed_, &fetched_})
    (void)memory->release();
  (void)stream_.release();
}

/// Messages name the GPU.
Result<void> GpuRanges::named(Result<void> result) {
  if (result)
    return result;
  const std::string name = device::name_of(gpu_->identity());
  if (result.error().message.starts_with(name))
    return result;
  return fail(result.error().code, "{}: {}", name, result.error().message);
}

Result<void> GpuRanges::finish() {
  auto done = device::wait_until_idle(*stream_, std::chrono::steady_clock::now() + settings_.patience);
  lost_ = lost_ || (!done && done.error().code == Code::timed_out);
  return named(std::move(done));
}

/// At least so many bytes; what it held is gone.
Result<void> GpuRanges::reserve(std::unique_ptr<device::Memory>& memory, Home home, std::size_t bytes) {
  if (memory && memory->bytes() >= bytes)
    return {};
  memory.reset(); // stalls the GPU, and so it is not for every range that is a little larger than those before
  auto made = gpu_->allocate(home, std::bit_ceil(std::max(bytes, least_copy)));
  if (!made)
    return pass_on(std::move(made));
  memory = std::move(*made);
  return {};
}

Result<void> GpuRanges::wait_for(device::Event& event) {
  return named(stream_->wait_for(event));
}

/// Cuts a range into tables of parts, one of each run in each tile part, and calls launch() with each of them uploaded.
/// Element e goes to snapshot + e * size. The next table is written when the launch's work is done: launch() waits.
template <class Launch>
Result<void> GpuRanges::for_each_table(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count,
                                       std::byte* snapshot, Launch&& launch) {
  const auto held = static_cast<layout::Index>(held_size(owned));
  const std::size_t size = compares_on_gpu(owned.cast) ? size_of(owned.block->dtype) : held_size(owned);
  Walk walk(*owned.block);
  Result<void> launched{};
  const auto flush = [&] {
    if (launched)
      launched = named(stream_->copy(gpu_side_.parts, host_side_.parts, parts_ * sizeof(Part)));
    if (launched)
      launched = named(launch());
    parts_ = 0;
    origins_.clear();
  };
  parts_ = 0;
  origins_.clear();
  for_each_tile_part(first, first + count, [&](std::uint64_t tile_part, std::size_t length) {
    for_each_run(walk, tile_part, length, [&](const Run& run, std::uint64_t from, std::size_t elements) {
      if (!launched)
        return;
      if (parts_ == settings_.parts)
        flush();
      const auto inside = static_cast<layout::Index>(tile_part + from - run.first);
      Part& part = host_side_.parts[parts_++];
      part = {};
      part.now = owned.local + (run.local + inside * walk.local_stride()) * held;
      part.snapshot = snapshot + (tile_part + from) * size;
      part.slot = static_cast<std::uint64_t>(run.slot + inside * walk.slot_stride());
      part.now_stride = walk.local_stride();
      part.slot_stride = walk.slot_stride();
      part.elements = static_cast<std::uint32_t>(elements);
      origins_.push_back({tile_part, static_cast<std::uint16_t>(from)});
    });
  });
  if (launched && parts_ > 0)
    flush();
  return launched;
}

/// Compares the table's parts, as many at a time as there is room for what they change.
Result<void> GpuRanges::diff(std::size_t size, device::Elements elements) {
  const Changes& from = gpu_side_.changes;
  const Changes& to = host_side_.changes;
  const std::size_t parts = parts_;
  for (std::size_t next = 0; next < parts;) {
    const std::size_t count = parts - next;
    auto queued = stream_->diff_and_refresh(gpu_side_.parts + next, count, elements, from, gpu_side_.workspace);
    if (queued)
      queued = stream_->copy(to.found, from.found, sizeof(Found));
    if (queued)
      queued = stream_->copy(to.counts, from.counts, count * sizeof(std::uint32_t));
    if (queued)
      queued = finish();
    if (!queued)
      return queued;
    const auto saved = static_cast<std::size_t>(to.found->saved);
    const auto taken = static_cast<std::size_t>(to.found->taken);
    if (taken == 0 || taken > count || saved > settings_.room)
      return fail(Code::internal, "comparing {} parts took {} of them, with {} changes", count, taken, saved);
    if (saved > 0) {
      queued = stream_->copy(to.positions, from.positions, saved * sizeof(std::uint16_t));
      if (queued)
        queued = stream_->copy(to.before, from.before, saved * size);
      if (queued)
        queued = stream_->copy(to.after, from.after, saved * size);
      if (queued)
        queued = finish();
      if (!queued)
        return queued;
      keep(next, taken, saved, size);
    }
    next += taken;
  }
  return {};
}

/// Takes over what a launch found in parts [from, from + taken).
void GpuRanges::keep(std::size_t from, std::size_t taken, std::size_t saved, std::size_t size) {
  const Changes& found = host_side_.changes;
  const std::uint16_t* next = found.positions;
  for (std::size_t part = 0; part < taken; ++part) {
    const std::uint32_t changed = found.counts[part];
    if (changed == 0)
      continue;
    const Origin& origin = origins_[from + part];
    if (tiles_.empty() || tiles_.back().first != origin.tile_part)
      tiles_.push_back({origin.tile_part, 0});
    tiles_.back().count += changed;
    for (std::uint32_t i = 0; i < changed; ++i)
      positions_.push_back(static_cast<std::uint16_t>(next[i] + origin.offset));
    next += changed;
  }
  before_.insert(before_.end(), found.before, found.before + saved * size);
  after_.insert(after_.end(), found.after, found.after + saved * size);
}

Result<Captured> GpuRanges::capture_changes(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count,
                                            PieceEncoder* encoder, PositionLog& log) {
  const std::size_t size = size_of(owned.block->dtype);
  tiles_.clear();
  positions_.clear();
  before_.clear();
  after_.clear();
  std::uint64_t* const digest = gpu_side_.changes.digests;
  Result<void> done = named(stream_->fill(digest, 0, sizeof(*digest)));
  if (done)
    done = for_each_table(owned, first, count, owned.snapshot, [&] { return diff(size, {size, owned.cast}); });
  if (done)
    done = named(stream_->copy(host_side_.changes.digests, digest, sizeof(*digest)));
  if (done)
    done = finish();
  if (!done)
    return pass_on(std::move(done));
  const Captured captured{positions_.size(), *host_side_.changes.digests};
  if (captured.changed == 0)
    return captured;

  Result<void> fetched{};
  if (encoder)
    // All of the range is refreshed by now.
    encoder->start_range(*owned.block, first, count, [&]() -> const std::byte* {
      auto snapshot = fetch_snapshot(owned, first, count);
      if (snapshot)
        return *snapshot;
      fetched = pass_on(std::move(snapshot));
      return element_zero(first, size); // of what was fetched before: nothing will come of it
    });
  std::size_t at = 0;
  for (const TileChanges& tile : tiles_) {
    const auto positions = std::span<const std::uint16_t>(positions_).subspan(at, tile.count);
    log.add_tile(tile.first, positions);
    if (encoder)
      encoder->add_changes(tile.first, positions, after_.data() + at * size, before_.data() + at * size);
    at += tile.count;
  }
  if (encoder)
    encoder->finish_range();
  if (!fetched)
    return pass_on(std::move(fetched));
  return captured;
}

Result<Captured> GpuRanges::capture_all(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count) {
  const std::size_t size = size_of(owned.block->dtype);
  std::uint64_t* const digest = gpu_side_.changes.digests;
  Result<void> done = named(stream_->fill(digest, 0, sizeof(*digest)));
  if (done)
    done = for_each_table(owned, first, count, owned.snapshot, [&] {
      auto taken = stream_->take(gpu_side_.parts, parts_, {size, owned.cast}, digest);
      return taken ? finish() : taken;
    });
  if (done)
    done = named(stream_->copy(host_side_.changes.digests, digest, sizeof(*digest)));
  if (done)
    done = finish();
  if (!done)
    return pass_on(std::move(done));
  return Captured{count, *host_side_.changes.digests};
}

/// Where element 0 of the block would lie in what was fetched.
std::byte* GpuRanges::element_zero(std::uint64_t first, std::size_t size) const noexcept {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(fetched_->data()) - first * size);
}

Result<std::byte*> GpuRanges::fetch_snapshot(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count) {
  const std::size_t size = size_of(owned.block->dtype);
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  Result<void> done = named(reserve(fetched_, Home::pinned, bytes));
  if (done)
    done = named(stream_->copy(fetched_->data(), owned.snapshot + first * size, bytes));
  if (done)
    done = finish();
  if (!done)
    return pass_on(std::move(done));
  return element_zero(first, size);
}

Result<void> GpuRanges::store_snapshot(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count) {
  const std::size_t size = size_of(owned.block->dtype);
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  auto queued = named(stream_->copy(owned.snapshot + first * size, fetched_->data(), bytes));
  return queued ? finish() : queued;
}

Result<OwnedBlock> GpuRanges::fetch_memory(const OwnedBlock& owned, std::uint64_t first, std::uint64_t count) {
  const bool casts = compares_on_gpu(owned.cast);
  const std::size_t size = casts ? size_of(owned.block->dtype) : held_size(owned);
  const std::size_t bytes = static_cast<std::size_t>(count) * size;
  Result<void> done = named(reserve(packed_, Home::device, bytes));
  if (done)
    done = named(reserve(fetched_, Home::pinned, bytes));
  if (done) {
    const auto zero = reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(packed_->data()) - first * size);
    done = for_each_table(owned, first, count, zero, [&] {
      auto taken = stream_->take(gpu_side_.parts, parts_, {size, casts ? owned.cast : std::nullopt}, nullptr);
      return taken ? finish() : taken;
    });
  }
  if (done)
    done = named(stream_->copy(fetched_->data(), packed_->data(), bytes));
  if (done)
    done = finish();
  if (!done)
    return pass_on(std::move(done));
  // The same block, dense in memory.
  fetched_block_ = *owned.block;
  fetched_block_.local_offset = -static_cast<layout::Index>(first);
  layout::Index stride = 1;
  for (std::size_t d = fetched_block_.extents.size(); d-- > 0; stride *= fetched_block_.extents[d])
    fetched_block_.local_strides[d] = stride;
  return OwnedBlock{&fetched_block_, fetched_->data(), owned.snapshot, casts ? std::nullopt : owned.cast};
}

} // namespace deltawire::delta
