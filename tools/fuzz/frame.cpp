// What a connection brings: a frame's header, found by its framing, and its payload. Input: a byte of which bit 0 says
// that the header's checksum is made right and bit 1 that the payload's is (a liar's frame); header; payload.
#include "wire/frame.hpp"

#include "target.hpp"
#include "wire/encode.hpp"
#include "wire/framing.hpp"

#include <algorithm>
#include <cstring>

namespace deltawire::fuzz {
namespace {

constexpr std::size_t payload_checksum_at = 56;
constexpr std::size_t header_checksum_at = 64;

void put(wire::HeaderBytes& bytes, std::size_t at, std::uint64_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

} // namespace

bool accepts(std::span<const std::byte> bytes) {
  Input input(bytes);
  const unsigned repairs = input.u8();
  const transport::Framing framing = wire::framing();
  require(framing.header_bytes == wire::header_bytes, "the framing has the frame's header");
  if (input.rest().size() < wire::header_bytes) {
    require(!framing.body_bytes(input.rest()), "a header that is cut short is refused");
    return false;
  }
  wire::HeaderBytes header;
  std::ranges::copy(input.rest().first(wire::header_bytes), header.begin());
  const auto payload = input.rest().subspan(wire::header_bytes);
  if ((repairs & 2) != 0)
    put(header, payload_checksum_at, wire::checksum(payload));
  if ((repairs & 1) != 0)
    put(header, header_checksum_at, wire::checksum(std::span(header).first(header_checksum_at)));

  const AllocationBound bound(4096);
  const auto read = wire::read_header(header);
  const auto body = framing.body_bytes(header);
  require(read.has_value() == body.has_value(), "header and framing agree");
  if (!read) {
    require(read.error().code == Code::invalid_input || read.error().code == Code::limit_exceeded, "a code of input");
    return false;
  }
  require(*body == read->payload_bytes, "a body is as long as the header says");
  require(wire::write_header(*read) == header, "a header comes back, byte for byte");
  require(*body <= wire::max_data_payload, "no payload is past the limit");
  require(!wire::type_name(read->type).empty(), "every type has a name");
  const bool whole = wire::check_payload(*read, payload).has_value();
  require(whole == (payload.size() == read->payload_bytes && wire::checksum(payload) == read->payload_checksum),
          "a payload is what its header says, or refused");
  return whole;
}

} // namespace deltawire::fuzz
