// Contract of delta/gpu_ranges.hpp: whatever the layout, dtype and cast, and however small tables and outputs are, what
// comes out of an emulated GPU is what capture.hpp makes of the same bits on the host: changes, digests, logs, pieces
// to the byte, and the snapshot; and nothing waits past its patience.
#include "catch.hpp"
#include "delta_random_block.hpp"
#include "gpu/emulated_gpus.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include "delta/gpu_ranges.hpp"

#include <iostream>

namespace {

using namespace deltawire;
using namespace deltawire::test;
using Bytes = std::vector<std::byte>;

constexpr DType dtypes[] = {DType::boolean, DType::u8,  DType::f8_e4m3, DType::bf16, DType::f16,
                            DType::i32,     DType::f32, DType::f64,     DType::i64};
constexpr double densities[] = {0.0, 0.0005, 0.01, 0.1, 0.5, 0.9, 1.0};

/// A block's memory and snapshot, on the host and on the GPU.
struct Twins {
  Twins(std::mt19937_64& random, EmulatedGpus& of, DType held, DType wire)
    : gpus(of), sides(random, wire, uniform(random, 1, 20'000)), cast(delta::cast_between(held, wire)),
      held_size(size_of(held)) {
    const std::size_t elements = sides.owner_memory.size() / sides.size;
    memory.resize(elements * held_size);
    for (std::byte& byte : memory)
      byte = static_cast<std::byte>(random());
    snapshot.resize(static_cast<std::size_t>(sides.elements) * sides.size);
    gpu_memory = gpus.allocate(memory.size());
    gpu_snapshot = gpus.allocate(snapshot.size());
    gpus.write(gpu_memory, memory);
  }
  ~Twins() {
    gpus.release(gpu_memory);
    gpus.release(gpu_snapshot);
  }

  void change(std::mt19937_64& random, double density) {
    std::bernoulli_distribution taken(density);
    for (std::size_t e = 0; e < memory.size() / held_size; ++e)
      if (taken(random))
        memory[e * held_size + random() % held_size] ^= static_cast<std::byte>(1u << (random() % 8));
    gpus.write(gpu_memory, memory);
  }

  delta::OwnedBlock on_host() { return {&sides.owner, memory.data(), snapshot.data(), cast}; }
  delta::OwnedBlock on_gpu() { return {&sides.owner, gpu_memory, gpu_snapshot, cast}; }

  EmulatedGpus& gpus;
  Sides sides;
  std::optional<kernels::Cast> cast;
  std::size_t held_size;
  Bytes memory, snapshot;
  std::byte* gpu_memory;
  std::byte* gpu_snapshot;
};

std::vector<std::uint64_t> positions_of(const delta::PositionLog& log) {
  std::vector<std::uint64_t> all;
  log.for_each_tile([&](std::uint64_t first, std::span<const std::uint16_t> positions) {
    for (const std::uint16_t position : positions)
      all.push_back(first + position);
  });
  return all;
}

template <class Visit>
void for_each_range(std::mt19937_64& random, std::uint64_t elements, Visit&& visit) {
  for (std::uint64_t first = 0; first < elements;) {
    const std::uint64_t count = uniform(random, 1, elements - first);
    visit(first, count);
    first += count;
  }
}

std::unique_ptr<delta::GpuRanges> open(EmulatedGpus& gpus, std::size_t parts, std::size_t room) {
  auto opened = delta::GpuRanges::open(gpus.open(0).value(), {std::chrono::seconds(30), parts, room});
  if (!opened)
    FAIL(opened.error().message);
  return std::move(*opened);
}

template <class T>
T or_fail(Result<T> result) {
  if (!result)
    FAIL(result.error().message);
  return std::move(*result);
}

} // namespace

TEST_CASE("a range captured on a GPU is what the host makes of it, to the byte") {
  constexpr int cases = 150;
  std::cout << "GPU ranges: seed " << seed() << ", " << cases << " cases\n";
  for (int number = 0; number < cases; ++number) {
    auto random = generator(7000 + static_cast<std::uint64_t>(number));
    CAPTURE(seed(), number);
    EmulatedGpus gpus(random());
    DType held = dtypes[random() % std::size(dtypes)];
    DType wire = held;
    switch (random() % 6) {
    case 0:
      held = DType::f32, wire = DType::bf16;
      break;
    case 1:
      held = DType::f32, wire = DType::f16;
      break;
    case 2:
      held = DType::bf16, wire = DType::f32;
      break;
    default:
      break;
    }
    Twins twins(random, gpus, held, wire);
    const std::size_t size = twins.sides.size;
    const auto ranges = open(gpus, 1 + random() % 40, kernels::part_elements + random() % 5000);
    const bool compares = delta::compares_on_gpu(twins.cast);
    delta::Encoding encoding;
    encoding.ulp = random() % 2 == 0;
    if (random() % 4 == 0)
      encoding.positions = static_cast<delta::PositionCodec>(random() % 6);
    const std::size_t limit = random() % 2 == 0 ? 1 << 20 : delta::least_piece_limit(size) + random() % 3000;
    delta::PieceEncoder of_host(limit, encoding), of_gpu(limit, encoding);

    // Where the GPU holds the snapshot, and where it only packs.
    const bool there = compares && random() % 3 != 0;
    Bytes packed_snapshot(twins.snapshot.size());
    const auto captured = [&](std::uint64_t first, std::uint64_t count, bool all, delta::PieceEncoder* encoder,
                              delta::PositionLog& log) {
      delta::OwnedBlock owned = twins.on_gpu();
      if (there)
        return or_fail(all ? ranges->capture_all(owned, first, count)
                           : ranges->capture_changes(owned, first, count, encoder, log));
      owned.snapshot = packed_snapshot.data();
      const delta::OwnedBlock fetched = or_fail(ranges->fetch_memory(owned, first, count));
      return all ? delta::capture_all(fetched, first, count)
                 : delta::capture_changes(fetched, first, count, encoder, log);
    };
    const auto snapshot = [&] {
      return there ? gpus.read(twins.gpu_snapshot, twins.snapshot.size()) : packed_snapshot;
    };

    delta::PositionLog unused;
    for_each_range(random, twins.sides.elements, [&](std::uint64_t first, std::uint64_t count) {
      const delta::Captured expected = delta::capture_all(twins.on_host(), first, count);
      const delta::Captured got = captured(first, count, true, nullptr, unused);
      REQUIRE(got.changed == expected.changed);
      REQUIRE(got.digest_change == expected.digest_change);
    });
    REQUIRE(snapshot() == twins.snapshot);
    for (int round = 0; round < 3; ++round) {
      twins.change(random, densities[random() % std::size(densities)]);
      const bool encodes = random() % 4 != 0;
      for_each_range(random, twins.sides.elements, [&](std::uint64_t first, std::uint64_t count) {
        delta::PositionLog host_log, gpu_log;
        const delta::Captured expected =
          delta::capture_changes(twins.on_host(), first, count, encodes ? &of_host : nullptr, host_log);
        const delta::Captured got = captured(first, count, false, encodes ? &of_gpu : nullptr, gpu_log);
        REQUIRE(got.changed == expected.changed);
        REQUIRE(got.digest_change == expected.digest_change);
        REQUIRE(positions_of(gpu_log) == positions_of(host_log));
      });
      REQUIRE(snapshot() == twins.snapshot);
      const delta::EncodedPieces expected = of_host.take();
      const delta::EncodedPieces got = of_gpu.take();
      REQUIRE(got.bytes == expected.bytes);
      REQUIRE(got.ends == expected.ends);
      REQUIRE(got.changed == expected.changed);
    }
  }
}

TEST_CASE("a range of a snapshot on a GPU is fetched and stored as it is") {
  auto random = generator(7500);
  EmulatedGpus gpus(seed());
  Twins twins(random, gpus, DType::bf16, DType::bf16);
  const auto ranges = open(gpus, 16, kernels::part_elements);
  const std::uint64_t elements = twins.sides.elements;
  (void)or_fail(ranges->capture_all(twins.on_gpu(), 0, elements));
  (void)delta::capture_all(twins.on_host(), 0, elements);
  const std::uint64_t first = elements / 3, count = elements - first;
  std::byte* const fetched = or_fail(ranges->fetch_snapshot(twins.on_gpu(), first, count));
  CHECK(std::memcmp(fetched + first * 2, twins.snapshot.data() + first * 2, count * 2) == 0);
  fetched[first * 2] ^= std::byte{1};
  REQUIRE(ranges->store_snapshot(twins.on_gpu(), first, count));
  twins.snapshot[first * 2] ^= std::byte{1};
  CHECK(gpus.read(twins.gpu_snapshot, twins.snapshot.size()) == twins.snapshot);
}

TEST_CASE("a fault and a GPU that hangs are told by name, and its memory is not given back while it may write") {
  auto random = generator(7501);
  EmulatedGpus gpus(seed());
  Twins twins(random, gpus, DType::bf16, DType::bf16);
  delta::PositionLog log;
  {
    auto opened = delta::GpuRanges::open(gpus.open(0).value(), {std::chrono::milliseconds(50), 16, 4096});
    REQUIRE(opened);
    const std::uint64_t taken = gpus.taken();
    gpus.hang();
    const auto late = (*opened)->capture_changes(twins.on_gpu(), 0, twins.sides.elements, nullptr, log);
    REQUIRE_FALSE(late);
    CHECK(late.error().code == Code::timed_out);
    CHECK_THAT(late.error().message, contains("GPU 0 (emulated)"));
    CHECK((*opened)->lost());
    opened->reset();
    CHECK(gpus.taken() == taken);
  }
  EmulatedGpus others(seed());
  Twins faulty(random, others, DType::bf16, DType::bf16);
  const auto ranges = open(others, 16, 4096);
  others.fail_after(3, "an uncorrectable ECC error");
  const auto failed = ranges->capture_changes(faulty.on_gpu(), 0, faulty.sides.elements, nullptr, log);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == Code::peer_failed);
  CHECK_THAT(failed.error().message, contains("GPU 0 (emulated)"));
  CHECK_THAT(failed.error().message, contains("an uncorrectable ECC error"));
}
