// The codecs of a tile: whatever is forced or chosen, pieces are what FORMAT.md says, bring the right bits, and the
// choice is never larger than what it was chosen from.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "delta_reference_piece.hpp"
#include "flat_block.hpp"
#include "random.hpp"

#include "delta/capture.hpp"
#include "delta/stage.hpp"
#include "delta/tiles.hpp"

#include <cmath>
#include <limits>
#include <numeric>

namespace {

using namespace deltawire;
using delta::Encoding;
using delta::PieceKind;
using delta::PositionCodec;
using test::flat_block;
using Bytes = std::vector<std::byte>;
using test::uniform;

constexpr DType dtypes[] = {DType::boolean, DType::u8,  DType::u16, DType::u32,     DType::u64,
                            DType::i8,      DType::i16, DType::i32, DType::i64,     DType::f16,
                            DType::bf16,    DType::f32, DType::f64, DType::f8_e4m3, DType::f8_e5m2};

std::uint64_t bits_at(const Bytes& memory, std::uint64_t element, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, memory.data() + element * size, size);
  return bits;
}

/// A block before and after a step.
struct Step {
  layout::Block block;
  std::size_t size = 1;
  std::uint64_t elements = 0;
  Bytes before;
  Bytes after;
  std::uint64_t changed = 0;

  Step(std::mt19937_64& random, DType dtype, std::uint64_t count)
    : block(flat_block(77, dtype, count)), size(size_of(dtype)), elements(count), before(count * size_of(dtype)) {
    for (std::byte& byte : before)
      byte = static_cast<std::byte>(random());
    after = before;
  }

  /// How far changes go: neighbours mostly, as in training; a few steps; anywhere.
  enum class Size { training, small, any };

  void change_one(std::mt19937_64& random, std::uint64_t element, Size how) {
    const std::uint64_t draw = random() % 100;
    const std::uint64_t most = how == Size::any || (how == Size::training && draw == 0) ? ~std::uint64_t{0}
                               : how == Size::training && draw < 90                     ? 1
                               : how == Size::training && draw < 97                     ? 15
                                                                                        : 400;
    // Low bits count up or down: one step in ulp order wherever nothing is crossed.
    const std::uint64_t step = most == 1 ? 1 : 1 + random() % most;
    const std::uint64_t old = bits_at(before, element, size);
    const std::uint64_t now = random() % 2 ? old + step : old - step;
    std::memcpy(after.data() + element * size, &now, size);
    changed += bits_at(after, element, size) != old;
  }

  void change(std::mt19937_64& random, double density, Size how) {
    std::bernoulli_distribution taken(density);
    for (std::uint64_t element = 0; element < elements; ++element)
      if (taken(random))
        change_one(random, element, how);
  }

  /// Stretches of changes, `share` of the block.
  void change_in_runs(std::mt19937_64& random, std::uint64_t length, double share, Size how) {
    for (std::uint64_t first = random() % length; first < elements;
         first += static_cast<std::uint64_t>(static_cast<double>(length) / share))
      for (std::uint64_t element = first; element < std::min(elements, first + length); ++element)
        change_one(random, element, how);
  }
};

struct Cut {
  std::size_t limit = std::size_t{1} << 30;
  std::uint64_t chunk = std::numeric_limits<std::uint64_t>::max(); ///< elements of a range
};

delta::EncodedPieces encode(const Step& step, const Encoding& encoding, const Cut& cut = {}) {
  Bytes snapshot = step.before;
  delta::PieceEncoder encoder(cut.limit, encoding);
  for (std::uint64_t first = 0; first < step.elements;) {
    const std::uint64_t count = std::min(cut.chunk, step.elements - first);
    delta::PositionLog log;
    (void)delta::capture_changes({&step.block, step.after.data(), snapshot.data()}, first, count, &encoder, log);
    first += count;
  }
  REQUIRE(snapshot == step.after);
  return encoder.take();
}

/// What the reference makes of the pieces must be the change, and so must what the library makes of them in memory.
void check(const Step& step, const delta::EncodedPieces& encoded, const Cut& cut) {
  const auto found = test::ReferencePieces::read(
    encoded.bytes, step.block, [&](std::uint64_t element) { return bits_at(step.before, element, step.size); });
  std::uint64_t wrong = 0;
  std::uint64_t changed = 0;
  for (const auto& [element, bits] : found) {
    wrong += bits != bits_at(step.after, element, step.size);
    changed += bits != bits_at(step.before, element, step.size);
  }
  REQUIRE(wrong == 0);
  REQUIRE(changed == step.changed); // so none is missing
  REQUIRE(found.size() == encoded.changed);

  Bytes memory = step.before;
  const delta::BoundBlock bound{&step.block, memory.data()};
  delta::Stage stage({&bound, 1}, std::numeric_limits<std::uint64_t>::max());
  std::size_t begin = 0;
  for (const std::uint64_t end : encoded.ends) {
    REQUIRE(end - begin <= cut.limit);
    const Bytes exact(encoded.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                      encoded.bytes.begin() + static_cast<std::ptrdiff_t>(end)); // a sanitizer sees a read past the end
    const auto alone = delta::read_piece(exact, step.block);
    if (!alone)
      FAIL(alone.error().message);
    auto piece = delta::read_piece(std::span(encoded.bytes).subspan(begin), step.block);
    REQUIRE(piece);
    REQUIRE(piece->bytes == end - begin);
    REQUIRE(stage.add(0, *piece));
    begin = end;
  }
  REQUIRE(memory == step.before); // staging writes nothing
  stage.exchange({});
  REQUIRE(memory == step.after);
  stage.exchange({});
  REQUIRE(memory == step.before);
}

std::vector<Encoding> all_encodings() {
  std::vector<Encoding> encodings;
  for (const bool ulp : {false, true}) {
    encodings.push_back({{}, ulp});
    for (unsigned codec = 0; codec < delta::position_codecs; ++codec)
      encodings.push_back({static_cast<PositionCodec>(codec), ulp});
  }
  return encodings;
}

Step random_step(std::mt19937_64& random, int repeat) {
  // Around the tile's size and its multiples, and small.
  const std::uint64_t sizes[] = {1, 2, 63, 64, 65, 300, 4095, 4096, 4097, 8191, 8192, 8193, 12288, 13000};
  Step step(random, dtypes[random() % std::size(dtypes)],
            repeat % 2 ? sizes[random() % std::size(sizes)] : 1 + random() % 14000);
  const auto how = static_cast<Step::Size>(random() % 3);
  constexpr double densities[] = {0.0002, 0.001, 0.01, 0.07, 0.1, 0.3, 0.5, 0.9, 0.99, 0.9995, 1.0};
  if (random() % 4 == 0)
    step.change_in_runs(random, 1 + random() % 3000, 0.1 + 0.8 * static_cast<double>(random() % 10) / 10, how);
  else
    step.change(random, densities[random() % std::size(densities)], how);
  // Changes at the borders of tiles.
  if (random() % 3 == 0)
    for (std::uint64_t element = 0; element < step.elements; ++element)
      if (element % 4096 == 0 || element % 4096 == 4095)
        if (bits_at(step.after, element, step.size) == bits_at(step.before, element, step.size))
          step.change_one(random, element, how);
  return step;
}

} // namespace

TEST_CASE("every codec and the choice among them bring the right bits, and the choice is the smallest") {
  auto random = test::generator(55);
  for (int repeat = 0; repeat < 250; ++repeat) {
    Step step = random_step(random, repeat);
    const std::size_t dense = step.elements * step.size + 12;
    std::size_t smallest = std::numeric_limits<std::size_t>::max();
    std::size_t smallest_raw = smallest;
    std::size_t chosen = 0;
    std::size_t chosen_raw = 0;
    for (const Encoding& encoding : all_encodings()) {
      CAPTURE(test::seed(), repeat, static_cast<int>(step.block.dtype), step.elements, step.changed, encoding.ulp,
              encoding.positions ? static_cast<int>(*encoding.positions) : -1);
      const auto encoded = encode(step, encoding);
      check(step, encoded, {});
      REQUIRE(encoded.bytes.size() <= delta::worst_case_bytes(step.elements, step.size, std::size_t{1} << 30));
      const std::size_t bytes = encoded.bytes.size();
      if (encoding.positions) {
        smallest = std::min(smallest, bytes);
        if (!encoding.ulp)
          smallest_raw = std::min(smallest_raw, bytes);
      } else {
        (encoding.ulp ? chosen : chosen_raw) = bytes;
        REQUIRE(bytes <= dense);
      }
    }
    CAPTURE(test::seed(), repeat, step.changed);
    const std::size_t tiles = static_cast<std::size_t>((step.elements + 4095) / 4096);
    REQUIRE(chosen <= smallest + tiles); // a head may take a byte more than where the choice was made
    REQUIRE(chosen <= chosen_raw + tiles);
    REQUIRE(chosen_raw <= smallest_raw + tiles);
  }
}

TEST_CASE("pieces keep to any limit and to the worst case, whatever they are made of and however ranges are cut") {
  auto random = test::generator(56);
  const auto encodings = all_encodings();
  for (int repeat = 0; repeat < 400; ++repeat) {
    Step step = random_step(random, repeat);
    const Encoding& encoding = encodings[random() % (repeat % 2 ? encodings.size() : 1)];
    const std::size_t least = delta::least_piece_limit(step.size);
    const std::size_t limits[] = {least, least + random() % 20, least + random() % 300, 3000 + random() % 5000};
    Cut cut{limits[random() % 4], repeat % 3 ? step.elements : 1 + random() % step.elements};
    CAPTURE(test::seed(), repeat, static_cast<int>(step.block.dtype), step.elements, step.changed, cut.limit, cut.chunk,
            encoding.ulp, encoding.positions ? static_cast<int>(*encoding.positions) : -1);
    const auto encoded = encode(step, encoding, cut);
    check(step, encoded, cut);
    std::uint64_t worst = 0;
    for (std::uint64_t first = 0; first < step.elements; first += cut.chunk) {
      worst += delta::worst_case_bytes(std::min(cut.chunk, step.elements - first), step.size, cut.limit);
      if (cut.chunk >= step.elements)
        break;
    }
    REQUIRE(encoded.bytes.size() <= worst);
  }
}

TEST_CASE("changes of a training step take little more than their entropy") {
  // Geometric gaps and nine steps of ten to a neighbour: entropies are known.
  auto random = test::generator(57);
  for (const double density : {0.01, 0.02, 0.1, 0.25}) {
    Step step(random, DType::bf16, 200000);
    step.change(random, density, Step::Size::training);
    CAPTURE(test::seed(), density, step.changed);
    const double gap_bits =
      -std::log2(density) - (1 - density) / density * std::log2(1 - density); // of a geometric distribution
    // Sign, one of ten, and then 15 values (7 of 10), 400 (2 of 10) or any (1 of 10).
    const double ulp_bits = 1 + 0.469 + 0.1 * (1.16 + 0.7 * std::log2(15) + 0.2 * std::log2(400) + 0.1 * 15);
    const double bytes = static_cast<double>(encode(step, {}).bytes.size()) / static_cast<double>(step.changed);
    CHECK(bytes < 1.15 * (gap_bits + ulp_bits) / 8);
    const double raw = static_cast<double>(encode(step, {{}, false}).bytes.size()) / static_cast<double>(step.changed);
    CHECK(raw < 1.05 * (gap_bits / 8 + 2) + 0.1);
  }
}

TEST_CASE("each codec is chosen where it is best") {
  auto random = test::generator(58);
  const auto codec_of = [](const Step& step) {
    const auto encoded = encode(step, {{}, false});
    const auto piece = delta::read_piece(encoded.bytes, step.block);
    REQUIRE(piece);
    REQUIRE(piece->kind == PieceKind::delta);
    int codec = -1;
    delta::for_each_record(
      *piece, [&](std::uint64_t, std::size_t, const delta::TileHead& head, std::span<const std::byte>, std::uint64_t) {
        codec = codec < 0 ? static_cast<int>(head.codec) : codec;
        return true;
      });
    return codec;
  };
  Step one(random, DType::bf16, 4096);
  one.change_one(random, 4000, Step::Size::small);
  CHECK(codec_of(one) == static_cast<int>(PositionCodec::rice)); // u16 gaps take more: they are there to be forced
  Step near(random, DType::bf16, 4096);
  near.change_one(random, 100, Step::Size::small);
  CHECK(codec_of(near) == static_cast<int>(PositionCodec::gaps_u8));
  Step sparse(random, DType::bf16, 4096);
  sparse.change(random, 0.02, Step::Size::small);
  CHECK(codec_of(sparse) == static_cast<int>(PositionCodec::rice));
  Step half(random, DType::bf16, 4096);
  half.change(random, 0.5, Step::Size::small);
  CHECK(codec_of(half) == static_cast<int>(PositionCodec::bitmap));
  Step runs(random, DType::bf16, 4096);
  runs.change_in_runs(random, 500, 0.5, Step::Size::small);
  CHECK(codec_of(runs) == static_cast<int>(PositionCodec::run));
  Step mixed(random, DType::bf16, 8192);
  for (std::uint64_t element = 0; element < 4096; ++element)
    mixed.change_one(random, element, Step::Size::small);
  mixed.change_one(random, 5000, Step::Size::small);
  CHECK(codec_of(mixed) == static_cast<int>(PositionCodec::dense));
}

TEST_CASE("what changes everywhere and anyhow is sent as values, not more") {
  auto random = test::generator(59);
  for (const double density : {1.0, 0.9999, 0.99})
    for (const DType dtype : {DType::bf16, DType::f32, DType::u8}) {
      Step step(random, dtype, 50000);
      step.change(random, density, Step::Size::any);
      CAPTURE(test::seed(), density, static_cast<int>(dtype));
      const auto encoded = encode(step, {});
      delta::PieceEncoder values(std::size_t{1} << 30);
      values.add_values(step.block, 0, step.elements, step.after.data());
      REQUIRE(encoded.bytes.size() <= values.take().bytes.size());
    }
}

TEST_CASE("bytes that were changed on the way are refused or stay inside the block, in every codec and lane") {
  auto random = test::generator(60);
  const auto encodings = all_encodings();
  std::size_t accepted = 0;
  for (int repeat = 0; repeat < 6000; ++repeat) {
    Step step(random, dtypes[random() % std::size(dtypes)], 1 + random() % 9000);
    const auto how = static_cast<Step::Size>(random() % 3);
    if (random() % 4 == 0)
      step.change_in_runs(random, 1 + random() % 100, 0.3, how);
    else
      step.change(random, std::pow(10.0, -static_cast<double>(random() % 40) / 10), how);
    Bytes bytes = encode(step, encodings[random() % encodings.size()]).bytes;
    for (std::uint64_t i = 1 + random() % 3; i > 0 && !bytes.empty(); --i) {
      const std::size_t at = random() % std::min<std::size_t>(bytes.size(), random() % 2 ? 20 : 100000);
      switch (random() % 4) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << (random() % 8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random());
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
    const auto piece = delta::read_piece(exact, step.block);
    if (!piece) {
      REQUIRE(piece.error().code == Code::invalid_input);
      continue;
    }
    ++accepted;
    // What is accepted is a piece for the reference too, and means the same.
    const Bytes whole(exact.begin(), exact.begin() + static_cast<std::ptrdiff_t>(piece->bytes));
    const auto found = test::ReferencePieces::read(
      whole, step.block, [&](std::uint64_t element) { return bits_at(step.before, element, step.size); });
    REQUIRE(found.size() == piece->changed);
    Bytes memory = step.before;
    const delta::BoundBlock bound{&step.block, memory.data()};
    delta::Stage stage({&bound, 1}, std::numeric_limits<std::uint64_t>::max());
    REQUIRE(stage.add(0, *piece));
    stage.exchange({});
    Bytes expected = step.before;
    for (const auto& [element, bits] : found)
      std::memcpy(expected.data() + element * step.size, &bits, step.size);
    REQUIRE(memory == expected);
  }
  REQUIRE(accepted > 300);
}
