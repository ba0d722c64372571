// In a file of its own: inlined into callers, GCC 12 takes free() for a mismatch of operator new.
#include "wire_allocation.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t allocated = 0;

} // namespace

std::size_t deltawire::test::allocated_bytes() noexcept {
  return allocated;
}

void* operator new(std::size_t size) {
  allocated += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size))
    return memory;
  throw std::bad_alloc();
}

void* operator new(std::size_t size, const std::nothrow_t&) noexcept { // sanitizers have their own otherwise
  allocated += size;
  return std::malloc(size == 0 ? 1 : size);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
