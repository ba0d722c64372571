#include "allocations.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <malloc.h>
#include <new>
#include <thread>

namespace deltawire::test {
namespace {

std::atomic<std::uint64_t> live{0};
std::atomic<std::uint64_t> peak{0};
std::atomic<std::uint64_t> made{0};       ///< allocations
std::atomic<std::uint64_t> made_bytes{0}; ///< in all of them

void* count(void* memory) noexcept {
  if (memory == nullptr)
    return nullptr;
  const std::uint64_t bytes = ::malloc_usable_size(memory);
  made.fetch_add(1, std::memory_order_relaxed);
  made_bytes.fetch_add(bytes, std::memory_order_relaxed);
  const std::uint64_t level = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::uint64_t highest = peak.load(std::memory_order_relaxed);
  while (highest < level && !peak.compare_exchange_weak(highest, level, std::memory_order_relaxed)) {
  }
  return memory;
}

void* allocate(std::size_t bytes) noexcept {
  return count(std::malloc(bytes));
}

void* allocate(std::size_t bytes, std::align_val_t alignment) noexcept {
  const auto unit = static_cast<std::size_t>(alignment);
  if (bytes > SIZE_MAX - unit)
    return nullptr;
  return count(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}

void* or_throw(void* memory) {
  if (memory == nullptr)
    throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr)
    return;
  live.fetch_sub(::malloc_usable_size(memory), std::memory_order_relaxed);
  std::free(memory);
}

} // namespace

std::uint64_t live_bytes() noexcept {
  return live.load(std::memory_order_relaxed);
}

std::uint64_t peak_bytes() noexcept {
  return peak.load(std::memory_order_relaxed);
}

void restart_peak() noexcept {
  peak.store(live.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

Allocations allocations() noexcept {
  return {made.load(std::memory_order_relaxed), made_bytes.load(std::memory_order_relaxed)};
}

std::uint64_t bytes_at_rest() {
  std::uint64_t before = live_bytes();
  for (int still = 0, tries = 0; still < 10 && tries < 1000; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::uint64_t now = live_bytes();
    still = now == before ? still + 1 : 0;
    before = now;
  }
  return before;
}

} // namespace deltawire::test

// NOLINTBEGIN(misc-new-delete-overloads): every form that the standard lets a program replace.
using deltawire::test::allocate;
using deltawire::test::or_throw;
using deltawire::test::release;

void* operator new(std::size_t bytes) {
  return or_throw(allocate(bytes));
}
void* operator new[](std::size_t bytes) {
  return or_throw(allocate(bytes));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return or_throw(allocate(bytes, alignment));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, alignment);
}

void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  release(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  release(memory);
}
// NOLINTEND(misc-new-delete-overloads)
