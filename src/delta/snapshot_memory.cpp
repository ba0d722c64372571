#include "delta/snapshot_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace deltawire::delta {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20; // of x86-64, and of AArch64 with 4 KiB pages

} // namespace

SnapshotMemory::SnapshotMemory(std::size_t bytes) {
  if (bytes == 0)
    return;
  if (bytes > SIZE_MAX - huge_page)
    throw std::bad_alloc();
  mapped_ = bytes + huge_page;
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw std::bad_alloc();
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping_);
  const std::uintptr_t aligned = (begin + huge_page - 1) / huge_page * huge_page;
  data_ = static_cast<std::byte*>(mapping_) + (aligned - begin);
  // Advice: a system without huge pages keeps small ones. Whole huge pages only, so that a small snapshot costs no more
  // memory than it has bytes.
  if (const std::size_t whole = bytes / huge_page * huge_page; whole > 0)
    (void)madvise(data_, whole, MADV_HUGEPAGE);
}

SnapshotMemory::SnapshotMemory(SnapshotMemory&& other) noexcept
  : mapping_(std::exchange(other.mapping_, nullptr)), mapped_(std::exchange(other.mapped_, 0)),
    data_(std::exchange(other.data_, nullptr)) {}

SnapshotMemory& SnapshotMemory::operator=(SnapshotMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  return *this;
}

SnapshotMemory::~SnapshotMemory() {
  if (mapping_ != nullptr)
    munmap(mapping_, mapped_);
}

} // namespace deltawire::delta
