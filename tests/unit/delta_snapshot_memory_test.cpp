// A snapshot's memory: every byte of it usable, begun at a huge page, zero until written, and moved without a copy.
#include "delta/snapshot_memory.hpp"

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

using deltawire::delta::SnapshotMemory;

TEST_CASE("a snapshot's memory begins at a huge page, is zero, and can be written from end to end", "[delta]") {
  constexpr std::size_t mib = std::size_t{1} << 20;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4095}, 2 * mib - 1, 2 * mib, 2 * mib + 1, 5 * mib + 7}) {
    CAPTURE(bytes);
    const SnapshotMemory memory(bytes);
    REQUIRE(reinterpret_cast<std::uintptr_t>(memory.data()) % (2 * mib) == 0);
    REQUIRE(std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(memory.data(), bytes, std::byte{0xA5});
    REQUIRE(memory.data()[bytes - 1] == std::byte{0xA5});
  }
}

TEST_CASE("a snapshot's memory of no bytes, and one past any address space", "[delta]") {
  REQUIRE(SnapshotMemory().data() == nullptr);
  REQUIRE(SnapshotMemory(0).data() == nullptr);
  REQUIRE_THROWS_AS(SnapshotMemory(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  REQUIRE_THROWS_AS(SnapshotMemory(std::numeric_limits<std::size_t>::max() / 2), std::bad_alloc);
}

TEST_CASE("a snapshot's memory keeps its place when it is moved", "[delta]") {
  SnapshotMemory first(100);
  std::byte* const place = first.data();
  place[99] = std::byte{7};
  SnapshotMemory second(std::move(first));
  REQUIRE(second.data() == place);
  SnapshotMemory third(8);
  third = std::move(second);
  REQUIRE(third.data() == place);
  REQUIRE(third.data()[99] == std::byte{7});
}
