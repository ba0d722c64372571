// Contract of kernels/diff.hpp: masks, counts, old and new values are those that a loop over the elements finds, the
// snapshot is refreshed, and nothing else is touched; the same on every instruction set.
#include "cast_oracle.hpp"
#include "catch.hpp"
#include "instruction_set.hpp"
#include "random.hpp"

#include "kernels/diff.hpp"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <vector>

namespace {

using namespace deltawire;
using kernels::Cast;
using kernels::DiffPart;
using kernels::part_elements;
using kernels::part_mask_words;

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

/// Memory of exactly the bytes needed, so that a sanitizer sees what leaves them, at an odd alignment.
struct Memory {
  Bytes bytes;
  std::size_t shift;

  Memory(std::mt19937_64& random, std::size_t count, std::size_t shift_)
    : bytes(random_bytes(random, shift_ + count)), shift(shift_) {}
  std::byte* data() { return bytes.data() + shift; }
};

/// One part and what its diff must find.
struct Case {
  std::size_t elements;
  std::size_t now_size;
  std::size_t size;
  Memory now;
  Memory snapshot;
  std::vector<std::uint64_t> mask = std::vector<std::uint64_t>(part_mask_words);
  Bytes before;
  Bytes after;
  Bytes refreshed; ///< all of the snapshot's memory

  Case(std::mt19937_64& random, std::size_t elements_, std::size_t now_size_, std::size_t size_)
    : elements(elements_), now_size(now_size_), size(size_), now(random, elements * now_size, random() % 64),
      snapshot(random, elements * size, random() % 64) {}

  /// `wire` = the bytes that element i of `now` stands for.
  void expect(const std::function<void(std::size_t, std::byte*)>& wire) {
    refreshed = snapshot.bytes;
    for (std::size_t i = 0; i < elements; ++i) {
      std::byte value[8];
      wire(i, value);
      std::byte* held = refreshed.data() + snapshot.shift + i * size;
      if (std::memcmp(value, held, size) == 0)
        continue;
      mask[i / 64] |= std::uint64_t{1} << (i % 64);
      before.insert(before.end(), held, held + size);
      after.insert(after.end(), value, value + size);
      std::memcpy(held, value, size);
    }
  }
};

/// `now` equals the snapshot but for changes of one random bit.
Case changed_case(std::mt19937_64& random, std::size_t elements, std::size_t size, double density) {
  Case made(random, elements, size, size);
  std::bernoulli_distribution changes(density);
  for (std::size_t i = 0; i < elements; ++i) {
    std::memcpy(made.now.data() + i * size, made.snapshot.data() + i * size, size);
    if (changes(random))
      made.now.data()[i * size + random() % size] ^= static_cast<std::byte>(1u << (random() % 8));
  }
  made.expect([&](std::size_t i, std::byte* value) { std::memcpy(value, made.now.data() + i * size, size); });
  return made;
}

using Run = std::function<std::size_t(std::span<const DiffPart>, const kernels::DiffOutput&)>;

/// Runs all cases as the parts of one call.
void check(std::vector<Case>& cases, const Run& run) {
  std::size_t room = 0;
  Bytes before;
  Bytes after;
  std::vector<DiffPart> parts;
  std::vector<Bytes> now;
  for (Case& one : cases) {
    room += one.elements * one.size;
    before.insert(before.end(), one.before.begin(), one.before.end());
    after.insert(after.end(), one.after.begin(), one.after.end());
    parts.push_back({one.now.data(), one.snapshot.data(), one.elements});
    now.push_back(one.now.bytes);
  }
  std::vector<std::uint64_t> masks(cases.size() * part_mask_words + 1, 0xABCDABCDABCDABCDull);
  std::vector<std::uint32_t> changed(cases.size() + 1, 77);
  Bytes saved_before(room);
  Bytes saved_after(room);
  const std::size_t total = run(parts, {masks.data(), changed.data(), saved_before.data(), saved_after.data()});

  REQUIRE(masks.back() == 0xABCDABCDABCDABCDull);
  REQUIRE(changed.back() == 77);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i, cases[i].elements);
    REQUIRE(std::equal(cases[i].mask.begin(), cases[i].mask.end(), masks.begin() + i * part_mask_words));
    REQUIRE(changed[i] == cases[i].before.size() / cases[i].size);
    REQUIRE(cases[i].snapshot.bytes == cases[i].refreshed);
    REQUIRE(cases[i].now.bytes == now[i]);
    sum += changed[i];
  }
  REQUIRE(total == sum);
  saved_before.resize(before.size());
  saved_after.resize(after.size());
  REQUIRE(saved_before == before);
  REQUIRE(saved_after == after);
}

Run diff_of(std::size_t size) {
  return [size](std::span<const DiffPart> parts, const kernels::DiffOutput& out) {
    return kernels::diff_and_refresh(parts, size, out);
  };
}

constexpr double densities[] = {0.0, 0.0005, 0.002, 0.01, 0.1, 0.5, 0.99, 1.0};

} // namespace

TEST_CASE("diff_and_refresh finds, saves and refreshes what changed, at every length up to 513") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(20);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (std::size_t elements = 0; elements <= 513; ++elements) {
      const double density = densities[random() % std::size(densities)];
      CAPTURE(test::seed(), size, elements, density);
      std::vector<Case> cases;
      cases.push_back(changed_case(random, elements, size, density));
      check(cases, diff_of(size));
    }
}

TEST_CASE("diff_and_refresh takes whole tiles and small tensors in one call, at every density") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(21);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (const double density : densities)
      for (int repeat = 0; repeat < 3; ++repeat) {
        CAPTURE(test::seed(), size, density, repeat);
        std::vector<Case> cases;
        for (const std::size_t elements : {part_elements, part_elements, std::size_t{random() % 4097}, std::size_t{192},
                                           std::size_t{0}, std::size_t{1}, part_elements})
          cases.push_back(changed_case(random, elements, size, density));
        // Dense tiles among clean ones: the choice between the two ways of going through a run changes inside the call.
        cases.push_back(changed_case(random, part_elements, size, 1 - density));
        cases.push_back(changed_case(random, part_elements, size, density));
        check(cases, diff_of(size));
      }
}

TEST_CASE("diff_and_refresh compares bits, not values") {
  ON_EVERY_INSTRUCTION_SET();
  std::vector<std::uint16_t> now(64, 0x7FC1); // a NaN that stays
  std::vector<std::uint16_t> snapshot(64, 0x7FC1);
  now[3] = 0x8000; // 0.0 -> -0.0
  snapshot[3] = 0x0000;
  now[63] = 0x7FC0; // another NaN
  const DiffPart part{reinterpret_cast<const std::byte*>(now.data()), reinterpret_cast<std::byte*>(snapshot.data()),
                      64};
  std::vector<std::uint64_t> mask(part_mask_words);
  std::uint32_t changed = 0;
  std::vector<std::uint16_t> before(64);
  std::vector<std::uint16_t> after(64);
  REQUIRE(kernels::diff_and_refresh({&part, 1}, 2,
                                    {mask.data(), &changed, reinterpret_cast<std::byte*>(before.data()),
                                     reinterpret_cast<std::byte*>(after.data())}) == 2);
  REQUIRE(changed == 2);
  REQUIRE(mask[0] == (std::uint64_t{1} << 3 | std::uint64_t{1} << 63));
  REQUIRE(std::vector(before.begin(), before.begin() + 2) == std::vector<std::uint16_t>{0x0000, 0x7FC1});
  REQUIRE(std::vector(after.begin(), after.begin() + 2) == std::vector<std::uint16_t>{0x8000, 0x7FC0});
  REQUIRE(snapshot == now);
}

TEST_CASE("diff_and_refresh writes no page of the snapshot without a change") {
  ON_EVERY_INSTRUCTION_SET();
  constexpr std::size_t page = 4096;
  auto random = test::generator(22);
  for (const std::size_t size : {1u, 2u, 4u, 8u}) {
    const std::size_t bytes = part_elements * size;
    // Every page is written to but the first, which may only be read: a store there, even of the same bytes, is fatal.
    void* mapped = mmap(nullptr, 2 * page + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    auto* memory = static_cast<std::byte*>(mapped);
    for (int repeat = 0; repeat < 3; ++repeat) {
      Bytes now(memory, memory + bytes);
      for (std::size_t i = page / size; i < part_elements; ++i)
        if (repeat == 2 || (repeat == 1 && random() % 500 == 0))
          now[i * size] ^= std::byte{1};
      REQUIRE(mprotect(memory, page, PROT_READ) == 0);
      const DiffPart part{now.data(), memory, part_elements};
      std::vector<std::uint64_t> mask(part_mask_words);
      std::uint32_t changed = 0;
      Bytes before(bytes);
      Bytes after(bytes);
      kernels::diff_and_refresh({&part, 1}, size, {mask.data(), &changed, before.data(), after.data()});
      REQUIRE(std::memcmp(now.data(), memory, bytes) == 0);
      REQUIRE(mprotect(memory, page, PROT_READ | PROT_WRITE) == 0);
    }
    munmap(mapped, 2 * page + bytes);
  }
}

// ------------------------------------------------------------------------------------------------------------- casts

namespace {

constexpr Cast casts[] = {Cast::fp32_to_bf16, Cast::fp32_to_fp16, Cast::bf16_to_fp32, Cast::fp16_to_fp32};

std::uint32_t expected_cast(std::uint32_t bits, Cast cast) {
  switch (cast) {
  case Cast::fp32_to_bf16:
    return test::nearest(bits, 8, 7);
  case Cast::fp32_to_fp16:
    return test::nearest(bits, 5, 10);
  case Cast::bf16_to_fp32:
    return test::widened(static_cast<std::uint16_t>(bits), 8, 7);
  default:
    return test::widened(static_cast<std::uint16_t>(bits), 5, 10);
  }
}

/// Bits that matter: ties and their neighbours, limits of both types, NaNs, everything random.
std::uint32_t interesting(std::mt19937_64& random) {
  static constexpr std::uint32_t special[] = {
    0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x33000000, 0x33000001, 0x32FFFFFF, 0x33800000, 0x387FC000,
    0x387FE000, 0x387FFFFF, 0x38800000, 0x477FDFFF, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x7F7F7FFF,
    0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7F80FFFF, 0x7F801FFF, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF,
    0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x00008000, 0x00018000,
  };
  std::uint32_t bits = 0;
  switch (random() % 4) {
  case 0:
    bits = special[random() % std::size(special)];
    break;
  case 1: // close to a tie of either type
    bits = (static_cast<std::uint32_t>(random()) & (random() % 2 ? 0xFFFF8000u : 0xFFFFF000u)) +
           static_cast<std::uint32_t>(random() % 3) - 1;
    break;
  case 2: // where fp16 is subnormal or overflows
    bits = (random() % 2 ? 0x32800000u : 0x47000000u) + (static_cast<std::uint32_t>(random()) & 0x06FFFFFF);
    break;
  default:
    bits = static_cast<std::uint32_t>(random());
  }
  return bits ^ static_cast<std::uint32_t>(random() % 2) << 31;
}

Case cast_case(std::mt19937_64& random, std::size_t elements, Cast cast, double density) {
  const std::size_t from = kernels::size_before(cast);
  const std::size_t to = kernels::size_after(cast);
  Case made(random, elements, from, to);
  std::bernoulli_distribution changes(density);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint32_t bits = interesting(random) >> (from == 2 && random() % 2 != 0 ? 16 : 0);
    const std::uint32_t value = expected_cast(bits, cast);
    std::memcpy(made.now.data() + from * i, &bits, from);
    if (!changes(random))
      std::memcpy(made.snapshot.data() + to * i, &value, to);
  }
  made.expect([&](std::size_t i, std::byte* value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, made.now.data() + from * i, from);
    const std::uint32_t cast_bits = expected_cast(bits, cast);
    std::memcpy(value, &cast_bits, to);
  });
  return made;
}

Run cast_diff_of(Cast cast) {
  return [cast](std::span<const DiffPart> parts, const kernels::DiffOutput& out) {
    return kernels::cast_diff_and_refresh(parts, cast, out);
  };
}

} // namespace

TEST_CASE("the oracle of the casts is right where the result is known") {
  REQUIRE(expected_cast(0x3DCCCCCD, Cast::fp32_to_bf16) == 0x3DCD); // 0.1
  REQUIRE(expected_cast(0x3F808000, Cast::fp32_to_bf16) == 0x3F80); // a tie to even, down
  REQUIRE(expected_cast(0x3F818000, Cast::fp32_to_bf16) == 0x3F82); // and up
  REQUIRE(expected_cast(0x7F7FFFFF, Cast::fp32_to_bf16) == 0x7F80); // the largest fp32 overflows
  REQUIRE(expected_cast(0x7F800001, Cast::fp32_to_bf16) == 0x7FC0); // a NaN does not become infinity
  REQUIRE(expected_cast(0xFFFFFFFF, Cast::fp32_to_bf16) == 0xFFFF);
  REQUIRE(expected_cast(0x3F800000, Cast::fp32_to_fp16) == 0x3C00); // 1
  REQUIRE(expected_cast(0x477FE000, Cast::fp32_to_fp16) == 0x7BFF); // 65504
  REQUIRE(expected_cast(0x477FF000, Cast::fp32_to_fp16) == 0x7C00); // 65520
  REQUIRE(expected_cast(0x33000000, Cast::fp32_to_fp16) == 0x0000); // 2^-25, a tie to 0
  REQUIRE(expected_cast(0x33000001, Cast::fp32_to_fp16) == 0x0001);
  REQUIRE(expected_cast(0xFF802001, Cast::fp32_to_fp16) == 0xFE01); // sign and upper payload stay
  REQUIRE(expected_cast(0x3DCD, Cast::bf16_to_fp32) == 0x3DCD0000);
  REQUIRE(expected_cast(0xFF81, Cast::bf16_to_fp32) == 0xFF810000); // a signalling NaN stays one
  REQUIRE(expected_cast(0x3C00, Cast::fp16_to_fp32) == 0x3F800000);
  REQUIRE(expected_cast(0x0001, Cast::fp16_to_fp32) == 0x33800000); // 2^-24
  REQUIRE(expected_cast(0x83FF, Cast::fp16_to_fp32) == 0xB87FC000);
  REQUIRE(expected_cast(0xFC00, Cast::fp16_to_fp32) == 0xFF800000);
  REQUIRE(expected_cast(0x7C01, Cast::fp16_to_fp32) == 0x7F802000);
}

namespace {

/// What a cast is given, and must make of it.
struct Casting {
  Cast cast;
  Bytes from;
  Bytes to;
};

std::vector<Casting> every_upper_half() {
  std::vector<Casting> all;
  for (const Cast cast : casts) {
    Casting casting{cast, {}, {}};
    const auto add = [&](std::uint32_t bits) {
      const std::uint32_t value = expected_cast(bits, cast);
      const auto* from = reinterpret_cast<const std::byte*>(&bits);
      const auto* to = reinterpret_cast<const std::byte*>(&value);
      casting.from.insert(casting.from.end(), from, from + kernels::size_before(cast));
      casting.to.insert(casting.to.end(), to, to + kernels::size_after(cast));
    };
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
      if (kernels::size_before(cast) == 2)
        add(upper);
      else // what decides rounding to either type
        for (const std::uint32_t lower :
             {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
          add(upper << 16 | lower);
    all.push_back(std::move(casting));
  }
  return all;
}

} // namespace

TEST_CASE("cast_elements casts every upper half of fp32 at what decides rounding, and every value of 16 bits") {
  ON_EVERY_INSTRUCTION_SET();
  static const std::vector<Casting> all = every_upper_half(); // slow: once for all instruction sets
  for (const Casting& casting : all) {
    CAPTURE(static_cast<int>(casting.cast));
    Bytes found(casting.to.size());
    kernels::cast_elements(casting.from.data(), casting.from.size() / kernels::size_before(casting.cast), casting.cast,
                           found.data());
    REQUIRE(found == casting.to);
  }
}

TEST_CASE("cast_elements writes what it is asked for and no more, at every length up to 130 and any alignment") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(25);
  for (const Cast cast : casts)
    for (std::size_t elements = 0; elements <= 130; ++elements) {
      CAPTURE(test::seed(), static_cast<int>(cast), elements);
      Case made = cast_case(random, elements, cast, 1);
      kernels::cast_elements(made.now.data(), elements, cast, made.snapshot.data());
      REQUIRE(made.snapshot.bytes == made.refreshed);
    }
}

TEST_CASE(
  "cast_diff_and_refresh compares what elements are cast to, rounded to nearest even, at every length up to 513") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(23);
  for (const Cast cast : casts)
    for (std::size_t elements = 0; elements <= 513; ++elements) {
      const double density = densities[random() % std::size(densities)];
      CAPTURE(test::seed(), static_cast<int>(cast), elements, density);
      std::vector<Case> cases;
      cases.push_back(cast_case(random, elements, cast, density));
      check(cases, cast_diff_of(cast));
    }
}

TEST_CASE("cast_diff_and_refresh takes whole tiles and small tensors in one call, at every density") {
  ON_EVERY_INSTRUCTION_SET();
  auto random = test::generator(24);
  for (const Cast cast : casts)
    for (const double density : densities) {
      CAPTURE(test::seed(), static_cast<int>(cast), density);
      std::vector<Case> cases;
      for (const std::size_t elements :
           {part_elements, part_elements, std::size_t{random() % 4097}, std::size_t{192}, std::size_t{0}})
        cases.push_back(cast_case(random, elements, cast, density));
      check(cases, cast_diff_of(cast));
    }
}

TEST_CASE("a master weight that drifts changes its bf16 in the step that crosses the rounding boundary") {
  ON_EVERY_INSTRUCTION_SET();
  std::vector<float> now(64, 0.1f);
  std::vector<std::uint16_t> snapshot(64, 0x3DCD);
  std::vector<int> syncs;
  for (int step = 1; step <= 120; ++step) {
    for (float& value : now)
      value += 3e-6f;
    if (step % 10 != 0)
      continue;
    const DiffPart part{reinterpret_cast<const std::byte*>(now.data()), reinterpret_cast<std::byte*>(snapshot.data()),
                        64};
    std::vector<std::uint64_t> mask(part_mask_words);
    std::uint32_t changed = 0;
    Bytes before(128);
    Bytes after(128);
    if (kernels::cast_diff_and_refresh({&part, 1}, Cast::fp32_to_bf16,
                                       {mask.data(), &changed, before.data(), after.data()}) != 0)
      syncs.push_back(step);
  }
  REQUIRE(syncs == std::vector<int>{120});
  REQUIRE(snapshot == std::vector<std::uint16_t>(64, 0x3DCE));
}
