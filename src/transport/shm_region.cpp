#include "transport/shm_region.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

// Older than the kernels that have them: some C libraries.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace deltawire::transport {
namespace {

/// Without F_SEAL_SHRINK a reader could meet pages that are gone. With the others readers cannot write to what other
/// readers see, and no seal can be added that would keep the owner from writing.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

} // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (number_ >= 0)
      ::close(number_);
    number_ = other.release();
  }
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0)
    ::close(number_);
}

int Descriptor::release() noexcept {
  return std::exchange(number_, -1);
}

Result<Region> Region::make(std::uint64_t bytes) {
  Descriptor file(::memfd_create("deltawire", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file)
    return fail(Code::unsupported, "this system gives no memory to share (memfd_create: {}): use the transport \"tcp\"",
                std::strerror(errno));
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0)
    return fail(Code::limit_exceeded, "no {} bytes of memory to share: {}", bytes, std::strerror(errno));
  // Before the seal: from then on nobody maps it writable.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED)
    return fail(Code::limit_exceeded, "{} bytes of memory to share cannot be mapped: {}", bytes, std::strerror(errno));
  Region made(std::move(file), static_cast<std::byte*>(data), bytes);
  if (::fcntl(made.descriptor(), F_ADD_SEALS, seals) != 0)
    return fail(Code::unsupported,
                "this system cannot protect memory that is shared ({}; it takes Linux 5.1): use the transport \"tcp\"",
                std::strerror(errno));
  return made;
}

Result<Region> Region::map(Descriptor descriptor, std::uint64_t bytes) {
  struct stat status {};
  struct statfs system {};
  if (bytes == 0 || bytes > most_region_bytes)
    return fail(Code::limit_exceeded, "shared memory of {} bytes, the limit is {}", bytes, most_region_bytes);
  if (::fstat(descriptor.get(), &status) != 0 || ::fstatfs(descriptor.get(), &system) != 0 ||
      !S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != bytes)
    return fail(Code::invalid_input, "what it gave is not {} bytes of memory", bytes);
  const int has = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (has < 0 || (has & seals) != seals || system.f_type != TMPFS_MAGIC)
    return fail(Code::invalid_input, "the shared memory that it gave is not sealed");
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED)
    return fail(Code::limit_exceeded, "{} bytes of shared memory cannot be mapped: {}", bytes, std::strerror(errno));
  return Region({}, static_cast<std::byte*>(data), bytes);
}

Region::Region(Region&& other) noexcept
  : descriptor_(std::move(other.descriptor_)), data_(std::exchange(other.data_, nullptr)),
    bytes_(std::exchange(other.bytes_, 0)) {}

Region::~Region() {
  if (data_ != nullptr)
    ::munmap(data_, bytes_);
}

} // namespace deltawire::transport
