// What this executable holds on the heap, counted where every `new` passes: global operator new and delete are replaced
// (allocations.cpp), so that the count shares nothing with the product's own counters. Bytes are what malloc set aside,
// rounding included. Thread-safe.
#pragma once

#include <cstdint>

namespace deltawire::test {

/// Bytes allocated and not yet freed.
[[nodiscard]] std::uint64_t live_bytes() noexcept;

/// The most live_bytes() was since the last call of restart_peak(); exact.
[[nodiscard]] std::uint64_t peak_bytes() noexcept;

/// Forgets earlier peaks. No other thread may allocate meanwhile: its peak may be missed.
void restart_peak() noexcept;

/// All that was ever allocated.
struct Allocations {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;

  friend Allocations operator-(const Allocations& a, const Allocations& b) noexcept {
    return {a.count - b.count, a.bytes - b.bytes};
  }
};
[[nodiscard]] Allocations allocations() noexcept;

/// Waits until live_bytes() has stood still for a while (what others free after a call returned), and returns it.
[[nodiscard]] std::uint64_t bytes_at_rest();

} // namespace deltawire::test
