// File descriptors, and the system's words for why it refused.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>
#include <unistd.h>

namespace deltawire::checkpoint {

/// What an errno means.
[[nodiscard]] inline std::string cause(int error) {
  return std::generic_category().message(error);
}

/// Closes what it holds; close() tells whether the system accepted all of it.
class Descriptor {
public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  /// 0, or the errno.
  int close() {
    const int result = ::close(fd_);
    fd_ = -1;
    return result == 0 ? 0 : errno;
  }

private:
  int fd_;
};

} // namespace deltawire::checkpoint
