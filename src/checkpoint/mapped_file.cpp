#include "checkpoint/mapped_file.hpp"

#include "checkpoint/descriptor.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <limits>
#include <utility>

namespace deltawire::checkpoint {
Result<MappedFile> MappedFile::open(const std::string& path) {
  // Non-blocking, so that a FIFO is refused below instead of waiting for its writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0)
    return fail(Code::invalid_input, "{}: cannot be opened: {}", path, cause(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    return fail(Code::invalid_input, "{}: cannot be examined: {}", path, cause(errno));
  if (!S_ISREG(status.st_mode))
    return fail(Code::invalid_input, "{}: is not a regular file", path);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > std::numeric_limits<std::size_t>::max())
    return fail(Code::invalid_input, "{}: has {} bytes, more than this process can address", path, size);
  MappedFile mapped;
  if (size == 0) // nothing that mmap would take
    return mapped;
  void* address = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED)
    return fail(Code::invalid_input, "{}: cannot be mapped: {}", path, cause(errno));
  mapped.base_ = static_cast<const std::byte*>(address);
  mapped.length_ = static_cast<std::size_t>(size);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
  : base_(std::exchange(other.base_, nullptr)), length_(std::exchange(other.length_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(length_, other.length_);
  return *this;
}

MappedFile::~MappedFile() {
  if (base_ != nullptr)
    ::munmap(const_cast<std::byte*>(base_), length_);
}

} // namespace deltawire::checkpoint
