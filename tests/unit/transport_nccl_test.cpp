// Contract of transport/nccl_communicator.hpp on any machine: asking never fails, and no NCCL or no device is never
// without a reason. What it does on a device is for tests/gpu.
#include "catch.hpp"
#include "refusal.hpp"

#include "kernels/cuda/device.hpp"
#include "transport/nccl_communicator.hpp"

#include <fmt/format.h>

using namespace deltawire;
using namespace deltawire::transport;

TEST_CASE("there is NCCL, or a reason why there is none") {
  const Nccl nccl = find_nccl();
  CAPTURE(nccl.version, nccl.why_none);
  REQUIRE(nccl.version.empty() == !nccl.why_none.empty());
  fmt::print("NCCL: {}\n", nccl.version.empty() ? "none: " + nccl.why_none : nccl.version);
}

TEST_CASE("a communicator without NCCL or without a device is refused, with the reason") {
  const Nccl nccl = find_nccl();
  const kernels::cuda::Devices devices = kernels::cuda::find_devices();
  const auto made = make_nccl_communicator({});
  if (nccl.version.empty())
    test::check_refused(made, Code::unsupported, {"no NCCL: ", nccl.why_none.c_str()});
  else if (devices.found.empty())
    test::check_refused(made, Code::unsupported, {"no GPU: ", devices.why_none.c_str()});
  else
    CHECK(made);
  test::check_refused(make_nccl_communicator({.device = 10'000}), Code::unsupported, {"no "});
}
