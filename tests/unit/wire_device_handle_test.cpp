// Contract of wire/device_handle.hpp: the bytes are those of FORMAT.md, what it says MUST hold is checked, and every
// handle comes back as it was.
#include "catch.hpp"
#include "random.hpp"
#include "refusal.hpp"

#include "wire/device_handle.hpp"

#include <vector>

using namespace deltawire;
using namespace deltawire::wire;

namespace {

DeviceHandle usual() {
  DeviceHandle handle;
  handle.device[0] = std::byte{0xAB};
  handle.device[15] = std::byte{0xCD};
  handle.handle[0] = std::byte{1};
  handle.handle[63] = std::byte{2};
  handle.offset = 0x0000'0102'0304'0506;
  handle.size = 0x0000'0010'2030'4050;
  return handle;
}

} // namespace

TEST_CASE("a device handle has the bytes of FORMAT.md") {
  std::vector<std::byte> expected(96, std::byte{0});
  expected[0] = std::byte{0xAB};
  expected[15] = std::byte{0xCD};
  expected[16] = std::byte{1};
  expected[79] = std::byte{2};
  for (std::size_t i = 0; i < 6; ++i)
    expected[80 + i] = static_cast<std::byte>(6 - i);
  for (std::size_t i = 0; i < 5; ++i)
    expected[88 + i] = static_cast<std::byte>(0x50 - 0x10 * i);
  const auto bytes = encode(usual());
  CHECK(std::vector<std::byte>(bytes.begin(), bytes.end()) == expected);
}

TEST_CASE("device handles come back as they were, and any other length is refused") {
  CAPTURE(test::seed());
  auto random = test::generator(9300000);
  for (int run = 0; run < 2000; ++run) {
    DeviceHandle handle;
    for (std::byte& byte : handle.device)
      byte = static_cast<std::byte>(random());
    for (std::byte& byte : handle.handle)
      byte = static_cast<std::byte>(random());
    handle.size = 1 + random() % (most_device_bytes >> random() % 48);
    handle.offset = random() % (most_device_bytes - handle.size + 1);
    const auto bytes = encode(handle);
    const auto decoded = decode_device_handle(bytes);
    REQUIRE(decoded);
    REQUIRE(*decoded == handle);
    const std::size_t shorter = random() % bytes.size();
    REQUIRE_FALSE(decode_device_handle(std::span(bytes).first(shorter)));
    std::vector<std::byte> longer(bytes.begin(), bytes.end());
    longer.resize(longer.size() + 1 + random() % 100);
    REQUIRE_FALSE(decode_device_handle(longer));
  }
}

TEST_CASE("a device handle that cannot be is refused") {
  const auto refused = [](const auto& change, const char* text) {
    DeviceHandle handle = usual();
    change(handle);
    test::check_refused(decode_device_handle(encode(handle)), Code::invalid_input, {text});
  };
  refused([](DeviceHandle& handle) { handle.device = {}; }, "no device");
  refused([](DeviceHandle& handle) { handle.handle = {}; }, "never filled");
  refused([](DeviceHandle& handle) { handle.size = 0; }, "no memory");
  refused([](DeviceHandle& handle) { handle.offset = most_device_bytes - handle.size + 1; }, "past the");
  refused([](DeviceHandle& handle) { handle.size = most_device_bytes; }, "past the");
  refused([](DeviceHandle& handle) { handle.offset = UINT64_MAX - handle.size + 2; }, "past the"); // the sum wraps to 1
  test::check_refused(decode_device_handle({}), Code::invalid_input, {"0 bytes"});
  DeviceHandle last = usual();
  last.offset = most_device_bytes - last.size;
  CHECK(decode_device_handle(encode(last)));
}
