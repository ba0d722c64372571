// Memory of a GPU is refused where it is handed over, with a stand-in for the driver's library: what the real one
// answers is for a machine that has it. A process of its own, which has no driver when it begins.

#include "calls.hpp"
#include "catch.hpp"
#include "unit/text_matchers.hpp"

#include "kernels/cuda/pointer.hpp"

#include <cstdint>
#include <cstdio>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace deltawire;
using namespace deltawire::test;
using kernels::cuda::device_of;

namespace {

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address); // never looked into
}

void* const on_device = at(0x7000'0000'0010);
void* const managed = at(0x7000'0000'0020);
void* const pinned = at(0x7000'0000'0030);

/// From the first call on this process has a driver.
void load_driver() {
  static void* const driver = [] {
    CHECK_FALSE(device_of(on_device)); // no driver, and so no memory of a device
    return dlopen(DELTAWIRE_FAKE_DRIVER, RTLD_NOW);
  }();
  INFO((driver == nullptr ? dlerror() : ""));
  REQUIRE(driver != nullptr);
}

} // namespace

TEST_CASE("memory of a device is told from the host's, where the process has a driver") {
  load_driver();
  const int own = 0;
  CHECK(device_of(on_device) == 3);
  CHECK_FALSE(device_of(managed)); // the host reads it too
  CHECK_FALSE(device_of(pinned));
  CHECK_FALSE(device_of(&own));
  CHECK_FALSE(device_of(nullptr));
}

TEST_CASE("parameters on a device are refused where they are handed over, and change nothing") {
  load_driver();
  const std::string path =
    (std::filesystem::temp_directory_path() / ("deltawire-device-memory-" + std::to_string(::getpid()) + ".toml"))
      .string();
  std::ofstream(path) << "[transport]\nmaster = \"127.0.0.1:1\"\n[actors]\ngather_queue = { transport = \"inproc\" }\n"
                         "sender = { transport = \"inproc\" }\n";
  Publisher publisher = Publisher::open(path, {.rank = 0, .world = 1});
  Subscriber subscriber = Subscriber::open(path, {.worker = 0});
  std::remove(path.c_str());
  const std::uint16_t value = 0;
  CHECK_THAT(error_of(Code::unsupported,
                      [&] {
                        publisher.add({"w", DType::bf16, {1}, on_device, {}});
                      }),
             contains("add('w'): its memory is of GPU 3"));
  publisher.add({"w", DType::bf16, {1}, &value, {}}); // not taken by the refused call
  publisher.add({"managed", DType::bf16, {1}, managed, {}});
  publisher.add({"pinned", DType::bf16, {1}, pinned, {}});
  CHECK_THAT(error_of(Code::unsupported, [&] { publisher.rebind("w", on_device); }),
             contains("rebind('w'): its memory is of GPU 3"));
  CHECK_THAT(error_of(Code::unsupported,
                      [&] {
                        subscriber.bind({"w", DType::bf16, {1}, on_device, {}});
                      }),
             contains("bind('w'): its memory is of GPU 3"));
}
