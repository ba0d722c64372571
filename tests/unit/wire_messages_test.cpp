// Control messages: bytes as FORMAT.md says them, round trips, each rule of a reader, and what damaged input may cost.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"
#include "wire/encode.hpp"
#include "wire_allocation.hpp"
#include "wire_fields.hpp"

#include <algorithm>
#include <set>

using namespace deltawire;
using namespace deltawire::wire;

TEST_CASE("a message has these bytes for ever") {
  Seal seal{.delivery = 0x0102030405060708, .flushes = 3, .bytes = 0x10000, .digests = {{7, 0xa0b0}, {9, 1}}};
  CHECK(encode(seal) == test::from_hex("0807060504030201 0300000000000000 0000010000000000 0200000000000000"
                                       "07000000 b0a0000000000000 09000000 0100000000000000"));
  Refused refused{.code = Code::disagreement, .message = "no"};
  CHECK(encode(refused) == test::from_hex("04 0200000000000000 6e6f"));
  Agreement agreement;
  agreement.slots = {{.name = "w", .dtype = DType::f32, .shape = {2, -1}}};
  agreement.cells = {{.slot = 1, .elements = 6}};
  agreement.blocks = 5;
  agreement.windows = 4;
  agreement.own = {{.id = 1,
                    .parameter = 2,
                    .slot = 3,
                    .cell = 4,
                    .window = 5,
                    .dtype = DType::u8,
                    .extents = {6},
                    .local_offset = 7,
                    .local_strides = {8},
                    .slot_offset = 9,
                    .slot_strides = {10}}};
  CHECK(encode(agreement) ==
        test::from_hex("0100000000000000 0100000000000000 77 0b 0200000000000000 0200000000000000 ffffffffffffffff"
                       "0100000000000000 01000000 0600000000000000 05000000 04000000"
                       "0100000000000000 01000000 02000000 03000000 04000000 05000000 01"
                       "0100000000000000 0600000000000000 0700000000000000 0100000000000000 0800000000000000"
                       "0900000000000000 0100000000000000 0a00000000000000"));
}

TEST_CASE("every message has the bytes of the format and comes back from them") {
  auto random = test::generator(3);
  CAPTURE(test::seed());
  test::for_each_message([&]<class Message>(Message) {
    CAPTURE(type_name(Message::type));
    for (int i = 0; i < 200; ++i) {
      Message message;
      test::fill(message, random);
      const auto expected = test::by_format(message);
      REQUIRE(encode(message) == expected);
      const auto back = decode<Message>(expected);
      REQUIRE(back);
      REQUIRE(test::by_format(*back) == expected);
    }
  });
}

TEST_CASE("message numbers and names are unique") {
  std::set<std::uint16_t> types;
  std::set<std::string> names;
  test::for_each_message([&]<class Message>(Message) {
    types.insert(Message::type);
    names.insert(type_name(Message::type));
    CHECK((Message::type >= 1 && Message::type <= 999));
  });
  CHECK(types.size() == std::tuple_size_v<test::Messages>);
  CHECK(names.size() == types.size());
  CHECK(type_name(Seal::type) == "Seal");
  CHECK(type_name(1000) == "round");
  CHECK(type_name(1001) == "flush");
  CHECK(type_name(777) == "unknown type 777");
}

TEST_CASE("a message that is cut short or too long is refused by name") {
  auto random = test::generator(4);
  CAPTURE(test::seed());
  test::for_each_message([&]<class Message>(Message) {
    Message message;
    test::fill(message, random);
    auto bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto cut = decode<Message>(std::span(bytes).first(size));
      REQUIRE(!cut);
      CHECK(cut.error().code == Code::invalid_input);
      CHECK_THAT(cut.error().message, test::contains(type_name(Message::type)));
    }
    bytes.push_back({});
    const auto longer = decode<Message>(bytes);
    REQUIRE(!longer);
    CHECK(longer.error().code == Code::invalid_input);
    CHECK_THAT(longer.error().message, test::contains(type_name(Message::type)) && test::contains("1 more follow"));
  });
}

TEST_CASE("numbers that are no enumerator are refused") {
  const auto refused = []<class Message>(const Message&, test::Bytes bytes, std::size_t at, int value) {
    bytes[at] = static_cast<std::byte>(value);
    const auto result = decode<Message>(bytes);
    REQUIRE(!result);
    CHECK(result.error().code == Code::invalid_input);
    CHECK_THAT(result.error().message, test::contains("enumeration") && test::contains(std::to_string(value)));
  };
  refused(Hello{}, encode(Hello{}), 0, 2);
  refused(Hello{}, encode(Hello{}), 1, 2);
  refused(Refused{}, encode(Refused{}), 0, 0);
  refused(Refused{}, encode(Refused{}), 0, 15);
  refused(Failed{}, encode(Failed{}), 0, 255);
  refused(Begin{}, encode(Begin{}), 8, 3);
  refused(CaptureReport{}, encode(CaptureReport{}), 16, 7);
  const Catalogue catalogue{.slots = {{.name = "w", .dtype = DType::bf16, .shape = {}}}};
  refused(catalogue, encode(catalogue), 17, 15);
}

TEST_CASE("a length that the remaining bytes cannot hold is refused before memory is taken for it") {
  const auto refused = []<class Message>(const Message& message, std::size_t at, std::uint64_t count) {
    auto bytes = encode(message);
    for (std::size_t i = 0; i < 8; ++i)
      bytes[at + i] = static_cast<std::byte>(count >> (8 * i));
    const std::size_t before = test::allocated_bytes();
    const auto result = decode<Message>(bytes);
    CHECK(test::allocated_bytes() - before < 4096);
    REQUIRE(!result);
    CHECK(result.error().code == Code::invalid_input);
    CHECK_THAT(result.error().message, test::contains("a length of " + std::to_string(count)));
  };
  for (const std::uint64_t count :
       {std::uint64_t{3}, std::uint64_t{1} << 30, ~std::uint64_t{0}, std::uint64_t{1} << 61}) {
    refused(Seal{.digests = {{1, 1}, {2, 2}}}, 24, count);
    refused(Refused{.message = "ab"}, 1, count);
    refused(Agreement{}, 24, count);
    refused(Catalogue{.slots = {{.name = "", .dtype = DType::u8, .shape = {1, 2}}}}, 17, count);
  }
}

TEST_CASE("damaged messages never crash and never take more memory than their bytes justify") {
  auto random = test::generator(5);
  CAPTURE(test::seed());
  constexpr int rounds = 4000; // of 26 messages: 104'000 mutants
  test::for_each_message([&]<class Message>(Message) {
    CAPTURE(type_name(Message::type));
    test::Bytes original;
    for (int i = 0; i < rounds; ++i) {
      if (i % 50 == 0) {
        Message message;
        test::fill(message, random);
        original = encode(message);
      }
      auto bytes = original;
      for (auto changes = 1 + random() % 4; changes > 0 && !bytes.empty(); --changes) {
        const std::size_t at = random() % bytes.size();
        switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<std::byte>(random());
          break;
        case 1:
          bytes[at] ^= static_cast<std::byte>(1 << random() % 8);
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), random() % 9, static_cast<std::byte>(random()));
          break;
        default:
          for (std::size_t k = at; k < std::min(bytes.size(), at + 8); ++k)
            bytes[k] = std::byte{0xff};
        }
      }
      const std::size_t before = test::allocated_bytes();
      const auto result = decode<Message>(bytes);
      const std::size_t taken = test::allocated_bytes() - before;
      if (taken > 2048 + 16 * bytes.size())
        FAIL("took " << taken << " bytes for " << bytes.size());
      // What decodes is one message with one encoding: there is nothing that the reader skips.
      if (result)
        REQUIRE(encode(*result) == bytes);
      else
        REQUIRE(result.error().code == Code::invalid_input);
    }
  });
}

TEST_CASE("an agreement of many blocks comes back") {
  Agreement agreement;
  agreement.own.resize(100'000);
  for (std::size_t i = 0; i < agreement.own.size(); ++i) {
    auto& block = agreement.own[i];
    block.id = static_cast<std::uint32_t>(i);
    block.extents = {16, 4096};
    block.local_strides = {4096, 1};
    block.slot_strides = {8192, 1};
  }
  const auto back = decode<Agreement>(encode(agreement));
  REQUIRE(back);
  CHECK(back->own == agreement.own);
}
