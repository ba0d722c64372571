// Contract of delta/piece.hpp: what is encoded reads back; pieces keep to their limit and to the worst case; bytes that
// are not a piece of the block are refused, whatever they are.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "flat_block.hpp"
#include "random.hpp"

#include "delta/piece.hpp"
#include "delta/stage.hpp"
#include "delta/tiles.hpp"

#include <map>
#include <set>

namespace {

using namespace deltawire;
using delta::EncodedPieces;
using delta::PieceEncoder;
using delta::PieceKind;
using delta::PieceView;
using test::flat_block;
using Bytes = std::vector<std::byte>;

constexpr DType dtype_of_size(std::size_t size) {
  return size == 1 ? DType::u8 : size == 2 ? DType::bf16 : size == 4 ? DType::f32 : DType::f64;
}

/// The value that these tests give an element: its low bytes tell it apart from its neighbours.
void put_value(Bytes& values, std::uint64_t element, std::size_t size) {
  const std::uint64_t bits = element * 0x9E3779B97F4A7C15ull;
  for (std::size_t i = 0; i < size; ++i)
    values.push_back(static_cast<std::byte>(bits >> (56 - 8 * i)));
}

/// Encodes `changes` (ascending block elements in the range), tile part by tile part as capture does. With `bases`, the
/// values before are a few steps off.
void encode(PieceEncoder& encoder, const layout::Block& block, std::uint64_t first, std::uint64_t count,
            const std::vector<std::uint64_t>& changes, std::mt19937_64* bases = nullptr) {
  const std::size_t size = size_of(block.dtype);
  encoder.start_range(block, first, count);
  for (std::size_t i = 0; i < changes.size();) {
    const std::uint64_t tile = changes[i] / 4096;
    const std::uint64_t part = std::max(first, tile * 4096);
    std::vector<std::uint16_t> positions;
    Bytes values;
    for (; i < changes.size() && changes[i] / 4096 == tile; ++i) {
      positions.push_back(static_cast<std::uint16_t>(changes[i] - part));
      put_value(values, changes[i], size);
    }
    Bytes before = values;
    if (bases != nullptr)
      for (std::size_t at = 0; at < before.size(); at += size)
        before[at] ^= static_cast<std::byte>((*bases)() % 4 ? 1 : 1 + (*bases)() % 255);
    encoder.add_changes(part, positions, values.data(), bases != nullptr ? before.data() : nullptr);
  }
  encoder.finish_range();
}

/// Reads every piece and returns element -> value; checks ends, limits and order on the way.
std::map<std::uint64_t, Bytes> decode(const EncodedPieces& encoded, const layout::Block& block, std::size_t limit) {
  const std::size_t size = size_of(block.dtype);
  std::map<std::uint64_t, Bytes> values;
  std::size_t begin = 0;
  std::uint64_t changed = 0;
  for (const std::uint64_t end : encoded.ends) {
    const auto bytes = std::span(encoded.bytes).subspan(begin);
    const auto peeked = delta::peek_piece(bytes);
    REQUIRE(peeked);
    const auto piece = delta::read_piece(bytes, block);
    if (!piece)
      FAIL(piece.error().message);
    REQUIRE(piece->bytes == end - begin);
    REQUIRE(peeked->bytes == piece->bytes);
    REQUIRE(piece->bytes <= limit);
    REQUIRE(piece->values.size() == piece->changed * size);
    changed += piece->changed;
    const std::uint64_t before = values.empty() ? 0 : values.rbegin()->first + 1;
    const auto take = [&](std::uint64_t element, std::uint64_t index) {
      REQUIRE(element >= before); // pieces come in the order of their changes
      REQUIRE(element >= piece->first);
      REQUIRE(element < piece->first + piece->elements);
      const auto value = piece->values.subspan(index * size, size);
      REQUIRE(values.emplace(element, Bytes(value.begin(), value.end())).second);
    };
    if (piece->kind == PieceKind::values) {
      for (std::uint64_t i = 0; i < piece->elements; ++i)
        take(piece->first + i, i);
    } else {
      delta::for_each_tile(*piece,
                           [&](std::uint64_t first, std::span<const std::uint16_t> positions, std::uint64_t index) {
                             for (std::size_t i = 0; i < positions.size(); ++i)
                               take(first + positions[i], index + i);
                           });
    }
    begin = end;
  }
  REQUIRE(begin == encoded.bytes.size());
  REQUIRE(changed == encoded.changed);
  return values;
}

std::map<std::uint64_t, Bytes> expected_values(const std::vector<std::uint64_t>& changes, std::size_t size) {
  std::map<std::uint64_t, Bytes> values;
  for (const std::uint64_t element : changes)
    put_value(values[element], element, size);
  return values;
}

/// Change patterns that are worst for one part of the format or another.
std::vector<std::vector<std::uint64_t>> patterns(std::mt19937_64& random, std::uint64_t first, std::uint64_t count) {
  std::vector<std::vector<std::uint64_t>> result;
  for (const std::uint64_t step :
       {1u, 2u, 3u, 127u, 254u, 255u, 256u, 257u, 511u, 2000u, 4095u, 4096u, 4097u, 16384u, 20481u}) {
    auto& changes = result.emplace_back();
    for (std::uint64_t element = first + random() % std::min(step, count); element < first + count; element += step)
      changes.push_back(element);
  }
  for (const double density : {0.0001, 0.003, 0.02, 0.3, 0.95}) {
    auto& changes = result.emplace_back();
    std::bernoulli_distribution taken(density);
    for (std::uint64_t element = first; element < first + count; ++element)
      if (taken(random))
        changes.push_back(element);
  }
  auto& edges = result.emplace_back(); // both ends of each tile
  for (std::uint64_t element = first; element < first + count; ++element)
    if (element % 4096 == 0 || element % 4096 == 4095)
      edges.push_back(element);
  auto& clusters = result.emplace_back();
  for (std::uint64_t element = first; element < first + count; ++element)
    if ((element / 700) % 3 == 0 && element % 700 < 90)
      clusters.push_back(element);
  result.push_back({first});
  result.push_back({first + count - 1});
  return result;
}

Bytes piece_bytes(std::vector<std::uint64_t> header, const Bytes& body) {
  header.push_back(body.size());
  Bytes bytes;
  for (std::uint64_t value : header) {
    for (; value >= 0x80; value >>= 7)
      bytes.push_back(static_cast<std::byte>(value | 0x80));
    bytes.push_back(static_cast<std::byte>(value));
  }
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

Bytes body_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values)
    bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

void refuses(const Bytes& bytes, const layout::Block& block, const std::string& reason) {
  const Bytes exact(bytes.begin(), bytes.end()); // no spare capacity: a sanitizer sees a read past the end
  const auto piece = delta::read_piece(exact, block);
  REQUIRE_FALSE(piece);
  CAPTURE(piece.error().message);
  REQUIRE(piece.error().code == Code::invalid_input);
  REQUIRE(piece.error().message.find(reason) != std::string::npos);
}

} // namespace

TEST_CASE("pieces read back as what was encoded, within every limit and the worst case") {
  auto random = test::generator(30);
  for (const std::size_t size : {1u, 2u, 4u, 8u}) {
    const std::size_t least = delta::least_piece_limit(size);
    for (int repeat = 0; repeat < 12; ++repeat) {
      const std::uint64_t first =
        repeat % 3 == 0 ? 0 : random() % 10000 + (repeat % 3 == 2 ? (std::uint64_t{1} << 61) : 0);
      const std::uint64_t count = 1 + random() % (repeat % 4 == 0 ? 50 : 30000);
      const auto block = flat_block(repeat % 2 ? 0xFFFFFFFFu : 3, dtype_of_size(size), std::uint64_t{1} << 62);
      const std::size_t limits[] = {least, least + random() % 30, least + random() % 300, 4096 + random() % 9000,
                                    std::numeric_limits<std::size_t>::max()};
      for (const auto& changes : patterns(random, first, count)) {
        const std::size_t limit = limits[random() % 5];
        CAPTURE(test::seed(), size, first, count, limit, changes.size());
        PieceEncoder encoder(limit);
        encode(encoder, block, first, count, changes);
        const EncodedPieces encoded = encoder.take();
        REQUIRE(encoded.bytes.size() <= delta::worst_case_bytes(count, size, limit));
        REQUIRE(decode(encoded, block, limit) == expected_values(changes, size));
      }
    }
  }
}

TEST_CASE("the worst case holds for small ranges at every limit from the least") {
  auto random = test::generator(31);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t limit = delta::least_piece_limit(size); limit < 200; ++limit) {
      const std::uint64_t count = 1 + random() % 700;
      const std::uint64_t first = (std::uint64_t{1} << 61) + 4096 * 5 - random() % count - 1;
      const auto block = flat_block(0xFFFFFFFFu, dtype_of_size(size), std::uint64_t{1} << 62);
      for (const auto& changes : patterns(random, first, count)) {
        CAPTURE(test::seed(), size, first, count, limit, changes.size());
        PieceEncoder encoder(limit);
        encode(encoder, block, first, count, changes);
        const EncodedPieces encoded = encoder.take();
        REQUIRE(encoded.bytes.size() <= delta::worst_case_bytes(count, size, limit));
        REQUIRE(decode(encoded, block, limit) == expected_values(changes, size));
      }
      PieceEncoder encoder(limit);
      Bytes values;
      std::vector<std::uint64_t> all;
      for (std::uint64_t element = first; element < first + count; ++element) {
        put_value(values, element, size);
        all.push_back(element);
      }
      encoder.add_values(block, first, count, values.data());
      const EncodedPieces encoded = encoder.take();
      REQUIRE(encoded.bytes.size() <= delta::worst_case_bytes(count, size, limit));
      REQUIRE(decode(encoded, block, limit) == expected_values(all, size));
    }
}

TEST_CASE("the worst case is not far from what dense changes take") {
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (const std::size_t limit : {std::size_t{1} << 10, std::size_t{1} << 16, std::size_t{1} << 30}) {
      const std::uint64_t count = 1 << 20;
      const double dense = static_cast<double>(count * (size + 1));
      CAPTURE(size, limit);
      REQUIRE(static_cast<double>(delta::worst_case_bytes(count, size, limit)) < dense * (limit < 2000 ? 1.2 : 1.01));
    }
  REQUIRE(delta::worst_case_bytes(0, 2, 100) == 0);
  // Numbers that overflow saturate instead of wrapping to something small.
  REQUIRE(delta::worst_case_bytes(std::uint64_t{1} << 61, 8, 31) > std::uint64_t{1} << 62);
}

TEST_CASE("one change fits the least limit wherever it is") {
  for (const std::size_t size : {1u, 2u, 4u, 8u}) {
    const std::uint64_t element = (std::uint64_t{1} << 62) - 1;
    const auto block = flat_block(0xFFFFFFFFu, dtype_of_size(size), std::uint64_t{1} << 62);
    PieceEncoder encoder(delta::least_piece_limit(size));
    encode(encoder, block, element, 1, {element});
    const EncodedPieces encoded = encoder.take();
    // The tag of the largest id needs all its bytes, the first element but one of its own.
    REQUIRE(encoded.bytes.size() == delta::least_piece_limit(size));
    REQUIRE(encoded.bytes.size() <= delta::worst_case_bytes(1, size, delta::least_piece_limit(size)));
    decode(encoded, block, delta::least_piece_limit(size));
  }
}

TEST_CASE("a range without changes leaves nothing behind, and take() starts over") {
  const auto block = flat_block(1, DType::bf16, 100000);
  PieceEncoder encoder(1000);
  encode(encoder, block, 5, 50000, {});
  EncodedPieces encoded = encoder.take();
  REQUIRE(encoded.bytes.empty());
  REQUIRE(encoded.ends.empty());
  encode(encoder, block, 5, 50000, {7});
  encode(encoder, block, 60000, 10, {60003});
  encoded = encoder.take();
  REQUIRE(encoded.ends.size() == 2);
  REQUIRE(encoded.changed == 2);
  REQUIRE(encoder.take().ends.empty());
}

TEST_CASE("a long stretch of empty tiles ends a piece, a short one does not") {
  const auto block = flat_block(1, DType::bf16, 1 << 20);
  PieceEncoder encoder(1 << 20);
  encode(encoder, block, 0, 1 << 20, {0, 4096 * 3, 4096 * 200});
  const EncodedPieces encoded = encoder.take();
  REQUIRE(encoded.ends.size() == 2);
  REQUIRE(encoded.bytes.size() < 40);
  REQUIRE(decode(encoded, block, 1 << 20) == expected_values({0, 4096 * 3, 4096 * 200}, 2));
}

TEST_CASE("the bytes of a piece are those of FORMAT.md") {
  // Elements 4095 and 4097 of block 5, bf16.
  const auto block = flat_block(5, DType::bf16, 10000);
  PieceEncoder encoder(1 << 20);
  const std::vector<std::uint16_t> one = {4095};
  const std::vector<std::uint16_t> other = {1};
  const Bytes first = body_of({0xAA, 0xBB});
  const Bytes second = body_of({0xCC, 0xDD});
  encoder.start_range(block, 0, 10000);
  encoder.add_changes(0, one, first.data());
  encoder.add_changes(4096, other, second.data());
  encoder.finish_range();
  REQUIRE(encoder.take().bytes == body_of({0x50, 11,                  // block, range, kind; body
                                           1, 1, 0,                   // heads
                                           2, 0xFC, 0x3F, 0x41,       // length; codes
                                           0xAA, 0xBB, 0xCC, 0xDD})); // values
  PieceEncoder wide(1 << 20, {delta::PositionCodec::gaps_u16, true});
  wide.start_range(block, 0, 10000);
  wide.add_changes(0, one, first.data());
  wide.add_changes(4096, other, second.data());
  wide.finish_range();
  REQUIRE(wide.take().bytes ==
          body_of({0x50, 14, 0x91, 0x20, 0x91, 0x20, 0, 2, 0xFF, 0x0F, 1, 0, 0xAA, 0xBB, 0xCC, 0xDD}));

  // The same with their base: +1 and -3. Both are negative numbers, the second base nearer to zero.
  const Bytes first_base = body_of({0xAB, 0xBB});
  const Bytes second_base = body_of({0xC9, 0xDD});
  encoder.start_range(block, 0, 10000);
  encoder.add_changes(0, one, first.data(), first_base.data());
  encoder.add_changes(4096, other, second.data(), second_base.data());
  encoder.finish_range();
  REQUIRE(encoder.take().bytes == body_of({0x52, 8, 1, 1, 0, 2, 0xFC, 0x3F, 0xC1, 3}));

  encoder.add_values(block, 2, 1, first.data());
  REQUIRE(encoder.take().bytes == body_of({0x59, 2, 1, 2, 0xAA, 0xBB}));
  Bytes all(20000);
  encoder.add_values(block, 0, 10000, all.data());
  Bytes whole = body_of({0x51, 0xA0, 0x9C, 1});
  whole.resize(4 + 20000);
  REQUIRE(encoder.take().bytes == whole);
}

TEST_CASE("positions past 2^31 and 2^32 keep all their bits") {
  const auto block = flat_block(9, DType::f32, std::uint64_t{1} << 34);
  std::vector<std::uint64_t> changes = {5};
  for (const std::uint64_t at : {std::uint64_t{1} << 31, std::uint64_t{1} << 32, std::uint64_t{1} << 33})
    for (const std::uint64_t near : {at - 1, at, at + 1, at + 4096})
      changes.push_back(near);
  PieceEncoder encoder(1 << 20);
  encode(encoder, block, 0, std::uint64_t{1} << 34, changes);
  REQUIRE(decode(encoder.take(), block, 1 << 20) == expected_values(changes, 4));
}

TEST_CASE("a header that is no piece's is refused") {
  // Tags: block 5 is 0x50, elements 8, tiles 4, values 1.
  const auto block = flat_block(5, DType::bf16, 10000);
  const Bytes value = body_of({1, 2});
  REQUIRE(delta::read_piece(piece_bytes({0x59, 2, 1}, value), block));
  REQUIRE(delta::read_piece(piece_bytes({0x55, 2, 1}, Bytes(2 * (10000 - 8192))), block));
  REQUIRE(delta::read_piece(piece_bytes({0x51}, Bytes(20000)), block));
  refuses({}, block, "cut short");
  refuses(body_of({0x59, 2}), block, "cut short");
  refuses(body_of({0x51}), block, "cut short");
  refuses(body_of({0x59, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2, 1, 0}), block, "past 64 bits");
  refuses(body_of({0x59, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 1, 0}), block, "past 64 bits");
  refuses(piece_bytes({(std::uint64_t{1} << 36) + 9, 2, 1}, value), block, "past 32 bits");
  refuses(piece_bytes({0x5B, 2, 1}, body_of({3, 0})), block, "2 compressed bytes do not say what they hold");
  refuses(piece_bytes({0x5B, 2, 1}, body_of({1, 1, 0})), block, "compressed, where no piece may be");
  refuses(piece_bytes({0x5D, 2, 1}, value), block, "range 3");
  refuses(piece_bytes({0x69, 2, 1}, value), block, "block 6 where block 5");
  refuses(piece_bytes({0x59, 2, 0}, value), block, "no valid range");
  refuses(piece_bytes({0x55, 0, 0}, value), block, "no valid range");
  refuses(piece_bytes({0x59, ~std::uint64_t{0}, 2}, value), block, "no valid range");
  refuses(piece_bytes({0x55, std::uint64_t{1} << 52, 1}, value), block, "no valid range");
  refuses(piece_bytes({0x55, 1, std::uint64_t{1} << 52}, value), block, "no valid range");
  refuses(piece_bytes({0x59, 10000, 1}, value), block, "leave the block");
  refuses(piece_bytes({0x59, 9999, 2}, value), block, "leave the block");
  refuses(piece_bytes({0x55, 3, 1}, value), block, "leave the block");
  refuses(piece_bytes({0x55, 2, 2}, value), block, "leave the block");
  refuses(piece_bytes({0x59, 0, std::uint64_t{1} << 62}, value), block, "leave the block");
  refuses(piece_bytes({0x59, 2, 2}, value), block, "2 bytes of values for 2 elements");
  refuses(piece_bytes({0x59, 2, 1}, body_of({1, 2, 3})), block, "3 bytes of values for 1 elements");
  refuses(piece_bytes({0x51}, value), block, "2 bytes of values for 10000 elements");
  Bytes cut = piece_bytes({0x59, 2, 1}, value);
  cut.pop_back();
  refuses(cut, block, "a body of 2 bytes where 1 are left");
}

TEST_CASE("positions that are not exactly those declared are refused") {
  const auto block = flat_block(5, DType::bf16, 10000);
  // Elements 4095, 4096 and 4097: a tile part of one element and one of two. Heads, a length, codes, values.
  const auto delta_piece = [&](std::initializer_list<int> body, std::uint64_t kind = 0) {
    return piece_bytes({0x58 + kind, 4095, 3}, body_of(body));
  };
  REQUIRE(delta::read_piece(delta_piece({0x90, 0x20, 0x90, 0x20, 1, 0, 1, 9, 9, 9, 9}), block));
  REQUIRE(delta::read_piece(delta_piece({0, 0x90, 0x20, 1, 9, 9}), block));
  REQUIRE(delta::read_piece(delta_piece({0x95, 0x20, 0xA5, 0x20, 0, 9, 9, 9, 9, 9, 9}), block));
  refuses(delta_piece({0x90, 0x20}), block, "cannot hold the heads of 2 tiles");
  refuses(delta_piece({0x90, 0x20, 0x96, 0x20, 1, 0, 1, 9, 9, 9, 9}), block, "tile 1: no head is 4118");
  refuses(delta_piece({0x97, 0x20, 0x90, 0x20, 1, 9, 9}), block, "tile 0: no head is 4119");
  refuses(delta_piece({0, 0}), block, "no changes");
  // Numbers between the two ranges and past them; the usual way by its name; a varint that does not end, or is too
  // long.
  refuses(delta_piece({0, 0x81, 0x20, 0, 9, 9}), block, "tile 1: no head is 4097");
  refuses(delta_piece({0, 0x8F, 0x20, 0, 9, 9}), block, "tile 1: no head is 4111");
  refuses(delta_piece({0, 0x90, 0xA0, 0x04, 0, 9, 9}), block, "tile 1: no head is 69648");
  REQUIRE(delta::read_piece(delta_piece({0, 1, 2, 9, 9}), block));
  refuses(delta_piece({0, 0x92, 0x20, 2, 9, 9}), block, "tile 1: no head is 4114");
  REQUIRE(delta::read_piece(delta_piece({0, 0x92, 0x20, 2, 9, 9}, 2), block));
  REQUIRE(delta::read_piece(delta_piece({0, 1, 2}, 2), block));
  refuses(delta_piece({0, 0x9A, 0x20, 2}, 2), block, "tile 1: no head is 4122");
  refuses(delta_piece({0, 0x90}), block, "cannot hold the heads of 2 tiles");
  refuses(delta_piece({0, 128, 128, 128, 128, 128, 128, 128, 128, 128, 2, 9}), block, "cannot hold the heads");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20}), block, "cannot hold the record lengths");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 0x81}), block, "cannot hold the record lengths");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 1, 0, 1}), block, "do not hold the values of 2 changes");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 7, 0, 1, 9, 9, 9, 9}), block, "tile 1: its record");
  refuses(delta_piece({0xA0, 0x20, 0, 0, 0, 9, 9, 9, 9}), block, "tile 0: its record"); // two in a part of one
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 1, 0, 2, 9, 9, 9, 9}), block, "tile 1: its record");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 1, 1, 1, 9, 9, 9, 9}), block, "tile 0: its record");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 1, 0, 1, 9, 9, 9}), block, "tile 1: its record");
  refuses(delta_piece({0x90, 0x20, 0x90, 0x20, 1, 0, 1, 9, 9, 9, 9, 9}), block, "tile 1: its record");
  refuses(delta_piece({0x95, 0x20, 0x95, 0x20, 0, 9, 9, 9, 9}), block, "tile 1: its record"); // dense, and not all
  refuses(delta_piece({0x98, 0x20, 0x90, 0x20, 1, 0, 1, 9, 9, 9, 9}), block, "says it has none");

  REQUIRE(delta::read_piece(delta_piece({0x90, 0x20, 0x90, 0x20, 3, 0, 9, 9, 1, 9, 9}, 2), block));
  REQUIRE(delta::read_piece(delta_piece({0x98, 0x20, 0x90, 0x20, 2, 0, 0, 1, 9, 9}, 2), block));
  REQUIRE(delta::read_piece(delta_piece({0, 0xAD, 0x20, 0}, 2), block));          // dense: signs 00, e = 00
  refuses(delta_piece({0, 0xAD, 0x20, 0x10}, 2), block, "tile 1: its record");    // bits left over
  refuses(delta_piece({0, 0xAD, 0x20, 0, 0}, 2), block, "tile 1: its record");    // a byte left over
  refuses(delta_piece({0, 0xAD, 0x20, 0x0C, 0}, 2), block, "tile 1: its record"); // e = 3
  refuses(delta_piece({0, 0xAD, 0x20, 0x08}, 2), block, "tile 1: its record");    // e = 2, nothing follows
  REQUIRE(delta::read_piece(delta_piece({0, 0xAD, 0x20, 0x08, 0}, 2), block));
  refuses(delta_piece({0, 0xAD, 0x20, 0xF8, 0}, 2), block, "tile 1: its record"); // a small of 15, nothing follows
  REQUIRE(delta::read_piece(delta_piece({0, 0xAD, 0x20, 0xF8, 0, 3}, 2), block));
  refuses(delta_piece({0, 0xAD, 0x20, 0xF8, 0, 255, 1}, 2), block, "tile 1: its record"); // half of a full one
  REQUIRE(delta::read_piece(delta_piece({0, 0xAD, 0x20, 0xF8, 0, 255, 1, 2}, 2), block));
  // e = 1 of 2: k is 12 of 11, then 0 and a Rice code of index 2, then of index 1; then the expected one, which is 0.
  refuses(delta_piece({0, 0xAD, 0x20, 0x94, 1, 0}, 2), block, "tile 1: its record");
  refuses(delta_piece({0, 0xAD, 0x20, 0x14, 8, 0}, 2), block, "tile 1: its record");
  REQUIRE(delta::read_piece(delta_piece({0, 0xAD, 0x20, 0x14, 4}, 2), block));
  REQUIRE(delta::read_piece(delta_piece({0, 0xAD, 0x20, 0x44, 0}, 2), block));
}

TEST_CASE("arbitrary bytes are refused or stay inside the block") {
  auto random = test::generator(32);
  std::size_t accepted = 0;
  std::size_t differences = 0;
  std::size_t opened_only = 0;
  for (int repeat = 0; repeat < 20000; ++repeat) {
    const std::size_t size = std::size_t{1} << (random() % 4);
    const std::uint64_t count = 1 + random() % 9000;
    const auto block = flat_block(static_cast<std::uint32_t>(random() % 200), dtype_of_size(size), count);
    std::vector<std::uint64_t> changes;
    for (std::uint64_t element = random() % 50; element < count; element += 1 + random() % 1500)
      changes.push_back(element);
    delta::Encoding encoding;
    if (random() % 2)
      encoding.positions = static_cast<delta::PositionCodec>(random() % delta::position_codecs);
    PieceEncoder encoder(delta::least_piece_limit(size) + random() % 200, encoding);
    encode(encoder, block, 0, count, changes, random() % 2 ? &random : nullptr);
    Bytes bytes = encoder.take().bytes;
    for (std::uint64_t i = random() % 4; i > 0 && !bytes.empty(); --i) {
      const std::size_t at = random() % std::min<std::size_t>(bytes.size(), random() % 2 ? 12 : 10000);
      switch (random() % 4) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << (random() % 8));
        break;
      case 1:
        bytes[at] = random() % 2 ? std::byte{255} : static_cast<std::byte>(random());
        break;
      case 2:
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::byte>(random()));
      }
    }
    const Bytes exact(bytes.begin(), bytes.end());
    CAPTURE(test::seed(), repeat);
    const auto piece = delta::read_piece(exact, block);
    Bytes memory(count * size);
    if (!piece) {
      // Staging checks what it decodes: nothing gets further than it does here.
      if (const auto opened = delta::open_piece(exact, block)) {
        ++opened_only;
        const delta::BoundBlock bound{&block, memory.data()};
        const auto change = delta::Stage({&bound, 1}, std::numeric_limits<std::uint64_t>::max()).add(0, *opened);
        REQUIRE_FALSE(change);
        REQUIRE(change.error() == piece.error());
      }
      continue;
    }
    ++accepted;
    const delta::BoundBlock bound{&block, memory.data()};
    differences += piece->kind == PieceKind::ulp_delta ? 1 : 0;
    const delta::Digest before = delta::digest_of(bound);
    delta::Stage stage({&bound, 1}, std::numeric_limits<std::uint64_t>::max());
    const auto change = stage.add(0, *piece);
    REQUIRE(change);
    stage.exchange({});
    REQUIRE(delta::digest_of(bound) == before + *change);
  }
  REQUIRE(accepted > 1000);
  REQUIRE(opened_only > 200);
  REQUIRE(differences > 200);
}
