// A build without NCCL.
#include "transport/nccl_communicator.hpp"

namespace deltawire::transport {

Nccl find_nccl() {
  return {"", "this deltawire was built without NCCL (meson setup -Dnccl=enabled)"};
}

Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclSettings&) {
  return fail(Code::unsupported, "no NCCL: {}", find_nccl().why_none);
}

} // namespace deltawire::transport
