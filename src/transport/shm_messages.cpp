#include "transport/shm_messages.hpp"

namespace deltawire::transport {
namespace {

template <class Integer>
void put(std::byte* to, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <class Integer>
Integer get(const std::byte* from) {
  Integer value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value = static_cast<Integer>(value | std::to_integer<Integer>(from[i]) << (8 * i));
  return value;
}

} // namespace

std::array<std::byte, shm_head_bytes> write_shm_head(const ShmMessage& message) {
  std::array<std::byte, shm_head_bytes> head{};
  put(head.data(), static_cast<std::uint16_t>(message.kind));
  put(head.data() + 4, message.region);
  put(head.data() + 8, message.offset);
  put(head.data() + 16, message.length);
  return head;
}

Result<ShmMessage> read_shm_message(std::span<const std::byte> message) {
  if (message.size() < shm_head_bytes)
    return fail(Code::invalid_input, "a message of {} bytes, the least is {}", message.size(), shm_head_bytes);
  const auto kind = get<std::uint16_t>(message.data());
  const auto reserved = get<std::uint16_t>(message.data() + 2);
  const ShmMessage read{static_cast<ShmKind>(kind), get<std::uint32_t>(message.data() + 4),
                        get<std::uint64_t>(message.data() + 8), get<std::uint64_t>(message.data() + 16)};
  const std::size_t follows = message.size() - shm_head_bytes;
  const auto broken = [&] { return fail(Code::invalid_input, "a broken message of kind {}", kind); };
  if (reserved != 0 || (read.kind == ShmKind::end) != (read.length == 0) ||
      (read.kind != ShmKind::segment && read.offset != 0))
    return broken();
  switch (read.kind) {
  case ShmKind::bytes:
    if (read.region != 0 || read.length != follows || follows > most_inline_bytes)
      return broken();
    return read;
  case ShmKind::region:
  case ShmKind::segment:
    if (read.region >= most_regions || follows != 0)
      return broken();
    return read;
  case ShmKind::released:
  case ShmKind::end:
    if (read.region != 0 || follows != 0)
      return broken();
    return read;
  }
  return fail(Code::invalid_input, "a message of the unknown kind {}", kind);
}

} // namespace deltawire::transport
