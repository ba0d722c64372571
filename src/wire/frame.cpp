// Offsets and order of checks: FORMAT.md, section "Frame header".
#include "wire/frame.hpp"

#include "wire/encode.hpp"

#include <bit>
#include <concepts>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace deltawire::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian: swap the bytes here on this host");

constexpr std::array<char, 4> magic = {'D', 'L', 'T', 'W'};

namespace at {
constexpr std::size_t magic = 0;
constexpr std::size_t protocol = 4;
constexpr std::size_t type = 8;
constexpr std::size_t zero_a = 10;
constexpr std::size_t source = 12;
constexpr std::size_t session = 16;
constexpr std::size_t delivery = 24;
constexpr std::size_t sequence = 32;
constexpr std::size_t route = 40;
constexpr std::size_t zero_b = 44;
constexpr std::size_t payload_bytes = 48;
constexpr std::size_t payload_checksum = 56;
constexpr std::size_t header_checksum = 64;
static_assert(header_checksum + sizeof(std::uint64_t) == header_bytes);
} // namespace at

template <std::unsigned_integral T>
void put(HeaderBytes& bytes, std::size_t offset, T value) noexcept {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <std::unsigned_integral T>
T get(std::span<const std::byte, header_bytes> bytes, std::size_t offset) noexcept {
  T value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Zero for a type that no payload has.
std::uint64_t payload_limit(std::uint16_t type) noexcept {
  if (type == static_cast<std::uint16_t>(FrameType::round) || type == static_cast<std::uint16_t>(FrameType::flush))
    return max_data_payload;
  return type >= 1 && type <= 999 ? max_control_payload : 0;
}

} // namespace

HeaderBytes write_header(const FrameHeader& header) noexcept {
  HeaderBytes bytes{};
  std::memcpy(bytes.data() + at::magic, magic.data(), magic.size());
  put(bytes, at::protocol, protocol_version);
  put(bytes, at::type, header.type);
  put(bytes, at::source, header.source);
  put(bytes, at::session, header.session);
  put(bytes, at::delivery, header.delivery);
  put(bytes, at::sequence, header.sequence);
  put(bytes, at::route, header.route);
  put(bytes, at::payload_bytes, header.payload_bytes);
  put(bytes, at::payload_checksum, header.payload_checksum);
  put(bytes, at::header_checksum, checksum(std::span<const std::byte>(bytes).first(at::header_checksum)));
  return bytes;
}

Result<FrameHeader> read_header(std::span<const std::byte, header_bytes> bytes) {
  if (std::memcmp(bytes.data() + at::magic, magic.data(), magic.size()) != 0)
    return fail(Code::invalid_input, "frame header: starts with {:#010x}, not with \"DLTW\": the peer is not deltawire",
                get<std::uint32_t>(bytes, at::magic));
  if (const auto protocol = get<std::uint32_t>(bytes, at::protocol); protocol != protocol_version)
    return fail(Code::invalid_input,
                "frame header: protocol version {}, this build speaks {}: run the same version everywhere", protocol,
                protocol_version);
  if (checksum(bytes.first(at::header_checksum)) != get<std::uint64_t>(bytes, at::header_checksum))
    return fail(Code::invalid_input, "frame header: the checksum differs: bytes were changed or lost on the way");
  if (get<std::uint16_t>(bytes, at::zero_a) != 0 || get<std::uint32_t>(bytes, at::zero_b) != 0)
    return fail(Code::invalid_input, "frame header: reserved bytes are not zero");

  const FrameHeader header{
    .type = get<std::uint16_t>(bytes, at::type),
    .session = get<std::uint64_t>(bytes, at::session),
    .delivery = get<std::uint64_t>(bytes, at::delivery),
    .source = get<std::uint32_t>(bytes, at::source),
    .route = get<std::uint32_t>(bytes, at::route),
    .sequence = get<std::uint64_t>(bytes, at::sequence),
    .payload_bytes = get<std::uint64_t>(bytes, at::payload_bytes),
    .payload_checksum = get<std::uint64_t>(bytes, at::payload_checksum),
  };
  const std::uint64_t limit = payload_limit(header.type);
  if (limit == 0)
    return fail(Code::invalid_input, "frame header: type {} is neither a control message nor data", header.type);
  if (header.payload_bytes > limit)
    return fail(Code::limit_exceeded, "frame header: {} announces a payload of {} bytes, the limit is {}",
                type_name(header.type), header.payload_bytes, limit);
  return header;
}

std::uint64_t checksum(std::span<const std::byte> payload) noexcept {
  return XXH3_64bits(payload.data(), payload.size());
}

void describe_payload(FrameHeader& header, std::span<const std::byte> payload) noexcept {
  header.payload_bytes = payload.size();
  header.payload_checksum = checksum(payload);
}

Result<void> check_payload(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.size() != header.payload_bytes)
    return fail(Code::invalid_input, "{} from source {}, sequence {}: payload of {} bytes, its header says {}",
                type_name(header.type), header.source, header.sequence, payload.size(), header.payload_bytes);
  if (checksum(payload) != header.payload_checksum)
    return fail(Code::invalid_input,
                "{} from source {}, sequence {}: the checksum of its payload of {} bytes differs: bytes were changed",
                type_name(header.type), header.source, header.sequence, payload.size());
  return {};
}

} // namespace deltawire::wire
