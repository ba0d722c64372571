// Contract of delta/compression.hpp and of compressed pieces: what is compressed comes back bit for bit, a piece never
// gets larger, and frames that are not what they must be are refused before memory is taken for them.
#include "catch.hpp"
#include "flat_block.hpp"
#include "random.hpp"

#include "delta/capture.hpp"
#include "delta/stage.hpp"

#include <bit>
#include <cstring>

namespace {

using namespace deltawire;
using delta::PieceKind;
using test::flat_block;
using Bytes = std::vector<std::byte>;

/// Values as weights have them, of any width: the upper bytes are much alike.
Bytes weights(std::mt19937_64& random, std::size_t elements, std::size_t size) {
  std::normal_distribution<double> normal(0, 0.02);
  Bytes bytes(elements * size);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(normal(random));
    std::memcpy(bytes.data() + i * size, reinterpret_cast<const char*>(&bits) + 8 - size, size);
  }
  return bytes;
}

Bytes noise(std::mt19937_64& random, std::size_t bytes) {
  Bytes all(bytes);
  for (std::byte& byte : all)
    byte = static_cast<std::byte>(random());
  return all;
}

struct Case {
  layout::Block block;
  Bytes before;
  Bytes after;
};

/// Other values for a share of the elements.
Case changed(std::mt19937_64& random, DType dtype, std::size_t elements, double density) {
  const std::size_t size = size_of(dtype);
  Case made{flat_block(5, dtype, elements), weights(random, elements, size), {}};
  made.after = made.before;
  const Bytes other = weights(random, elements, size);
  std::bernoulli_distribution taken(density);
  for (std::size_t i = 0; i < elements; ++i)
    if (taken(random))
      std::memcpy(made.after.data() + i * size, other.data() + i * size, size);
  return made;
}

delta::EncodedPieces encode(const Case& made, bool all, bool ulp, bool compress, std::size_t limit) {
  delta::PieceEncoder encoder(limit, {{}, ulp, compress});
  const std::uint64_t elements = made.before.size() / size_of(made.block.dtype);
  Bytes snapshot = made.before;
  delta::PositionLog log;
  if (all)
    encoder.add_values(made.block, 0, elements, made.after.data());
  else
    (void)delta::capture_changes({&made.block, made.after.data(), snapshot.data()}, 0, elements, &encoder, log);
  return encoder.take();
}

/// Stages and exchanges; returns how many pieces were compressed.
std::size_t apply(const delta::EncodedPieces& pieces, const layout::Block& block, Bytes& memory) {
  const delta::BoundBlock bound{&block, memory.data()};
  delta::Stage stage({&bound, 1}, ~std::uint64_t{0});
  delta::Expander expander;
  std::size_t compressed = 0;
  std::uint64_t begin = 0;
  for (const std::uint64_t end : pieces.ends) {
    const auto bytes = std::span(pieces.bytes).subspan(begin, end - begin);
    compressed += delta::peek_piece(bytes).value().kind == PieceKind::compressed;
    const auto piece = delta::read_piece(bytes, block, &expander).value();
    REQUIRE(piece.bytes == bytes.size());
    REQUIRE(piece.kind != PieceKind::compressed);
    REQUIRE(stage.add(0, piece));
    begin = end;
  }
  stage.exchange({});
  return compressed;
}

/// A zstd frame of RLE blocks: `bytes` zeros, of which it says that they are `said`.
Bytes frame_of_zeros(std::uint32_t bytes, std::uint32_t said) {
  Bytes frame;
  const auto put = [&](std::uint32_t value, unsigned count) {
    for (unsigned i = 0; i < count; ++i)
      frame.push_back(static_cast<std::byte>(value >> (8 * i)));
  };
  put(0xFD2FB528, 4);
  put(0xA0, 1); // a single segment, 4 bytes of content size
  put(said, 4);
  constexpr std::uint32_t most = 128 << 10;
  do {
    const std::uint32_t block = std::min(bytes, most);
    bytes -= block;
    put(block << 3 | 1u << 1 | (bytes == 0 ? 1 : 0), 3);
    put(0, 1);
  } while (bytes > 0);
  return frame;
}

/// A compressed piece of all of block 5: fewer than 16384 bytes.
Bytes piece_of(std::uint8_t kind, std::uint8_t values, const Bytes& frame) {
  const std::size_t body = 2 + frame.size();
  Bytes bytes{std::byte{0x53}, static_cast<std::byte>(body | 0x80), static_cast<std::byte>(body >> 7), std::byte{kind},
              std::byte{values}};
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  return bytes;
}

void refuses(const Bytes& bytes, const layout::Block& block, const std::string& why) {
  delta::Expander expander;
  const auto piece = delta::read_piece(bytes, block, &expander);
  CAPTURE(why);
  REQUIRE(!piece);
  CHECK(piece.error().code == Code::invalid_input);
  CHECK_THAT(piece.error().message, Catch::Contains(why));
}

} // namespace

TEST_CASE("compressed pieces bring the same bits in fewer bytes, within limit and worst case") {
  if (!delta::can_compress())
    return;
  auto random = test::generator(90);
  for (const DType dtype : {DType::f8_e4m3, DType::bf16, DType::f32, DType::f64})
    for (const double density : {0.001, 0.05, 1.0})
      for (const bool all : {false, true})
        for (const bool ulp : {false, true}) {
          const std::size_t limit = delta::least_piece_limit(8) + random() % (random() % 2 ? 60000 : 500);
          const std::size_t elements = 1 + random() % 40000;
          CAPTURE(test::seed(), static_cast<int>(dtype), density, all, ulp, limit, elements);
          const Case made = changed(random, dtype, elements, density);
          const auto plain = encode(made, all, ulp, false, limit);
          const auto pieces = encode(made, all, ulp, true, limit);
          REQUIRE(pieces.bytes.size() <= plain.bytes.size());
          REQUIRE(pieces.ends.size() == plain.ends.size());
          REQUIRE(pieces.changed == plain.changed);
          REQUIRE(pieces.bytes.size() <= delta::worst_case_bytes(elements, size_of(dtype), limit));
          for (std::size_t i = 0, begin = 0; i < pieces.ends.size(); begin = pieces.ends[i++])
            REQUIRE(pieces.ends[i] - begin <= limit);
          Bytes memory = made.before;
          const std::size_t compressed = apply(pieces, made.block, memory);
          REQUIRE(memory == made.after);
          REQUIRE((compressed == 0) == (pieces.bytes.size() == plain.bytes.size()));
        }
}

TEST_CASE("weights get a quarter smaller, noise stays as it is") {
  if (!delta::can_compress())
    return;
  auto random = test::generator(91);
  Case made = changed(random, DType::bf16, 300000, 1.0);
  const auto plain = encode(made, true, false, false, delta::most_plain_bytes);
  const auto pieces = encode(made, true, false, true, delta::most_plain_bytes);
  CHECK(pieces.bytes.size() * 4 < plain.bytes.size() * 3);
  Bytes memory = made.before;
  CHECK(apply(pieces, made.block, memory) == 1);
  CHECK(memory == made.after);
  made.after = noise(random, made.after.size());
  CHECK(encode(made, true, false, true, delta::most_plain_bytes).bytes ==
        encode(made, true, false, false, delta::most_plain_bytes).bytes);
}

TEST_CASE("compressed pieces that are not what they must be are refused") {
  if (!delta::can_compress())
    return;
  constexpr std::uint32_t elements = 3000;
  const auto block = flat_block(5, DType::bf16, elements);
  delta::Expander expander;
  const Bytes good = piece_of(1, 0, frame_of_zeros(2 * elements, 2 * elements));
  const auto piece = delta::read_piece(good, block, &expander);
  REQUIRE(piece);
  REQUIRE(piece->kind == PieceKind::values);
  REQUIRE(std::all_of(piece->values.begin(), piece->values.end(), [](std::byte byte) { return byte == std::byte{0}; }));
  REQUIRE(delta::read_piece(piece_of(1, 100, frame_of_zeros(2 * elements, 2 * elements)), block, &expander));

  const auto unexpected = delta::read_piece(good, block);
  REQUIRE(!unexpected);
  CHECK_THAT(unexpected.error().message, Catch::Contains("compressed, where no piece may be"));
  refuses(piece_of(3, 0, frame_of_zeros(2 * elements, 2 * elements)), block, "do not say what they hold");
  refuses(piece_of(1, 0, {}), block, "0 bytes are no zstd frame");
  refuses(piece_of(1, 0, Bytes(40)), block, "no zstd frame");
  refuses(piece_of(1, 0, frame_of_zeros(2 * elements, 0)), block, "says that it holds 0 bytes");
  refuses(piece_of(1, 0, frame_of_zeros(1 << 23, 1 << 23)), block, "says that it holds 8388608 bytes");
  refuses(piece_of(1, 0, frame_of_zeros(1 << 22, 0xFFFFFFFF)), block, "says that it holds 4294967295 bytes");
  refuses(piece_of(1, 0, frame_of_zeros(1 << 22, 2 * elements)), block, "corrupt");
  refuses(piece_of(1, 0, frame_of_zeros(2 * elements - 1, 2 * elements)), block, "corrupt");
  refuses(piece_of(1, 0, frame_of_zeros(1 << 22, 1 << 22)), block, "4194304 bytes of values for 3000 elements");
  refuses(piece_of(1, 0, frame_of_zeros(2 * elements - 2, 2 * elements - 2)), block, "bytes of values for 3000");
  refuses(piece_of(0, 0, frame_of_zeros(100, 100)), block, "no changes");
  refuses(piece_of(1, 101, frame_of_zeros(200, 200)), block, "101 values of 2 bytes at the end of 200 bytes");
  Bytes two = frame_of_zeros(elements, elements);
  two.insert(two.end(), two.begin(), two.end());
  refuses(piece_of(1, 0, two), block, "not one zstd frame");
  Bytes longer = frame_of_zeros(2 * elements, 2 * elements);
  longer.push_back(std::byte{0});
  refuses(piece_of(1, 0, longer), block, "not one zstd frame");
  Bytes shorter = frame_of_zeros(2 * elements, 2 * elements);
  shorter.pop_back();
  refuses(piece_of(1, 0, shorter), block, "not one zstd frame");
  Bytes skipped{std::byte{0x50}, std::byte{0x2A}, std::byte{0x4D}, std::byte{0x18}, std::byte{1}, {}, {}, {}, {}};
  refuses(piece_of(1, 0, skipped), block, "no zstd frame");
  Bytes old = frame_of_zeros(2 * elements, 2 * elements);
  old[0] = std::byte{0x27}; // of zstd 0.7
  refuses(piece_of(1, 0, old), block, "no zstd frame");
}

TEST_CASE("compressed pieces that were changed on the way are refused or stay inside the block") {
  if (!delta::can_compress())
    return;
  auto random = test::generator(92);
  std::size_t refused = 0;
  for (int repeat = 0; repeat < 40; ++repeat) {
    const Case made = changed(random, DType::bf16, 5000, repeat % 2 ? 1.0 : 0.3);
    const auto pieces = encode(made, repeat % 4 < 2, repeat % 3 != 0, true, 4000);
    for (int change = 0; change < 20; ++change) {
      Bytes bytes = pieces.bytes;
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << random() % 8);
      CAPTURE(test::seed(), repeat, change);
      Bytes memory = made.before;
      const delta::BoundBlock bound{&made.block, memory.data()};
      delta::Stage stage({&bound, 1}, ~std::uint64_t{0});
      delta::Expander expander;
      for (std::span<const std::byte> rest = bytes; !rest.empty();) {
        const auto piece = delta::read_piece(rest, made.block, &expander);
        if (!piece) {
          REQUIRE(piece.error().code == Code::invalid_input);
          ++refused;
          break;
        }
        REQUIRE(piece->first + piece->elements <= 5000);
        REQUIRE(stage.add(0, *piece));
        rest = rest.subspan(piece->bytes);
      }
      stage.exchange({});
    }
  }
  REQUIRE(refused > 100);
}
