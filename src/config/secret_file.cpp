#include "config/secret_file.hpp"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deltawire::config {
namespace {

constexpr std::string_view white_space = " \t\r\n\v\f";

class Descriptor {
public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0)
      ::close(value_);
  }
  [[nodiscard]] int get() const noexcept { return value_; }

private:
  int value_;
};

/// At most so many bytes; less at the end of the file, nothing where reading fails.
Result<std::string> read_up_to(int file, std::size_t most, const std::string& path) {
  std::string text(most, '\0');
  std::size_t have = 0;
  while (have < most) {
    const ssize_t count = ::read(file, text.data() + have, most - have);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return fail(Code::invalid_topology, "the secret file {} cannot be read: {}", path, std::strerror(errno));
    if (count == 0)
      break;
    have += static_cast<std::size_t>(count);
  }
  text.resize(have);
  return text;
}

} // namespace

Result<std::string> read_secret(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)); // a pipe would not be waited for
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0)
    return fail(Code::invalid_topology, "the secret file {} cannot be read: {}", path, std::strerror(errno));
  if (!S_ISREG(about.st_mode))
    return fail(Code::invalid_topology, "the secret file {} is no regular file", path);
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return fail(Code::invalid_topology,
                "the secret file {} is open to others than its owner (mode {:04o}): chmod 600 {}", path,
                about.st_mode & 07777u, path);
  auto text = read_up_to(file.get(), most_secret + 1, path);
  if (!text)
    return text;
  if (text->size() > most_secret)
    return fail(Code::invalid_topology, "the secret file {} has more than {} bytes", path, most_secret);
  const std::size_t begin = text->find_first_not_of(white_space);
  const std::size_t bytes = begin == std::string::npos ? 0 : text->find_last_not_of(white_space) + 1 - begin;
  if (bytes < least_secret)
    return fail(Code::invalid_topology,
                "the secret file {} has {} bytes without white space at its ends; the least is {}: make one with "
                "\"openssl rand -hex 32\"",
                path, bytes, least_secret);
  return text->substr(begin, bytes);
}

} // namespace deltawire::config
