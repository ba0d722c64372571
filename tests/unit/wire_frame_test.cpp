// Frame headers: each rule of FORMAT.md, "Frame header", and its order.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"
#include "wire/encode.hpp"
#include "wire/frame.hpp"
#include "wire/framing.hpp"
#include "wire_fields.hpp"

#include <algorithm>
#include <cstring>
#include <xxhash.h>

using namespace deltawire;
using namespace deltawire::wire;

namespace {

FrameHeader some_header() {
  return {.type = 1001,
          .session = 0x1112131415161718,
          .delivery = 0x2122232425262728,
          .source = 0x31323334,
          .route = 0x41424344,
          .sequence = 0x5152535455565758,
          .payload_bytes = 0x6162,
          .payload_checksum = 0x7172737475767778};
}

/// Changes bytes and makes the header checksum fit again, as a liar would.
HeaderBytes forge(HeaderBytes bytes, std::size_t offset, std::initializer_list<int> values) {
  for (const int value : values)
    bytes[offset++] = static_cast<std::byte>(value);
  const std::uint64_t sum = XXH3_64bits(bytes.data(), 64);
  std::memcpy(bytes.data() + 64, &sum, sizeof sum);
  return bytes;
}

std::string refusal(const HeaderBytes& bytes, Code code = Code::invalid_input) {
  const auto header = read_header(bytes);
  REQUIRE(!header);
  CHECK(header.error().code == code);
  return header.error().message;
}

} // namespace

TEST_CASE("a frame header has these bytes for ever") {
  const auto golden = test::from_hex("444c5457 04000000 e903 0000 34333231 1817161514131211 2827262524232221"
                                     "5857565554535251 44434241 00000000 6261000000000000 7877767574737271"
                                     "c4d92a06df646eef");
  const HeaderBytes bytes = write_header(some_header());
  CHECK(test::Bytes(bytes.begin(), bytes.end()) == golden);
}

TEST_CASE("a header comes back as it was written") {
  auto random = test::generator(1);
  CAPTURE(test::seed());
  for (int i = 0; i < 1000; ++i) {
    FrameHeader header;
    test::fill(header, random);
    header.type = static_cast<std::uint16_t>(i % 3 == 0 ? 1000 : i % 3 == 1 ? 1001 : 1 + random() % 999);
    header.payload_bytes %= (header.type < 1000 ? max_control_payload : max_data_payload) + 1;
    const auto back = read_header(write_header(header));
    REQUIRE(back);
    CHECK(*back == header);
  }
}

TEST_CASE("any changed byte of a header is noticed") {
  const HeaderBytes good = write_header(some_header());
  for (std::size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      HeaderBytes bad = good;
      bad[i] ^= static_cast<std::byte>(1 << bit);
      CHECK(!read_header(bad));
    }
}

TEST_CASE("each rule of a header is checked, in the order of the format") {
  const HeaderBytes good = write_header(some_header());
  HeaderBytes bad = good;
  bad[0] = std::byte{'X'};
  bad[4] = std::byte{9};
  CHECK_THAT(refusal(bad), test::contains("DLTW"));
  bad[0] = good[0];
  CHECK_THAT(refusal(bad), test::contains("protocol version 9"));
  bad[4] = good[4];
  bad[10] = std::byte{1};
  CHECK_THAT(refusal(bad), test::contains("checksum"));
  CHECK_THAT(refusal(forge(good, 10, {1})), test::contains("reserved"));
  CHECK_THAT(refusal(forge(good, 47, {1})), test::contains("reserved"));
  CHECK_THAT(refusal(forge(good, 8, {0, 0})), test::contains("type 0"));
  CHECK_THAT(refusal(forge(good, 8, {0xea, 0x03})), test::contains("type 1002"));
  CHECK_THAT(refusal(forge(good, 8, {0xff, 0xff})), test::contains("type 65535"));
}

TEST_CASE("a payload beyond the limit of its type is refused") {
  FrameHeader header = some_header();
  for (const std::uint16_t type : {1000, 1001}) {
    header.type = type;
    header.payload_bytes = max_data_payload;
    CHECK(read_header(write_header(header)));
    header.payload_bytes = max_data_payload + 1;
    CHECK_THAT(refusal(write_header(header), Code::limit_exceeded), test::contains(type_name(type)));
  }
  header.type = Seal::type;
  header.payload_bytes = max_control_payload;
  CHECK(read_header(write_header(header)));
  header.payload_bytes = max_control_payload + 1;
  CHECK_THAT(refusal(write_header(header), Code::limit_exceeded), test::contains("Seal"));
}

TEST_CASE("a payload that its header does not describe is refused") {
  auto random = test::generator(2);
  CAPTURE(test::seed());
  for (const std::size_t size : {0, 1, 100, 5000}) {
    test::Bytes payload(size);
    for (auto& byte : payload)
      byte = static_cast<std::byte>(random());
    FrameHeader header = some_header();
    header.payload_bytes = size;
    header.payload_checksum = checksum(payload);
    CHECK(header.payload_checksum == XXH3_64bits(payload.data(), size));
    CHECK(check_payload(header, payload));
    auto longer = payload;
    longer.push_back({});
    REQUIRE(!check_payload(header, longer));
    CHECK(check_payload(header, longer).error().code == Code::invalid_input);
    if (size == 0)
      continue;
    payload[random() % size] ^= static_cast<std::byte>(1 << random() % 8);
    REQUIRE(!check_payload(header, payload));
    CHECK_THAT(check_payload(header, payload).error().message, test::contains("flush") && test::contains("checksum"));
  }
}

TEST_CASE("a transport learns the length of a body from a checked header only") {
  const auto framing = wire::framing();
  CHECK(framing.header_bytes == 72);
  HeaderBytes bytes = write_header(some_header());
  CHECK(framing.body_bytes(bytes) == Result<std::uint64_t>(0x6162));
  CHECK(!framing.body_bytes(std::span<const std::byte>(bytes).first(71)));
  bytes[48] = std::byte{1};
  CHECK(!framing.body_bytes(bytes));
}
