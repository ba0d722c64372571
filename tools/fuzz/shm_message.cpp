// What a peer says over the Unix socket of a shared-memory connection. Input: a message.
#include "transport/shm_messages.hpp"

#include "target.hpp"

#include <algorithm>

namespace deltawire::fuzz {

bool accepts(std::span<const std::byte> bytes) {
  using transport::ShmKind;
  const AllocationBound bound(4096);
  const auto read = transport::read_shm_message(bytes);
  if (!read) {
    require(read.error().code == Code::invalid_input, "a code of input");
    return false;
  }
  const auto head = transport::write_shm_head(*read);
  require(std::ranges::equal(head, bytes.first(head.size())), "a head comes back, byte for byte");
  const std::size_t follows = bytes.size() - head.size();
  require(follows == (read->kind == ShmKind::bytes ? read->length : 0), "bytes follow where the head says so");
  require(follows <= transport::most_inline_bytes, "no more than fit");
  require((read->length == 0) == (read->kind == ShmKind::end), "all but the end have a length");
  require(read->region < transport::most_regions, "a region that may be");
  return true;
}

} // namespace deltawire::fuzz
