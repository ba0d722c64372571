// Contracts of delta/capture.hpp and delta/apply.hpp together: whatever changed on the owner's side, capture, encode,
// carry, read and exchange leave the worker with the owner's bits, touch nothing else, and account for it in the
// digest.
#include "cast_oracle.hpp"
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "random.hpp"

#include "delta/apply.hpp"
#include "delta/capture.hpp"
#include "delta/stage.hpp"

#include <bit>
#include <limits>

namespace {

using namespace deltawire;
using Bytes = std::vector<std::byte>;
using test::Sides;
using test::uniform;

constexpr double densities[] = {0.0, 0.0005, 0.01, 0.1, 0.5, 0.9, 1.0};

constexpr DType dtypes[] = {DType::boolean, DType::u8,  DType::f8_e4m3, DType::bf16, DType::f16,
                            DType::i32,     DType::f32, DType::f64,     DType::i64};

std::uint64_t bits_at(const std::byte* at, std::size_t size) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < size; ++i)
    bits |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  return bits;
}

delta::Digest digest_of_owner(Sides& sides, std::uint64_t first, std::uint64_t end) {
  delta::Digest digest = 0;
  for (std::uint64_t e = first; e < end; ++e)
    digest += delta::mix(sides.slot_position(e), bits_at(sides.at_owner(e), sides.size));
  return digest;
}

delta::Digest digest_of_worker(Sides& sides) {
  delta::Digest digest = 0;
  for (std::uint64_t e = 0; e < sides.elements; ++e)
    digest += delta::mix(sides.slot_position(e), bits_at(sides.at_worker(e), sides.size));
  return digest;
}

/// Flips bits of random elements of the owner's memory, mostly of their low ones as an optimizer does in one half of
/// the calls; returns how many elements changed.
std::uint64_t change(std::mt19937_64& random, Sides& sides, double density) {
  std::bernoulli_distribution taken(density);
  const bool small = random() % 2 != 0;
  std::uint64_t changed = 0;
  for (std::uint64_t e = 0; e < sides.elements; ++e)
    if (taken(random)) {
      if (small && random() % 8 != 0)
        sides.at_owner(e)[0] ^= std::byte{1};
      else
        sides.at_owner(e)[random() % sides.size] ^= static_cast<std::byte>(1u << (random() % 8));
      ++changed;
    }
  return changed;
}

/// Cuts the block into chunks at random places and calls visit(first, count).
template <class Visit>
void for_each_chunk(std::mt19937_64& random, std::uint64_t elements, Visit&& visit) {
  for (std::uint64_t first = 0; first < elements;) {
    const std::uint64_t count = uniform(random, 1, elements - first);
    visit(first, count);
    first += count;
  }
}

void seed_snapshot(std::mt19937_64& random, Sides& sides) {
  delta::Digest digest = 0;
  std::uint64_t captured = 0;
  for_each_chunk(random, sides.elements, [&](std::uint64_t first, std::uint64_t count) {
    const auto part =
      delta::capture_all({&sides.owner, sides.owner_memory.data(), sides.snapshot.data()}, first, count);
    digest += part.digest_change;
    captured += part.changed;
  });
  REQUIRE(captured == sides.elements);
  REQUIRE(digest == digest_of_owner(sides, 0, sides.elements));
  for (std::uint64_t e = 0; e < sides.elements; ++e)
    REQUIRE(std::memcmp(sides.snapshot.data() + e * sides.size, sides.at_owner(e), sides.size) == 0);
}

/// Reads pieces off the front of `bytes` as an Applier does and calls visit(piece).
template <class Visit>
void for_each_piece(const Bytes& bytes, const layout::Block& block, Visit&& visit) {
  std::span<const std::byte> rest = bytes;
  while (!rest.empty()) {
    const auto peeked = delta::peek_piece(rest);
    REQUIRE(peeked);
    REQUIRE(peeked->block == block.id);
    const auto piece = delta::read_piece(rest, block);
    if (!piece)
      FAIL(piece.error().message);
    visit(*piece);
    rest = rest.subspan(piece->bytes);
  }
}

/// A stage of one block.
delta::Stage make_stage(const delta::BoundBlock& bound) {
  return {{&bound, 1}, std::numeric_limits<std::uint64_t>::max()};
}

/// Stages all pieces; returns what they say the digest will change by.
delta::Digest stage_all(delta::Stage& stage, const Bytes& bytes, const layout::Block& block) {
  delta::Digest announced = 0;
  for_each_piece(bytes, block, [&](const delta::PieceView& piece) {
    const auto change = stage.add(0, piece);
    if (!change)
      FAIL(change.error().message);
    announced += *change;
  });
  return announced;
}

/// Exchanges and returns what was read back less what was taken.
delta::Digest exchange(delta::Stage& stage) {
  delta::Digest taken = 0;
  delta::Digest found = 0;
  stage.exchange({&taken, 1});
  stage.read_back({&found, 1});
  return found - taken;
}

std::size_t random_limit(std::mt19937_64& random, std::size_t size) {
  const std::size_t least = delta::least_piece_limit(size);
  return std::vector{least, least + random() % 500, std::size_t{1} << 14,
                     std::numeric_limits<std::size_t>::max()}[random() % 4];
}

void check_update(std::mt19937_64& random, Sides& sides, double density) {
  seed_snapshot(random, sides);
  sides.copy_all(); // the worker serves what the snapshot holds
  const Bytes worker_before = sides.worker_memory;
  const std::uint64_t changed = change(random, sides, density);

  const std::size_t limit = random_limit(random, sides.size);
  CAPTURE(density, limit, changed);
  const delta::Encoding encoding{{}, random() % 3 != 0};
  delta::PieceEncoder encoder(limit, encoding);
  delta::PieceEncoder delivery(limit);
  delta::Digest digest_change = 0;
  std::uint64_t found = 0;
  const delta::Digest before = digest_of_worker(sides);
  const Bytes owner_before = sides.owner_memory;
  Bytes carried;
  for_each_chunk(random, sides.elements, [&](std::uint64_t first, std::uint64_t count) {
    delta::PositionLog log;
    const bool encoded_at_capture = random() % 3 != 0;
    const auto captured = delta::capture_changes({&sides.owner, sides.owner_memory.data(), sides.snapshot.data()},
                                                 first, count, encoded_at_capture ? &encoder : nullptr, log);
    digest_change += captured.digest_change;
    found += captured.changed;
    REQUIRE(log.changed() == captured.changed);
    delta::encode_logged(sides.owner, sides.snapshot.data(), first, count, log, delivery);
    const auto logged = delivery.take();
    REQUIRE(logged.bytes.size() <= delta::worst_case_bytes(count, sides.size, limit));
    if (encoded_at_capture) {
      const auto direct = encoder.take();
      REQUIRE(direct.bytes.size() <= delta::worst_case_bytes(count, sides.size, limit));
      if (!encoding.ulp) {
        REQUIRE(direct.bytes == logged.bytes);
        REQUIRE(direct.ends == logged.ends);
      }
      carried.insert(carried.end(), direct.bytes.begin(), direct.bytes.end());
    } else {
      carried.insert(carried.end(), logged.bytes.begin(), logged.bytes.end());
    }
  });
  REQUIRE(found == changed);
  REQUIRE(sides.owner_memory == owner_before);
  for (std::uint64_t e = 0; e < sides.elements; ++e)
    if (std::memcmp(sides.snapshot.data() + e * sides.size, sides.at_owner(e), sides.size) != 0)
      FAIL("the snapshot lags at element " << e);
  REQUIRE(before + digest_change == digest_of_owner(sides, 0, sides.elements));

  const delta::BoundBlock bound{&sides.worker, sides.worker_memory.data()};
  REQUIRE(delta::digest_of(bound) == before);
  delta::Stage stage = make_stage(bound);
  if (random() % 2 != 0) { // what a delivery that was given up leaves behind
    (void)stage_all(stage, carried, sides.worker);
    stage.clear();
  }
  REQUIRE(stage_all(stage, carried, sides.worker) == digest_change);
  REQUIRE(sides.worker_memory == worker_before);
  REQUIRE(exchange(stage) == digest_change);
  const Bytes exchanged = sides.worker_memory;
  REQUIRE(delta::digest_of(bound) == before + digest_change);
  stage.exchange({}); // undo
  REQUIRE(sides.worker_memory == worker_before);
  bool differences = false;
  for_each_piece(carried, sides.worker, [&](const delta::PieceView& piece) {
    if (piece.kind == delta::PieceKind::ulp_delta)
      differences = true;
    else
      delta::write_values(bound, piece, piece.values);
  });
  if (differences) { // a seed has none
    sides.worker_memory = worker_before;
    stage.exchange({});
  }
  REQUIRE(sides.worker_memory == exchanged);
  sides.copy_all();
  REQUIRE(exchanged == sides.worker_memory); // padding and gaps included
}

} // namespace

TEST_CASE("changes captured on one side and exchanged on the other equal a plain copy") {
  auto random = test::generator(40);
  for (int repeat = 0; repeat < 600; ++repeat) {
    const DType dtype = dtypes[random() % std::size(dtypes)];
    Sides sides(random, dtype, repeat % 3 == 0 ? 40000 : 3000);
    CAPTURE(test::seed(), repeat, static_cast<int>(dtype), sides.elements);
    check_update(random, sides, densities[random() % std::size(densities)]);
  }
}

TEST_CASE("values of a whole block seed a worker whatever its layout") {
  auto random = test::generator(41);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const DType dtype = dtypes[random() % std::size(dtypes)];
    Sides sides(random, dtype, repeat % 3 == 0 ? 40000 : 3000);
    CAPTURE(test::seed(), repeat, static_cast<int>(dtype), sides.elements);
    seed_snapshot(random, sides);
    const std::size_t limit = random_limit(random, sides.size);
    delta::PieceEncoder encoder(limit);
    for_each_chunk(random, sides.elements, [&](std::uint64_t first, std::uint64_t count) {
      delta::encode_all(sides.owner, sides.snapshot.data(), first, count, encoder);
    });
    const auto encoded = encoder.take();
    REQUIRE(encoded.changed == sides.elements);

    const delta::BoundBlock bound{&sides.worker, sides.worker_memory.data()};
    const Bytes before = sides.worker_memory;
    const delta::Digest digest_before = digest_of_worker(sides);
    delta::Stage stage = make_stage(bound);
    const delta::Digest announced = stage_all(stage, encoded.bytes, sides.worker);
    REQUIRE(exchange(stage) == announced);
    REQUIRE(delta::digest_of(bound) == digest_before + announced);
    REQUIRE(delta::digest_of(bound) == digest_of_owner(sides, 0, sides.elements));
    const Bytes exchanged = sides.worker_memory;
    stage.exchange({});
    REQUIRE(sides.worker_memory == before);
    for_each_piece(encoded.bytes, sides.worker,
                   [&](const delta::PieceView& piece) { delta::write_values(bound, piece, piece.values); });
    REQUIRE(sides.worker_memory == exchanged);
    sides.copy_all();
    REQUIRE(exchanged == sides.worker_memory);
  }
}

TEST_CASE("two captures fold into one delivery of their union with the last values") {
  auto random = test::generator(42);
  for (int repeat = 0; repeat < 100; ++repeat) {
    Sides sides(random, dtypes[random() % std::size(dtypes)], 12000);
    CAPTURE(test::seed(), repeat, sides.elements);
    seed_snapshot(random, sides);
    sides.copy_all();
    const delta::OwnedBlock owned{&sides.owner, sides.owner_memory.data(), sides.snapshot.data()};
    delta::PositionLog log;
    delta::PositionLog second;
    change(random, sides, densities[random() % std::size(densities)]);
    auto digest = delta::capture_changes(owned, 0, sides.elements, nullptr, log).digest_change;
    change(random, sides, densities[random() % std::size(densities)]);
    digest += delta::capture_changes(owned, 0, sides.elements, nullptr, second).digest_change;
    log.merge(second);

    delta::PieceEncoder encoder(random_limit(random, sides.size));
    // Delivery may cut the range otherwise than capture did.
    for_each_chunk(random, sides.elements, [&](std::uint64_t first, std::uint64_t count) {
      delta::encode_logged(sides.owner, sides.snapshot.data(), first, count, log, encoder);
    });
    const delta::BoundBlock bound{&sides.worker, sides.worker_memory.data()};
    const auto encoded = encoder.take();
    REQUIRE(encoded.changed >= log.changed()); // more where all values are no more bytes
    delta::Stage stage = make_stage(bound);
    REQUIRE(stage_all(stage, encoded.bytes, sides.worker) == digest);
    REQUIRE(exchange(stage) == digest);
    const Bytes applied = sides.worker_memory;
    sides.copy_all();
    REQUIRE(applied == sides.worker_memory);
  }
}

TEST_CASE("a capture of memory that is cast is the capture of what it is cast to") {
  auto random = test::generator(43);
  struct Pair {
    DType held, wire;
  };
  for (int repeat = 0; repeat < 200; ++repeat) {
    const Pair pair = std::vector<Pair>{{DType::f32, DType::bf16},
                                        {DType::f32, DType::f16},
                                        {DType::bf16, DType::f32},
                                        {DType::f16, DType::f32}}[random() % 4];
    Sides sides(random, pair.wire, repeat % 3 == 0 ? 40000 : 3000); // its memory holds what is cast to
    CAPTURE(test::seed(), repeat, static_cast<int>(pair.held), static_cast<int>(pair.wire), sides.elements);
    const std::size_t size = size_of(pair.held);
    Bytes held(sides.owner_memory.size() / sides.size * size);
    const auto write = [&](double density) {
      std::bernoulli_distribution taken(density);
      for (std::size_t i = 0; i * size < held.size(); ++i)
        if (taken(random)) {
          const std::uint64_t bits = random() & (size == 2 ? 0xFFFFu : random() % 2 ? 0xFFFFFFFFu : 0x3FFF8000u);
          const std::uint64_t cast = test::on_wire(bits, pair.held, pair.wire);
          std::memcpy(held.data() + i * size, &bits, size);
          std::memcpy(sides.owner_memory.data() + i * sides.size, &cast, sides.size);
        }
    };
    write(1);
    Bytes snapshot(sides.snapshot.size());
    const delta::OwnedBlock plain{&sides.owner, sides.owner_memory.data(), sides.snapshot.data()};
    const delta::OwnedBlock cast{&sides.owner, held.data(), snapshot.data(), delta::cast_between(pair.held, pair.wire)};
    for_each_chunk(random, sides.elements, [&](std::uint64_t first, std::uint64_t count) {
      REQUIRE(delta::capture_all(cast, first, count).digest_change ==
              delta::capture_all(plain, first, count).digest_change);
    });
    REQUIRE(snapshot == sides.snapshot);
    const Bytes held_before = held;
    const Bytes owner_before = sides.owner_memory;
    write(densities[random() % std::size(densities)]);
    if (random() % 4 == 0) { // there and back
      held = held_before;
      sides.owner_memory = owner_before;
    }
    const std::size_t limit = random_limit(random, sides.size);
    for_each_chunk(random, sides.elements, [&](std::uint64_t first, std::uint64_t count) {
      delta::PositionLog logs[2];
      delta::PieceEncoder encoders[2]{delta::PieceEncoder(limit), delta::PieceEncoder(limit)};
      const delta::Captured found = delta::capture_changes(cast, first, count, &encoders[0], logs[0]);
      const delta::Captured expected = delta::capture_changes(plain, first, count, &encoders[1], logs[1]);
      REQUIRE(found.changed == expected.changed);
      REQUIRE(found.digest_change == expected.digest_change);
      REQUIRE(logs[0].changed() == logs[1].changed());
      REQUIRE(encoders[0].take().bytes == encoders[1].take().bytes);
    });
    REQUIRE(snapshot == sides.snapshot);
  }
}

TEST_CASE("bits decide what changed: NaN payloads, signed zeros, infinities and odd booleans") {
  struct Change {
    DType dtype;
    std::uint64_t before;
    std::uint64_t after;
    bool differs;
  };
  const Change changes[] = {
    {DType::f32, 0x00000000, 0x80000000, true},                  // 0.0 -> -0.0
    {DType::f32, 0x7FC00000, 0x7FC00000, false},                 // the same NaN
    {DType::f32, 0x7FC00000, 0x7FC00001, true},                  // another payload
    {DType::f32, 0x7F800001, 0x7FC00001, true},                  // a signalling NaN, quieted
    {DType::f32, 0x7F800000, 0xFF800000, true},                  // inf -> -inf
    {DType::bf16, 0x7FC0, 0xFFC0, true},                         // NaN -> -NaN
    {DType::bf16, 0x8000, 0x0000, true},                         // -0.0 -> 0.0
    {DType::f64, 0x7FF8000000000000, 0x7FF8000000000001, true},  //
    {DType::f64, 0x7FF0000000000000, 0x7FF0000000000000, false}, // inf
    {DType::f8_e4m3, 0x7F, 0xFF, true},                          // NaN -> -NaN
    {DType::boolean, 1, 2, true},                                // both true, other bits
    {DType::boolean, 1, 1, false},
    {DType::i64, 0x8000000000000000, 0, true},
  };
  for (const Change& c : changes) {
    const std::size_t size = size_of(c.dtype);
    CAPTURE(static_cast<int>(c.dtype), c.before, c.after);
    layout::Block block;
    block.id = 3;
    block.dtype = c.dtype;
    block.extents = {100};
    block.local_strides = {1};
    block.slot_strides = {1};
    Bytes memory(100 * size);
    const auto put = [&](std::uint64_t bits) { std::memcpy(memory.data() + 77 * size, &bits, size); };
    put(c.before);
    Bytes snapshot = memory;
    Bytes worker = memory;
    put(c.after);
    delta::PositionLog log;
    delta::PieceEncoder encoder(1000);
    REQUIRE(delta::capture_changes({&block, memory.data(), snapshot.data()}, 0, 100, &encoder, log).changed ==
            (c.differs ? 1u : 0u));
    const auto encoded = encoder.take();
    delta::Stage stage = make_stage({&block, worker.data()});
    (void)stage_all(stage, encoded.bytes, block);
    stage.exchange({});
    REQUIRE(worker == memory);
    REQUIRE(snapshot == memory);
  }
}

TEST_CASE("a scalar block is one element") {
  layout::Block block;
  block.dtype = DType::f32;
  block.extents = {1};
  block.local_offset = 3;
  block.local_strides = {0};
  block.slot_offset = 0;
  block.slot_strides = {0};
  std::vector<float> memory = {1, 2, 3, 4};
  std::vector<float> worker = {5, 6, 7, 3};
  float snapshot = 3;
  delta::PositionLog log;
  delta::PieceEncoder encoder(1000);
  const auto captured = delta::capture_changes(
    {&block, reinterpret_cast<const std::byte*>(memory.data()), reinterpret_cast<std::byte*>(&snapshot)}, 0, 1,
    &encoder, log);
  REQUIRE(captured.changed == 1);
  REQUIRE(captured.digest_change ==
          delta::mix(0, std::bit_cast<std::uint32_t>(4.0f)) - delta::mix(0, std::bit_cast<std::uint32_t>(3.0f)));
  REQUIRE(snapshot == 4);
  delta::Stage stage = make_stage({&block, reinterpret_cast<std::byte*>(worker.data())});
  REQUIRE(stage_all(stage, encoder.take().bytes, block) == captured.digest_change);
  REQUIRE(exchange(stage) == captured.digest_change);
  REQUIRE(worker == std::vector<float>{5, 6, 7, 4});
}
