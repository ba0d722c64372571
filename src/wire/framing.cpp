#include "wire/framing.hpp"

#include "wire/frame.hpp"

namespace deltawire::wire {
namespace {

Result<std::uint64_t> body_bytes(std::span<const std::byte> header) {
  if (header.size() != header_bytes)
    return fail(Code::invalid_input, "frame header: {} bytes, not {}", header.size(), header_bytes);
  Result<FrameHeader> read = read_header(header.first<header_bytes>());
  if (!read)
    return pass_on(std::move(read));
  return read->payload_bytes;
}

} // namespace

transport::Framing framing() noexcept {
  return {.header_bytes = header_bytes, .body_bytes = body_bytes};
}

} // namespace deltawire::wire
