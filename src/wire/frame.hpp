// Frames: the only thing that crosses a connection (design, section 6.3). Layout in bytes: FORMAT.md.
//
// A frame is a fixed header with a checksum of its own, checked before any length in it is believed, and a payload with
// a checksum in the header, checked before the payload is decoded. Control messages and data travel in the same frames.
#pragma once

#include "result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace deltawire::wire {

inline constexpr std::size_t header_bytes = 72;
inline constexpr std::uint32_t protocol_version = 4;

/// Payload limits, by kind: nothing larger is read or allocated.
inline constexpr std::uint64_t max_control_payload = 1ull << 30;
inline constexpr std::uint64_t max_data_payload = 1ull << 40;

/// What the payload is. Control messages have the numbers of their structs in messages.hpp (1..999).
enum class FrameType : std::uint16_t {
  round = 1000, ///< gather: one rank's share of a round, pieces back to back; sequence = round number
  flush = 1001, ///< root to worker: a sealed flush of pieces; sequence counts from 0 within a delivery and route
};

struct FrameHeader {
  std::uint16_t type = 0;
  std::uint64_t session = 0;
  std::uint64_t delivery = 0;
  std::uint32_t source = 0; ///< rank that made it
  std::uint32_t route = 0;
  std::uint64_t sequence = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0; ///< XXH3-64 of the payload

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

using HeaderBytes = std::array<std::byte, header_bytes>;

/// Serialises, little-endian, with magic, protocol version and header checksum.
[[nodiscard]] HeaderBytes write_header(const FrameHeader& header) noexcept;

/// Checks magic, protocol version, header checksum and the payload limit of the type, in this order.
[[nodiscard]] Result<FrameHeader> read_header(std::span<const std::byte, header_bytes> bytes);

[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> payload) noexcept;

/// Fills in what a header says of its payload: its bytes and their checksum.
void describe_payload(FrameHeader& header, std::span<const std::byte> payload) noexcept;

/// Fails (Code::invalid_input) when the payload is not what the header's checksum says.
[[nodiscard]] Result<void> check_payload(const FrameHeader& header, std::span<const std::byte> payload);

} // namespace deltawire::wire
