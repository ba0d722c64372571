// Contract of kernels/cuda: what device kernels find, save, swap and sum is what kernels/cpu does, bit for bit, at
// every length, alignment, stride and density; and nothing else is touched.
#include "catch.hpp"
#include "machine.hpp"
#include "random.hpp"

#include "kernels/cuda/parts.hpp"
#include "kernels/digest.hpp"
#include "kernels/mask.hpp"
#include "kernels/values.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace {

using namespace deltawire;
using namespace deltawire::kernels::cuda;
using kernels::Cast;
using kernels::part_elements;
using test::Arena;

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::size_t cells = 5;
constexpr double densities[] = {0.0, 0.0005, 0.002, 0.01, 0.1, 0.5, 0.99, 1.0};

/// What elements are compared as.
struct Kind {
  std::size_t size;
  std::optional<Cast> cast = {};
  [[nodiscard]] std::size_t now_size() const { return cast ? 4 : size; }
};

const Kind kinds[] = {{1}, {2}, {4}, {8}, {2, Cast::fp32_to_bf16}, {2, Cast::fp32_to_fp16}};

void randomize(Random& random, std::span<std::byte> bytes) {
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
}

std::ptrdiff_t some_stride(Random& random) {
  constexpr std::ptrdiff_t strides[] = {1, 1, 1, 2, 3, 7, -1, -2};
  return strides[random() % std::size(strides)];
}

/// The first of `count` elements at a stride, in memory of the arena.
std::byte* take_strided(Random& random, Arena& arena, std::size_t count, std::size_t size, std::ptrdiff_t stride) {
  const auto step = static_cast<std::size_t>(std::abs(stride));
  const std::size_t span = count == 0 ? 0 : (count - 1) * step + 1;
  std::byte* memory = arena.take(span, size, random() % 16);
  return stride > 0 || count == 0 ? memory : memory + (span - 1) * size;
}

/// What the CPU says of one part.
struct Expected {
  std::vector<std::uint16_t> positions;
  Bytes before;
  Bytes after;
  std::uint64_t digest = 0;
  Bytes snapshot;
};

Bytes dense(const Part& part, const Kind& kind) {
  Bytes now(part.elements * kind.now_size());
  kernels::pack(part.now, part.now_stride, part.elements, kind.now_size(), now.data());
  return now;
}

Expected expected_of(const Part& part, const Kind& kind) {
  Expected expected;
  const std::size_t bytes = part.elements * kind.size;
  const Bytes now = dense(part, kind);
  expected.snapshot.assign(part.snapshot, part.snapshot + bytes);
  expected.before.resize(bytes);
  expected.after.resize(bytes);
  std::uint64_t mask[kernels::part_mask_words];
  std::uint32_t changed = 0;
  const kernels::DiffPart one{now.data(), expected.snapshot.data(), part.elements};
  const kernels::DiffOutput out{mask, &changed, expected.before.data(), expected.after.data()};
  if (kind.cast)
    kernels::cast_diff_and_refresh({&one, 1}, *kind.cast, out);
  else
    kernels::diff_and_refresh({&one, 1}, kind.size, out);
  static std::uint16_t positions[part_elements];
  expected.positions.assign(positions, positions + kernels::mask_to_positions(mask, positions));
  expected.before.resize(changed * kind.size);
  expected.after.resize(changed * kind.size);
  expected.digest = kernels::digest_change_at(part.slot, {part.slot_stride, 0}, expected.positions, kind.size,
                                              expected.before.data(), expected.after.data());
  return expected;
}

/// A part of random memory, in which a share of the elements differs from the snapshot.
Part random_part(Random& random, Arena& arena, const Kind& kind, std::size_t elements, double density,
                 std::ptrdiff_t stride) {
  Part part;
  part.elements = static_cast<std::uint32_t>(elements);
  part.now_stride = stride;
  std::byte* now = take_strided(random, arena, elements, kind.now_size(), stride);
  part.now = now;
  part.snapshot = arena.take(elements, kind.size, random() % 3 == 0 ? 0 : random() % 16);
  part.slot = random() >> (random() % 40 + 8);
  part.slot_stride = static_cast<std::int64_t>(random() % 5000) - 1000;
  part.cell = static_cast<std::uint32_t>(random() % cells);
  std::bernoulli_distribution changes(density);
  for (std::size_t i = 0; i < elements; ++i) {
    std::byte* element = now + static_cast<std::ptrdiff_t>(i) * stride * static_cast<std::ptrdiff_t>(kind.now_size());
    randomize(random, {element, kind.now_size()});
    if (kind.cast && random() % 3 == 0) // where rounding has something to decide: close to a tie, infinity and NaN
      for (std::size_t byte = 0; byte < 2; ++byte)
        element[byte] = static_cast<std::byte>(random() % 2 ? 0x00 : byte == 1 ? 0x80 : 0x01);
  }
  // The snapshot holds what memory does, as elements of the snapshot, but for one bit of those that change.
  Part same = part;
  Bytes zeros(elements * kind.size);
  same.snapshot = zeros.data();
  const Expected held = expected_of(same, kind);
  std::copy(held.snapshot.begin(), held.snapshot.end(), part.snapshot);
  for (std::size_t i = 0; i < elements; ++i)
    if (changes(random))
      part.snapshot[i * kind.size + random() % kind.size] ^= static_cast<std::byte>(1u << (random() % 8));
  return part;
}

/// Outputs, filled with what must stay where nothing is written.
Changes take_outputs(Arena& arena, std::size_t parts, std::size_t size, std::uint64_t room, bool before) {
  Changes out;
  out.counts = arena.take<std::uint32_t>(parts + 1);
  out.positions = arena.take<std::uint16_t>(room + 1);
  out.before = before ? arena.take(room + 1, size, 1) : nullptr;
  out.after = arena.take(room + 1, size, 3);
  out.room = room;
  out.digests = arena.take<std::uint64_t>(cells);
  out.found = arena.take<Found>(1);
  std::fill_n(out.counts, parts + 1, 77u);
  std::fill_n(out.positions, room + 1, std::uint16_t{0xABCD});
  for (std::byte* values : {out.before, out.after})
    if (values != nullptr)
      std::fill_n(values, (room + 1) * size, std::byte{0x5A});
  for (std::size_t cell = 0; cell < cells; ++cell)
    out.digests[cell] = cell * 1000; // added to
  return out;
}

/// Runs a diff of the parts with room for `room` changes, and checks all of the arena. Returns the parts taken.
std::uint64_t check_diff(Arena& arena, const std::vector<Part>& parts, const Kind& kind, std::uint64_t room) {
  std::vector<Expected> expected;
  for (const Part& part : parts)
    expected.push_back(expected_of(part, kind));
  const Changes out = take_outputs(arena, parts.size(), kind.size, room, room % 2 == 0);
  Bytes wanted(arena.used().begin(), arena.used().end());
  const auto in_wanted = [&](const auto* pointer) {
    return wanted.data() + (reinterpret_cast<const std::byte*>(pointer) - arena.used().data());
  };
  const auto put = [&](const auto* to, const auto* from, std::size_t bytes) {
    if (bytes != 0)
      std::memcpy(in_wanted(to), from, bytes);
  };

  Found found{0, parts.size(), 0};
  bool room_left = true;
  std::vector<std::uint64_t> digests(out.digests, out.digests + cells);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Expected& one = expected[i];
    const auto count = static_cast<std::uint32_t>(one.positions.size());
    put(out.counts + i, &count, sizeof(count));
    found.changed += count;
    if (room_left && found.saved + count > room) {
      found.taken = i;
      room_left = false;
    }
    if (!room_left)
      continue;
    put(out.positions + found.saved, one.positions.data(), count * sizeof(std::uint16_t));
    if (out.before != nullptr)
      put(out.before + found.saved * kind.size, one.before.data(), one.before.size());
    put(out.after + found.saved * kind.size, one.after.data(), one.after.size());
    put(parts[i].snapshot, one.snapshot.data(), one.snapshot.size());
    digests[parts[i].cell] += one.digest;
    found.saved += count;
  }
  put(out.digests, digests.data(), cells * sizeof(std::uint64_t));
  put(out.found, &found, sizeof(found));

  test::machine().diff(arena, parts, kind.size, kind.cast, out);

  REQUIRE(out.found->changed == found.changed);
  REQUIRE(out.found->taken == found.taken);
  REQUIRE(out.found->saved == found.saved);
  REQUIRE(std::equal(wanted.begin(), wanted.end(), arena.used().begin()));
  return found.taken;
}

std::uint64_t all_elements(const std::vector<Part>& parts) {
  std::uint64_t all = 0;
  for (const Part& part : parts)
    all += part.elements;
  return all;
}

} // namespace

TEST_CASE("a device diff finds, saves, refreshes and digests what the CPU's does, at every length up to 513") {
  auto random = test::generator(910);
  for (const Kind& kind : kinds)
    for (int repeat = 0; repeat < 3; ++repeat) {
      CAPTURE(test::seed(), kind.size, kind.now_size(), repeat);
      Arena arena(std::size_t{32} << 20);
      std::vector<Part> parts;
      for (std::size_t elements = 0; elements <= 513; ++elements)
        parts.push_back(
          random_part(random, arena, kind, elements, densities[random() % std::size(densities)], some_stride(random)));
      std::shuffle(parts.begin(), parts.end(), random);
      check_diff(arena, parts, kind, all_elements(parts));
    }
}

TEST_CASE("a device diff takes whole parts and small tensors in one table, at every density and alignment") {
  auto random = test::generator(911);
  for (const Kind& kind : kinds)
    for (const double density : densities)
      for (std::size_t repeat = 0; repeat < 2; ++repeat) {
        CAPTURE(test::seed(), kind.size, kind.now_size(), density, repeat);
        Arena arena(std::size_t{8} << 20);
        std::vector<Part> parts;
        for (const std::size_t elements : {part_elements, std::size_t{random() % 4097}, std::size_t{192},
                                           part_elements - 1, std::size_t{0}, std::size_t{1}, part_elements})
          parts.push_back(random_part(random, arena, kind, elements, density, repeat == 0 ? 1 : some_stride(random)));
        check_diff(arena, parts, kind, all_elements(parts));
      }
}

TEST_CASE("what has no room in a device diff stays as it was, and the next diff takes it") {
  auto random = test::generator(912);
  for (const Kind& kind : {Kind{2}, Kind{8}, Kind{2, Cast::fp32_to_bf16}})
    for (int repeat = 0; repeat < 8; ++repeat) {
      CAPTURE(test::seed(), kind.size, kind.now_size(), repeat);
      Arena arena(std::size_t{8} << 20);
      std::vector<Part> parts;
      for (std::size_t count = random() % 300; count > 0; --count)
        parts.push_back(random_part(random, arena, kind, random() % 40, random() % 3 == 0 ? 0.0 : 0.3, 1));
      std::uint64_t changed = 0;
      std::uint64_t most = 0;
      for (const Part& part : parts) {
        const std::uint64_t count = expected_of(part, kind).positions.size();
        changed += count;
        most = std::max(most, count);
      }
      // None, one too few, just enough, more; and then in turns, until all is taken.
      const std::uint64_t rooms[] = {0, changed == 0 ? 0 : changed - 1, changed, changed + 1};
      check_diff(arena, parts, kind, rooms[random() % 4]);
      while (!parts.empty()) {
        const std::uint64_t room = most + changed / 4 + random() % (changed + 1);
        const std::uint64_t taken = check_diff(arena, parts, kind, room);
        parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(taken));
      }
    }
}

TEST_CASE("a device diff of many groups of parts puts changes in the order of the table") {
  auto random = test::generator(913);
  const Kind kind{2};
  Arena arena(std::size_t{96} << 20);
  std::vector<Part> parts;
  // More groups than a pass of the summing warp takes: 512.
  for (std::size_t i = 0; i < 66'000; ++i)
    parts.push_back(random_part(random, arena, kind, random() % 4, i % 1000 < 300 ? 0.0 : 0.4, 1));
  CAPTURE(test::seed());
  check_diff(arena, parts, kind, all_elements(parts));
}

TEST_CASE("a device diff compares bits, not values, and takes a table without parts") {
  Arena arena(1 << 16);
  const Kind kind{2};
  check_diff(arena, {}, kind, 4);
  Part part;
  auto* now = arena.take<std::uint16_t>(64);
  auto* snapshot = arena.take<std::uint16_t>(64);
  std::fill_n(now, 64, std::uint16_t{0x7FC1}); // a NaN that stays
  std::fill_n(snapshot, 64, std::uint16_t{0x7FC1});
  now[3] = 0x8000; // 0.0 -> -0.0
  snapshot[3] = 0x0000;
  now[63] = 0x7FC0; // another NaN
  part.now = reinterpret_cast<std::byte*>(now);
  part.snapshot = reinterpret_cast<std::byte*>(snapshot);
  part.elements = 64;
  REQUIRE(expected_of(part, kind).positions == std::vector<std::uint16_t>{3, 63});
  check_diff(arena, {part}, kind, 64);
}

TEST_CASE("a first capture on a device copies, casts and digests as the CPU does") {
  auto random = test::generator(914);
  for (const Kind& kind : kinds)
    for (int repeat = 0; repeat < 3; ++repeat) {
      CAPTURE(test::seed(), kind.size, kind.now_size(), repeat);
      Arena arena(std::size_t{48} << 20);
      std::vector<Part> parts;
      for (std::size_t elements = 0; elements <= 513; ++elements)
        parts.push_back(random_part(random, arena, kind, elements, 0.5, some_stride(random)));
      parts.push_back(random_part(random, arena, kind, part_elements, 0.5, 1));
      auto* digests = arena.take<std::uint64_t>(cells);
      for (std::size_t cell = 0; cell < cells; ++cell)
        digests[cell] = cell * 1000;
      Bytes wanted(arena.used().begin(), arena.used().end());
      std::vector<std::uint64_t> sums(digests, digests + cells);
      for (Part& part : parts) {
        const Expected expected = expected_of(part, kind);
        sums[part.cell] +=
          kernels::digest_run(expected.snapshot.data(), 1, part.elements, kind.size, part.slot, part.slot_stride);
        if (random() % 4 == 0) // only the digest
          part.snapshot = nullptr;
        else
          std::copy(expected.snapshot.begin(), expected.snapshot.end(),
                    wanted.begin() + (part.snapshot - arena.used().data()));
      }
      const bool asked = repeat != 2;
      if (asked)
        std::memcpy(wanted.data() + (reinterpret_cast<std::byte*>(digests) - arena.used().data()), sums.data(),
                    cells * sizeof(std::uint64_t));
      test::machine().take(arena, parts, kind.size, kind.cast, asked ? digests : nullptr);
      REQUIRE(std::equal(wanted.begin(), wanted.end(), arena.used().begin()));
    }
}

namespace {

/// `count` different numbers below `limit`, ascending.
template <class T>
std::vector<T> some_of(Random& random, std::size_t count, std::size_t limit) {
  std::vector<std::size_t> all(limit);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::size_t> chosen;
  std::sample(all.begin(), all.end(), std::back_inserter(chosen), count, random);
  return {chosen.begin(), chosen.end()};
}

/// An entry in one of the three forms, over random memory of its own.
Places random_places(Random& random, Arena& arena, std::size_t size, std::size_t count) {
  Places places;
  places.count = static_cast<std::uint32_t>(count);
  places.slot = random() >> (random() % 40 + 8);
  places.stride = some_stride(random);
  places.slot_stride = static_cast<std::int64_t>(random() % 5000) - 1000;
  places.cell = static_cast<std::uint32_t>(random() % cells);
  places.values = arena.take(count, size, random() % 16);
  randomize(random, {places.values, count * size});
  const std::size_t span = count + random() % 300;
  switch (random() % 3) {
  case 0: {
    const std::vector<std::uint16_t> chosen = some_of<std::uint16_t>(random, count, span);
    auto* positions = arena.take<std::uint16_t>(count);
    std::copy(chosen.begin(), chosen.end(), positions);
    places.positions = positions;
    // A run that began before the tile part, or begins within it.
    const std::int64_t first = count == 0 ? 0 : chosen.front();
    places.origin = random() % 2 == 0 ? first : -static_cast<std::int64_t>(random() % 100);
    break;
  }
  case 1: {
    std::vector<std::uint32_t> chosen = some_of<std::uint32_t>(random, count, span);
    std::shuffle(chosen.begin(), chosen.end(), random);
    auto* addresses = arena.take<std::uint32_t>(count);
    auto* slots = arena.take<std::uint32_t>(count);
    std::copy(chosen.begin(), chosen.end(), addresses);
    for (std::size_t i = 0; i < count; ++i)
      slots[i] = static_cast<std::uint32_t>(random());
    places.addresses = addresses;
    places.slots = slots;
    places.stride = 1;
    break;
  }
  default:
    break;
  }
  places.start = take_strided(random, arena, span + 400, size, places.stride);
  return places;
}

/// What the CPU makes of an entry in a copy of the arena; returns the digest of what memory held.
std::uint64_t exchange_there(const Places& places, std::size_t size, Bytes& copy, const std::byte* arena) {
  const auto there = [&](std::byte* pointer) { return copy.data() + (pointer - arena); };
  std::byte* values = there(places.values);
  std::byte* start = there(places.start);
  const std::size_t count = places.count;
  if (places.addresses != nullptr)
    return kernels::exchange_and_digest(start, {{places.addresses, count}, {places.slots, count}, places.slot}, size,
                                        values);
  if (places.positions != nullptr)
    return kernels::exchange_and_digest(start, {places.stride, places.origin}, places.slot,
                                        {places.slot_stride, places.origin}, {places.positions, count}, size, values);
  kernels::exchange_run(start, places.stride, count, size, values);
  return kernels::digest_run(values, 1, count, size, places.slot, places.slot_stride);
}

} // namespace

TEST_CASE(
  "a device exchange swaps, digests, reads back and undoes as the CPU does, in every form and at every length") {
  auto random = test::generator(915);
  for (const std::size_t size : {1u, 2u, 4u, 8u})
    for (int repeat = 0; repeat < 3; ++repeat) {
      CAPTURE(test::seed(), size, repeat);
      Arena arena(std::size_t{64} << 20);
      std::vector<Places> places;
      for (std::size_t count = 0; count <= 513; ++count)
        places.push_back(random_places(random, arena, size, count));
      places.push_back(random_places(random, arena, size, part_elements));
      auto* digests = arena.take<std::uint64_t>(cells);
      std::fill_n(digests, cells, std::uint64_t{0});
      std::byte* const begin = arena.used().data();
      const auto with_digests = [&](Bytes bytes, const std::vector<std::uint64_t>& sums) {
        std::memcpy(bytes.data() + (reinterpret_cast<std::byte*>(digests) - begin), sums.data(),
                    cells * sizeof(std::uint64_t));
        return bytes;
      };
      const auto is = [&](const Bytes& wanted) { return std::equal(wanted.begin(), wanted.end(), begin); };
      const Bytes original(arena.used().begin(), arena.used().end());

      Bytes swapped = original;
      std::vector<std::uint64_t> held(cells);
      for (const Places& one : places)
        held[one.cell] += exchange_there(one, size, swapped, begin);
      test::machine().exchange(arena, places, size, digests);
      REQUIRE(is(with_digests(swapped, held)));

      // What is there now is what a second exchange would take out.
      Bytes undone = swapped;
      std::vector<std::uint64_t> written(cells);
      for (const Places& one : places)
        written[one.cell] += exchange_there(one, size, undone, begin);
      std::fill_n(digests, cells, std::uint64_t{0});
      test::machine().read_back(arena, places, size, digests);
      REQUIRE(is(with_digests(swapped, written)));

      test::machine().exchange(arena, places, size, nullptr);
      REQUIRE(is(with_digests(original, written)));
    }
}
