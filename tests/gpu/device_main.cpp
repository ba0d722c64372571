// Runs the tests where there is a device; elsewhere says why there is none, and counts as skipped (exit status 77).
#if !__has_include(<catch2/catch_session.hpp>)
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#else
#include <catch2/catch_session.hpp>
#endif

#include "kernels/cuda/device.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  const deltawire::kernels::cuda::Devices devices = deltawire::kernels::cuda::find_devices();
  if (devices.found.empty()) {
    std::printf("skipped: %s\n", devices.why_none.c_str());
    return 77;
  }
  std::printf("on %s\n", devices.found.front().name.c_str());
  return Catch::Session().run(argc, argv);
}
