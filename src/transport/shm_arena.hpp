// What a process sends over shared memory lies here while peers read it: regions that grow with use up to a limit, and
// are used again and again. A body that goes to several peers is copied once, and lies here until the last of them has
// read it, or is gone.
//
// There is no waiting for room: a body that finds none is sent another way, so that a peer that stands still holds up
// nobody else. Thread-safe.
#pragma once

#include "transport/shm_region.hpp"
#include "transport/transport.hpp"

#include <atomic>
#include <deque>
#include <mutex>

namespace deltawire::transport {

class Arena {
public:
  /// The unit of room; a body's last block is rarely full.
  static constexpr std::size_t block_bytes = 1 << 20;

  /// At most so many bytes. Makes the first region at once, so that a system that cannot share memory is found out:
  /// fails as Region::make.
  [[nodiscard]] static Result<std::shared_ptr<Arena>> make(std::uint64_t most_bytes);

  explicit Arena(std::uint64_t most_bytes);

  /// A part of a region, at most a block.
  struct Segment {
    std::uint32_t region = 0; ///< counts from 0
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  /// Room for a body. Its blocks are free again when nobody holds it any more. Must not outlive the arena.
  class Placed {
  public:
    Placed(Arena& arena, std::vector<std::uint32_t> blocks, std::uint64_t bytes);
    Placed(const Placed&) = delete;
    Placed& operator=(const Placed&) = delete;
    ~Placed();

    [[nodiscard]] std::size_t segments() const noexcept { return blocks_.size(); }
    [[nodiscard]] Segment segment(std::size_t index) const noexcept;
    /// Sees to it that the segment has its bytes of the body: copies them unless somebody has.
    void fill(std::size_t index, const Buffer& body);

  private:
    Arena& arena_;
    const std::vector<std::uint32_t> blocks_;
    const std::uint64_t bytes_;
    std::mutex mutex_;
    std::vector<bool> filled_;
  };

  /// Where the body lies: the same place for all who hold the same body. Null where there is no room.
  [[nodiscard]] std::shared_ptr<Placed> place(const std::shared_ptr<const Buffer>& body);

  /// To give to peers; of a region that a segment named.
  [[nodiscard]] int descriptor(std::uint32_t region);
  [[nodiscard]] std::uint64_t region_bytes(std::uint32_t region);

  [[nodiscard]] ShmCounters counters();

private:
  /// A body that was placed. Its place is kept as long as somebody holds the body and might send it to the next peer.
  struct Known {
    std::weak_ptr<const Buffer> body;
    std::shared_ptr<Placed> placed;
  };

  [[nodiscard]] Result<void> grow();
  [[nodiscard]] std::vector<Known> take_idle(bool also_of_living_bodies);
  [[nodiscard]] std::byte* address(const Segment& segment);
  void give_back(const std::vector<std::uint32_t>& blocks);

  const std::uint32_t most_blocks_;
  std::mutex mutex_;
  std::deque<Region> regions_;
  std::uint32_t blocks_ = 0;        ///< of all regions
  std::vector<std::uint32_t> free_; ///< the one that was used last is taken first: it may be in a cache
  std::uint64_t peak_blocks_ = 0;
  std::uint64_t without_room_ = 0;
  std::atomic<std::uint64_t> copied_ = 0;
  std::vector<Known> known_; ///< ends first, and gives back
};

} // namespace deltawire::transport
