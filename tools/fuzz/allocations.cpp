// Counts what operator new hands out. In a file of its own: inlined into callers, GCC 12 takes free() for a mismatch of
// operator new.
#include "target.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t allocated = 0;

void* counted(std::size_t size) noexcept {
  allocated += size;
  return std::malloc(size == 0 ? 1 : size);
}

} // namespace

std::size_t deltawire::fuzz::allocated_bytes() noexcept {
  return allocated;
}

void* operator new(std::size_t size) {
  if (void* memory = counted(size))
    return memory;
  throw std::bad_alloc();
}

void* operator new[](std::size_t size) { // sanitizers have their own of each otherwise
  if (void* memory = counted(size))
    return memory;
  throw std::bad_alloc();
}

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return counted(size);
}

void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return counted(size);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete[](void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
