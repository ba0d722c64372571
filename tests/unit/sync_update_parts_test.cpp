// Contract of sync/update_parts.hpp: every call succeeds as a whole or changes nothing and says what is wrong; chunks
// are ready when every parameter in them was sent, against counting by hand; patches find their blocks.
#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "sync/update_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace {

using namespace deltawire;
using sync::CaptureParts;
using sync::ChunkParts;
using sync::UpdateParts;
using test::contains;

/// Two slots of 4 x 6; the rank owns rows 1 and 2 of "a", held by "p.0" and "p.1", and all of "b", held by "q".
struct Rank {
  std::vector<std::string> parameters{"p.0", "p.1", "q"};
  std::vector<layout::SlotSpec> slots{{"a", DType::bf16, {4, 6}}, {"b", DType::u8, {4, 6}}};
  std::vector<layout::Block> blocks{block(0, 0, {6}, 6, {1}), block(1, 0, {6}, 12, {1}),
                                    block(2, 1, {6, 4}, 0, {1, 6})};

  static layout::Block block(std::uint32_t parameter, std::uint32_t slot, std::vector<layout::Index> extents,
                             layout::Index offset, std::vector<layout::Index> strides) {
    layout::Block made;
    made.parameter = parameter;
    made.slot = slot;
    made.dtype = slot == 0 ? DType::bf16 : DType::u8;
    made.extents = std::move(extents);
    made.local_strides.assign(made.extents.size(), 1);
    made.slot_offset = offset;
    made.slot_strides = std::move(strides);
    return made;
  }

  [[nodiscard]] UpdateParts update(std::vector<bool> captured = {true, true, true}) const {
    return {7, {3, parameters, slots, blocks}, std::move(captured)};
  }
};

template <class T>
void refuses(const Result<T>& result, Code code, const std::string& text) {
  REQUIRE_FALSE(result);
  CHECK(result.error().code == code);
  CHECK_THAT(result.error().message, contains(text));
}

std::string owner(std::uint32_t slot, std::uint64_t position) {
  return fmt::format("rank {}{}", slot, position);
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values)
    bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

} // namespace

TEST_CASE("what is sent is named by patterns, each parameter once") {
  const Rank rank;
  UpdateParts parts = rank.update();
  const auto sent = parts.send(std::vector<std::string>{"p.*", "p.0"});
  REQUIRE(sent);
  CHECK(*sent == std::vector<std::uint32_t>{0, 1});
  CHECK(parts.sent(0));
  CHECK_FALSE(parts.sent(2));
  CHECK(parts.send(std::vector<std::string>{})->empty());
  CHECK(*parts.send(std::vector<std::string>{"q"}) == std::vector<std::uint32_t>{2});
  CHECK(parts.finish()->sent == std::vector<bool>{true, true, true});
}

TEST_CASE("a send that is refused names all that is wrong and marks nothing") {
  const Rank rank;
  UpdateParts parts = rank.update();
  REQUIRE(parts.send(std::vector<std::string>{"p.1"}));
  const auto wrong = parts.send(std::vector<std::string>{"q", "*", "nothing.*", "broken{", "else"});
  refuses(wrong, Code::invalid_argument, "'p.1' was sent already in the update to version 7");
  CHECK_THAT(wrong.error().message, contains("send(\"nothing.*\"): no parameter of rank 3 matches"));
  CHECK_THAT(wrong.error().message, contains("send(\"else\")"));
  CHECK_THAT(wrong.error().message, contains("send(\"broken{\")"));
  CHECK_FALSE(parts.sent(0));
  CHECK_FALSE(parts.sent(2));
  refuses(parts.send(std::vector<std::string>{"none"}), Code::invalid_argument, "no parameter of rank 3");
}

TEST_CASE("the first update holds every parameter") {
  const Rank rank;
  UpdateParts parts = rank.update({});
  REQUIRE(parts.send(std::vector<std::string>{"p.1"}));
  const auto finished = parts.finish();
  refuses(finished, Code::call_order, "'p.0' was never sent");
  CHECK_THAT(finished.error().message, contains("'q' was never sent"));
  CHECK(parts.captured() == std::vector<bool>{false, true, false});
  REQUIRE(parts.send(std::vector<std::string>{"q", "p.0"}));
  CHECK(parts.finish());
  CHECK(parts.captured() == std::vector<bool>{true, true, true});
}

TEST_CASE("a patch finds its elements in the rank's blocks, whatever their order") {
  const Rank rank;
  UpdateParts parts = rank.update();
  const std::vector<std::uint64_t> indices{17, 6, 12, 11};
  REQUIRE(parts.patch({"a", indices, DType::bf16, bytes_of({1, 2, 3, 4, 5, 6, 7, 8})}, owner));
  const std::vector<std::uint64_t> transposed{1, 23, 6};
  REQUIRE(parts.patch({"b", transposed, DType::u8, bytes_of({9, 10, 11})}, owner));
  const std::vector<std::uint64_t> more{7};
  REQUIRE(parts.patch({"a", more, DType::bf16, bytes_of({12, 13})}, owner)); // joins the first one's
  const auto finished = parts.finish();
  REQUIRE(finished);
  REQUIRE(finished->patches.size() == 3);
  CHECK(finished->patches.at(0).elements == std::vector<std::uint64_t>{0, 1, 5});
  CHECK(finished->patches.at(0).values == bytes_of({3, 4, 12, 13, 7, 8}));
  CHECK(finished->patches.at(1).elements == std::vector<std::uint64_t>{0, 5});
  CHECK(finished->patches.at(1).values == bytes_of({5, 6, 1, 2}));
  CHECK(finished->patches.at(2).elements == std::vector<std::uint64_t>{1, 4, 23}); // column by column
  CHECK(finished->patches.at(2).values == bytes_of({11, 9, 10}));
}

TEST_CASE("a patch that is refused says why and takes nothing") {
  const Rank rank;
  UpdateParts parts = rank.update({true, true, false});
  const auto patch = [&](std::string_view slot, std::vector<std::uint64_t> indices, DType dtype, std::size_t bytes) {
    const std::vector<std::byte> values(bytes, std::byte{1});
    return parts.patch({slot, indices, dtype, values}, owner);
  };
  refuses(patch("c", {0}, DType::bf16, 2), Code::invalid_argument, "no such slot");
  refuses(patch("a", {6}, DType::f16, 2), Code::invalid_argument, "values of float16 for a slot of bfloat16");
  refuses(patch("a", {6, 7}, DType::bf16, 2), Code::invalid_argument, "take 4 bytes of values, and 2 are given");
  refuses(patch("a", {6, 24}, DType::bf16, 4), Code::invalid_argument, "index 24 of a slot of 24 elements");
  refuses(patch("a", {6, 9, 6}, DType::bf16, 6), Code::invalid_argument, "index 6 is there twice");
  refuses(patch("a", {6, 23, 5}, DType::bf16, 6), Code::invalid_argument,
          "rank 3 does not own 2 of the 3 elements; the first of them, index 5, belongs to rank 05");
  refuses(patch("b", {3}, DType::u8, 1), Code::call_order, "'q' has never been sent");
  REQUIRE(parts.send(std::vector<std::string>{"p.1", "q"}));
  refuses(patch("a", {6, 12}, DType::bf16, 4), Code::call_order, "'p.1' was sent in the update to version 7");
  CHECK(parts.finish()->patches.empty());

  REQUIRE(patch("a", {6}, DType::bf16, 2));
  refuses(patch("a", {7, 6}, DType::bf16, 4), Code::invalid_argument, "patched already");
  refuses(parts.send(std::vector<std::string>{"p.0"}), Code::call_order, "'p.0' was patched");
  CHECK(parts.finish()->patches.at(0).elements == std::vector<std::uint64_t>{0});
  CHECK(patch("a", {}, DType::bf16, 0)); // nothing is no error
}

TEST_CASE("a chunk is ready with the last of its parameters") {
  CAPTURE(test::seed());
  for (std::uint64_t number = 0; number < 200; ++number) {
    auto random = test::generator(43000 + number);
    CAPTURE(number);
    const auto below = [&](std::uint64_t end) { return random() % end; };
    const std::size_t parameters = 1 + below(6);
    std::vector<layout::Block> blocks(1 + below(12));
    for (layout::Block& block : blocks)
      block.parameter = static_cast<std::uint32_t>(below(parameters));
    std::vector<sync::Chunk> chunks(1 + below(8));
    std::vector<std::set<std::uint32_t>> needs(chunks.size());
    for (std::size_t c = 0; c < chunks.size(); ++c)
      for (std::uint64_t r = 0, ranges = 1 + below(4); r < ranges; ++r) {
        const auto block = static_cast<std::uint32_t>(below(blocks.size()));
        chunks[c].ranges.push_back({block, 0, 1});
        needs[c].insert(blocks[block].parameter);
      }
    ChunkParts chunk_parts(chunks, blocks);
    for (int round = 0; round < 2; ++round) {
      chunk_parts.start();
      std::vector<std::uint32_t> order(parameters);
      for (std::uint32_t p = 0; p < parameters; ++p)
        order[p] = p;
      std::shuffle(order.begin(), order.end(), random);
      std::set<std::uint32_t> sent, ready;
      for (std::size_t at = 0; at < order.size();) {
        const std::size_t count = 1 + below(order.size() - at);
        const std::span<const std::uint32_t> now(order.data() + at, count);
        at += count;
        sent.insert(now.begin(), now.end());
        for (const std::uint32_t chunk : chunk_parts.sent(now))
          REQUIRE(ready.insert(chunk).second);
        for (std::uint32_t c = 0; c < chunks.size(); ++c)
          REQUIRE(ready.contains(c) == std::includes(sent.begin(), sent.end(), needs[c].begin(), needs[c].end()));
      }
    }
    CaptureParts patched;
    std::vector<std::uint32_t> expected;
    for (std::uint32_t b = 0; b < blocks.size(); ++b)
      if (below(3) == 0)
        patched.patches[b];
    for (std::uint32_t c = 0; c < chunks.size(); ++c)
      if (std::any_of(chunks[c].ranges.begin(), chunks[c].ranges.end(),
                      [&](const sync::ChunkRange& range) { return patched.patches.contains(range.block); }))
        expected.push_back(c);
    REQUIRE(chunk_parts.patched(patched) == expected);
  }
}
