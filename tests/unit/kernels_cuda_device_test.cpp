// Contract of kernels/cuda/device.hpp: the question never fails, and no device is never without a reason.
#include "catch.hpp"
#include "text_matchers.hpp"

#include "kernels/cuda/device.hpp"

using namespace deltawire;
using namespace deltawire::kernels::cuda;

TEST_CASE("devices are found, or there is a reason why there are none") {
  const Devices devices = find_devices();
  CAPTURE(devices.why_none);
  REQUIRE(devices.found.empty() == !devices.why_none.empty());
  for (std::size_t i = 0; i < devices.found.size(); ++i) {
    CHECK(devices.found[i].index == static_cast<int>(i));
    CHECK_FALSE(devices.found[i].name.empty());
    CHECK(devices.found[i].memory > 0);
    CHECK(devices.found[i].uuid.size() == 40);
  }
}

TEST_CASE("a build without CUDA says how to get one, and one with it what it was built for") {
  const Devices devices = find_devices();
  if (devices.libraries.empty())
    CHECK_THAT(devices.why_none, test::contains("-Dcuda=enabled"));
  else
    CHECK_THAT(devices.libraries, test::contains("sm_"));
}
