// Contract of delta/stage.hpp that delta_pipeline_test.cpp does not reach: caps, slabs that end in the middle of a
// piece, lists longer than what is sorted at a time, places that 32 bits do not tell apart, and the bound.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "random.hpp"

#include "delta/capture.hpp"
#include "delta/stage.hpp"

#include <limits>

namespace {

using namespace deltawire;
using Bytes = std::vector<std::byte>;
using test::uniform;

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t bits_at(const std::byte* at, std::size_t size) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < size; ++i)
    bits |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  return bits;
}

/// A block that an owner holds densely and a worker in its own way, before and after a change of some elements.
struct Change {
  layout::Block owner;
  layout::Block worker;
  std::size_t size = 1;
  Bytes owned;  ///< after
  Bytes memory; ///< the worker's, before
  Bytes expected;
  delta::Digest digest = 0; ///< what it changes by
  std::vector<Bytes> pieces;

  Change(std::mt19937_64& random, DType dtype, std::vector<layout::Index> extents, const test::Strides& at_worker,
         std::vector<layout::Index> slot_strides, double density, std::size_t piece_limit, bool forced)
    : size(size_of(dtype)) {
    owner.dtype = dtype;
    owner.extents = std::move(extents);
    owner.slot_offset = 12345678901;
    owner.slot_strides = std::move(slot_strides);
    owner.local_strides.resize(owner.extents.size());
    layout::Index stride = 1;
    for (std::size_t d = owner.extents.size(); d-- > 0; stride *= owner.extents[d])
      owner.local_strides[d] = stride;
    worker = owner;
    worker.local_offset = at_worker.offset;
    worker.local_strides = at_worker.strides;
    const std::uint64_t elements = test::count_of(owner);
    owned.resize(elements * size);
    for (std::byte& byte : owned)
      byte = static_cast<std::byte>(random());
    memory.assign(static_cast<std::size_t>(at_worker.reach) * size, std::byte{0xAB});
    const auto at = [&](Bytes& bytes, std::uint64_t e) {
      return bytes.data() +
             static_cast<std::size_t>(test::address(worker, e, worker.local_offset, worker.local_strides)) * size;
    };
    for (std::uint64_t e = 0; e < elements; ++e)
      std::memcpy(at(memory, e), owned.data() + e * size, size);
    Bytes snapshot = owned;
    expected = memory;
    std::bernoulli_distribution taken(density);
    for (std::uint64_t e = 0; e < elements; ++e)
      if (taken(random)) {
        const auto slot = static_cast<std::uint64_t>(test::address(owner, e, owner.slot_offset, owner.slot_strides));
        std::byte* now = owned.data() + e * size;
        digest -= delta::mix(slot, bits_at(now, size));
        now[0] ^= static_cast<std::byte>(1 + random() % 3);
        digest += delta::mix(slot, bits_at(now, size));
        std::memcpy(at(expected, e), now, size);
      }
    delta::Encoding encoding;
    if (forced)
      encoding.positions = delta::PositionCodec::gaps_u16;
    delta::PieceEncoder encoder(piece_limit, encoding);
    delta::PositionLog log;
    (void)delta::capture_changes({&owner, owned.data(), snapshot.data()}, 0, elements, &encoder, log);
    const auto encoded = encoder.take();
    for (std::uint64_t begin = 0, i = 0; i < encoded.ends.size(); begin = encoded.ends[i++])
      pieces.emplace_back(encoded.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                          encoded.bytes.begin() + static_cast<std::ptrdiff_t>(encoded.ends[i]));
  }

  Result<delta::Digest> stage_in(delta::Stage& stage) const {
    delta::Digest announced = 0;
    for (const Bytes& bytes : pieces) {
      const auto change = stage.add(0, delta::open_piece(bytes, worker).value());
      if (!change)
        return change;
      announced += *change;
    }
    return announced;
  }

  /// Stages, exchanges, reads back and undoes.
  void check(delta::Stage& stage) {
    const Bytes before = memory;
    REQUIRE(stage_in(stage).value() == digest);
    REQUIRE(memory == before);
    delta::Digest taken = 0;
    delta::Digest found = 0;
    stage.read_back({&taken, 1});
    stage.exchange({&found, 1});
    REQUIRE(taken == found); // what is there is what is taken
    found = 0;
    REQUIRE(memory == expected);
    stage.read_back({&found, 1});
    REQUIRE(found - taken == digest);
    stage.exchange({});
    REQUIRE(memory == before);
    stage.clear();
  }

  delta::BoundBlock bound() { return {&worker, memory.data()}; }
};

/// Dims whose strides nest in the order given, outermost first.
test::Strides nested(const std::vector<layout::Index>& extents, const std::vector<std::size_t>& order) {
  test::Strides result;
  result.strides.resize(extents.size());
  result.reach = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    result.strides[*dim] = result.reach;
    result.reach *= extents[*dim];
  }
  return result;
}

} // namespace

TEST_CASE("a transposed block of more changes than are sorted at a time arrives whole") {
  auto random = test::generator(60);
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (const double density : {0.01, 0.4, 1.0}) {
      CAPTURE(test::seed(), static_cast<int>(dtype), density);
      const std::vector<layout::Index> extents = {370, 530};
      Change change(random, dtype, extents, nested(extents, {1, 0}), {530, 1}, density, std::size_t{1} << 24, true);
      const delta::BoundBlock bound = change.bound();
      delta::Stage stage({&bound, 1}, unlimited);
      change.check(stage);
      const std::uint64_t held = stage.held();
      change.check(stage); // in the same slabs
      REQUIRE(stage.held() == held);
    }
}

TEST_CASE("slot positions that 32 bits do not tell apart are kept whole") {
  auto random = test::generator(61);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const std::vector<layout::Index> extents = {40, 3, 50};
    const layout::Index far = (layout::Index{1} << 31) + static_cast<layout::Index>(random() % 1000);
    Change change(random, DType::bf16, extents, nested(extents, {2, 0, 1}), {far, 50, 1}, 0.2, 300 + random() % 5000,
                  random() % 2 != 0);
    CAPTURE(test::seed(), repeat, far);
    const delta::BoundBlock bound = change.bound();
    delta::Stage stage({&bound, 1}, unlimited);
    change.check(stage);
  }
}

TEST_CASE("a stage holds no more than its cap, says what it needs, and no more than the bound") {
  auto random = test::generator(62);
  std::size_t refused = 0;
  std::size_t taken = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    const std::vector<layout::Index> extents = test::random_extents(random, 20000);
    const test::Strides at_worker = test::random_strides(random, extents, random() % 2 != 0, random() % 2 != 0);
    std::vector<std::size_t> order(extents.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const DType dtype = std::vector{DType::u8, DType::bf16, DType::f32, DType::f64}[random() % 4];
    const std::size_t limit = delta::least_piece_limit(size_of(dtype)) + random() % 9000;
    Change change(random, dtype, extents, at_worker, nested(extents, order).strides, random() % 2 ? 1.0 : 0.2, limit,
                  random() % 2 != 0);
    const std::uint64_t cap = random() % 200000;
    CAPTURE(test::seed(), repeat, cap, limit, test::count_of(change.worker));
    const delta::BoundBlock bound = change.bound();
    delta::Stage small({&bound, 1}, cap);
    const Bytes before = change.memory;
    const auto staged = change.stage_in(small);
    REQUIRE(small.held() <= cap);
    REQUIRE(change.memory == before);
    if (staged) {
      ++taken;
      small.clear();
      change.check(small);
      REQUIRE(small.held() <= cap);
    } else {
      ++refused;
      REQUIRE(staged.error().code == Code::limit_exceeded);
      REQUIRE(staged.error().message.find(std::to_string(cap) + " bytes do not hold") == 0);
    }
    delta::Stage all({&bound, 1}, unlimited);
    change.check(all);
    REQUIRE(all.held() <= delta::worst_case_staged_bytes(change.worker, test::count_of(change.worker), limit) +
                            delta::stage_overhead());
    // The bound is that of one that is given no more.
    delta::Stage exact({&bound, 1},
                       delta::worst_case_staged_bytes(change.worker, test::count_of(change.worker), limit) +
                         delta::stage_overhead());
    change.check(exact);
  }
  REQUIRE(refused > 30);
  REQUIRE(taken > 30);
}
