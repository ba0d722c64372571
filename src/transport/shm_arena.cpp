#include "transport/shm_arena.hpp"

#include "transport/shm_messages.hpp"

#include <algorithm>
#include <cstring>

namespace deltawire::transport {
namespace {

constexpr std::uint32_t region_blocks = 32; ///< of every region but the last

bool same_owner(const std::weak_ptr<const Buffer>& a, const std::shared_ptr<const Buffer>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

} // namespace

Arena::Placed::Placed(Arena& arena, std::vector<std::uint32_t> blocks, std::uint64_t bytes)
  : arena_(arena), blocks_(std::move(blocks)), bytes_(bytes), filled_(blocks_.size()) {}

Arena::Placed::~Placed() {
  arena_.give_back(blocks_);
}

Arena::Segment Arena::Placed::segment(std::size_t index) const noexcept {
  const std::uint32_t block = blocks_[index];
  return {block / region_blocks, std::uint64_t{block % region_blocks} * block_bytes,
          std::min<std::uint64_t>(block_bytes, bytes_ - index * block_bytes)};
}

void Arena::Placed::fill(std::size_t index, const Buffer& body) {
  const std::lock_guard lock(mutex_);
  if (filled_[index])
    return;
  const Segment where = segment(index);
  std::memcpy(arena_.address(where), body.data() + index * block_bytes, where.bytes);
  filled_[index] = true;
  arena_.copied_ += where.bytes;
}

Arena::Arena(std::uint64_t most_bytes)
  : most_blocks_(static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(most_bytes / block_bytes, 1, std::uint64_t{region_blocks} * most_regions))) {}

Result<std::shared_ptr<Arena>> Arena::make(std::uint64_t most_bytes) {
  auto arena = std::make_shared<Arena>(most_bytes);
  if (auto grown = arena->grow(); !grown)
    return pass_on(std::move(grown));
  return arena;
}

std::shared_ptr<Arena::Placed> Arena::place(const std::shared_ptr<const Buffer>& body) {
  const std::size_t needed = (body->size() + block_bytes - 1) / block_bytes;
  std::vector<Known> idle; // ends without the lock: it takes the lock to give back
  for (bool also_of_living_bodies = false;;) {
    idle.clear();
    const std::lock_guard lock(mutex_);
    for (const Known& known : known_)
      if (same_owner(known.body, body))
        return known.placed;
    if (needed > most_blocks_) { // however many others end
      ++without_room_;
      return nullptr;
    }
    idle = take_idle(also_of_living_bodies);
    if (!idle.empty())
      continue;
    while (free_.size() < needed && blocks_ < most_blocks_)
      if (!grow())
        break;
    if (free_.size() < needed && !std::exchange(also_of_living_bodies, true))
      continue;
    if (free_.size() < needed) {
      ++without_room_;
      return nullptr;
    }
    const auto first = free_.end() - static_cast<std::ptrdiff_t>(needed);
    auto placed = std::make_shared<Placed>(*this, std::vector<std::uint32_t>(first, free_.end()), body->size());
    free_.erase(first, free_.end());
    peak_blocks_ = std::max<std::uint64_t>(peak_blocks_, blocks_ - free_.size());
    known_.push_back({body, placed});
    return placed;
  }
}

/// What no connection needs any more. With the lock held, when nobody can come to hold a place but by place().
std::vector<Arena::Known> Arena::take_idle(bool also_of_living_bodies) {
  std::vector<Known> idle;
  std::erase_if(known_, [&](Known& known) {
    if (known.placed.use_count() != 1 || (!also_of_living_bodies && !known.body.expired()))
      return false;
    idle.push_back(std::move(known));
    return true;
  });
  return idle;
}

/// With the lock held, or before anybody else knows us.
Result<void> Arena::grow() {
  const std::uint32_t blocks = std::min(region_blocks, most_blocks_ - blocks_);
  auto made = Region::make(std::uint64_t{blocks} * block_bytes);
  if (!made)
    return pass_on(std::move(made));
  regions_.push_back(std::move(*made));
  for (std::uint32_t i = blocks; i-- > 0;)
    free_.push_back(blocks_ + i);
  blocks_ += blocks;
  return {};
}

std::byte* Arena::address(const Segment& segment) {
  const std::lock_guard lock(mutex_);
  return regions_[segment.region].data() + segment.offset;
}

void Arena::give_back(const std::vector<std::uint32_t>& blocks) {
  const std::lock_guard lock(mutex_);
  free_.insert(free_.end(), blocks.rbegin(), blocks.rend());
}

int Arena::descriptor(std::uint32_t region) {
  const std::lock_guard lock(mutex_);
  return regions_[region].descriptor();
}

std::uint64_t Arena::region_bytes(std::uint32_t region) {
  const std::lock_guard lock(mutex_);
  return regions_[region].size();
}

ShmCounters Arena::counters() {
  const std::lock_guard lock(mutex_);
  return {.copied = copied_,
          .in_use = (blocks_ - free_.size()) * block_bytes,
          .most_in_use = peak_blocks_ * block_bytes,
          .without_room = without_room_};
}

} // namespace deltawire::transport
