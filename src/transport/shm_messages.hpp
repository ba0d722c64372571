// What two ends of a shared-memory connection say over their Unix socket (src/wire/FORMAT.md, "Shared memory"). Pure.
#pragma once

#include "result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::transport {

enum class ShmKind : std::uint16_t {
  bytes = 1,    ///< `length` bytes of frames, which follow in the same message
  region = 2,   ///< `region` has `length` bytes; the message carries its descriptor
  segment = 3,  ///< the next `length` bytes of frames lie at `offset` of `region`
  released = 4, ///< `length` more segments of the reader of this, the oldest first, have been read
  end = 5,      ///< no more frames come
};

struct ShmMessage {
  ShmKind kind = ShmKind::bytes;
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const ShmMessage&, const ShmMessage&) = default;
};

inline constexpr std::size_t shm_head_bytes = 24;
/// Of frames, in one message.
inline constexpr std::size_t most_inline_bytes = 64 << 10;
/// Of one connection and direction.
inline constexpr std::uint32_t most_regions = 256;

[[nodiscard]] std::array<std::byte, shm_head_bytes> write_shm_head(const ShmMessage& message);

/// Checks all that the message says about itself: its kind, that fields it has no use for are 0, and that it has the
/// length that it says, within the limits. Whether the region is there and holds the segment is the reader's to check.
[[nodiscard]] Result<ShmMessage> read_shm_message(std::span<const std::byte> message);

} // namespace deltawire::transport
