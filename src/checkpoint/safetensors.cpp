#include "checkpoint/safetensors.hpp"

#include "checkpoint/descriptor.hpp"
#include "checkpoint/header.hpp"
#include "checkpoint/mapped_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace deltawire::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

constexpr std::uint64_t length_bytes = 8;

} // namespace

struct File::Mapping {
  std::string path;
  MappedFile file;
  std::vector<TensorView> tensors;
  std::unordered_map<std::string_view, std::size_t> by_name; ///< keys point into `tensors`

  Result<void> read_header();
};

Result<void> File::Mapping::read_header() {
  const std::byte* base = file.bytes().data();
  const std::uint64_t length = file.bytes().size();
  if (length < length_bytes)
    return fail(Code::invalid_input, "{}: has {} bytes, too few for the 8-byte header length of a safetensors file",
                path, length);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, base, sizeof header_bytes);
  if (header_bytes > max_header_bytes)
    return fail(Code::invalid_input, "{}: claims a header of {} bytes; the format allows {}", path, header_bytes,
                max_header_bytes);
  if (header_bytes > length - length_bytes)
    return fail(Code::invalid_input, "{}: claims a header of {} bytes, but only {} follow its length; truncated?", path,
                header_bytes, length - length_bytes);

  const std::string_view text(reinterpret_cast<const char*>(base) + length_bytes,
                              static_cast<std::size_t>(header_bytes));
  const std::uint64_t data_start = length_bytes + header_bytes;
  Result<std::vector<HeaderEntry>> entries = parse_header(text, data_start, length - data_start);
  if (!entries)
    return fail(entries.error().code, "{}: {}", path, entries.error().message);

  const std::byte* data = base + data_start;
  tensors.reserve(entries->size());
  for (HeaderEntry& entry : *entries)
    tensors.push_back({std::move(entry.name),
                       entry.dtype,
                       std::move(entry.shape),
                       {data + entry.begin, static_cast<std::size_t>(entry.end - entry.begin)}});
  for (std::size_t i = 0; i < tensors.size(); ++i)
    by_name.emplace(tensors[i].name, i);
  return {};
}

Result<File> File::open(const std::string& path) {
  auto mapping = std::make_shared<Mapping>();
  mapping->path = path;
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped)
    return pass_on(std::move(mapped));
  mapping->file = std::move(*mapped);
  if (Result<void> read = mapping->read_header(); !read)
    return pass_on(std::move(read));
  File file;
  file.mapping_ = std::move(mapping);
  return file;
}

const std::string& File::path() const noexcept {
  return mapping_->path;
}

std::span<const TensorView> File::tensors() const noexcept {
  return mapping_->tensors;
}

const TensorView* File::find(std::string_view name) const noexcept {
  const auto found = mapping_->by_name.find(name);
  return found == mapping_->by_name.end() ? nullptr : &mapping_->tensors[found->second];
}

namespace {

/// Larger elements first, so that each tensor starts at a multiple of its element size.
bool goes_before(const TensorToWrite& a, const TensorToWrite& b) {
  if (size_of(a.dtype) != size_of(b.dtype))
    return size_of(a.dtype) > size_of(b.dtype);
  if (a.dtype != b.dtype)
    return a.dtype < b.dtype;
  return a.name < b.name;
}

/// Lays the tensors out; `order` receives their indices in the order of the data.
Result<std::vector<HeaderEntry>> lay_out(const std::string& path, std::span<const TensorToWrite> tensors,
                                         std::vector<std::size_t>& order) {
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorToWrite& tensor = tensors[i];
    if (tensor.name == "__metadata__")
      return fail(Code::invalid_argument, "{}: no tensor can be named '__metadata__'", path);
    if (!seen.emplace(tensor.name, i).second)
      return fail(Code::invalid_argument, "{}: tensor '{}' is to be written twice", path, tensor.name);
    const Result<layout::Index> count = layout::element_count(tensor.shape);
    if (!count)
      return fail(Code::invalid_argument, "{}: tensor '{}': {}", path, tensor.name, count.error().message);
    const std::size_t size = size_of(tensor.dtype);
    if (tensor.data.size() % size != 0 || tensor.data.size() / size != static_cast<std::uint64_t>(*count))
      return fail(Code::invalid_argument, "{}: tensor '{}': {} bytes of data do not make shape {} of {}", path,
                  tensor.name, tensor.data.size(), layout::to_string(tensor.shape), safetensors_name(tensor.dtype));
  }
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return goes_before(tensors[a], tensors[b]); });

  std::vector<HeaderEntry> entries;
  entries.reserve(tensors.size());
  std::uint64_t at = 0;
  for (std::size_t i : order) {
    const TensorToWrite& tensor = tensors[i];
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, at, at + tensor.data.size()});
    at += tensor.data.size();
  }
  return entries;
}

/// 0, or the errno.
int write_all(int fd, const void* data, std::size_t bytes) {
  // Linux moves at most 2 GiB - 4 KiB a call, and may move less.
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t moved = ::write(fd, at, std::min<std::size_t>(bytes, std::size_t{1} << 30));
    if (moved < 0 && errno == EINTR)
      continue;
    if (moved < 0)
      return errno;
    if (moved == 0)
      return ENOSPC;
    at += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
  return 0;
}

/// A file beside the target that disappears unless it took the target's place.
class TemporaryFile {
public:
  explicit TemporaryFile(const std::string& target) : fd_(create(target, path_, error_)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_.get() >= 0)
      fd_.close();
    if (error_ == 0 && !moved_)
      ::unlink(path_.c_str());
  }

  /// errno of the creation; 0 when there is a file.
  [[nodiscard]] int creation_error() const noexcept { return error_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

  /// Flushes, closes and renames. 0, or the errno.
  int move_to(const std::string& target) {
    // Without this, file systems that allocate late could report a full disk to nobody. Some cannot do it at all.
    if (::fsync(fd_.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
      return errno;
    if (const int error = fd_.close(); error != 0)
      return error;
    if (::rename(path_.c_str(), target.c_str()) != 0)
      return errno;
    moved_ = true;
    return 0;
  }

private:
  static int create(const std::string& target, std::string& path, int& error) {
    // The number tells writers within this process apart; a file left over by a killed process is not ours to take.
    static std::atomic<std::uint64_t> number{0};
    for (int attempt = 0; attempt < 100; ++attempt) {
      path = fmt::format("{}.{}-{}.tmp", target, ::getpid(), number.fetch_add(1));
      const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      error = fd >= 0 ? 0 : errno;
      if (error != EEXIST)
        return fd;
    }
    return -1;
  }

  std::string path_;
  int error_ = 0;
  Descriptor fd_; ///< last: its initialiser fills the others
  bool moved_ = false;
};

} // namespace

Result<void> write(const std::string& path, std::span<const TensorToWrite> tensors) {
  std::vector<std::size_t> order;
  Result<std::vector<HeaderEntry>> entries = lay_out(path, tensors, order);
  if (!entries)
    return pass_on(std::move(entries));
  const Result<std::string> header = header_text(*entries);
  if (!header)
    return fail(header.error().code, "{}: {}", path, header.error().message);
  const std::uint64_t header_bytes = header->size();
  if (header_bytes > max_header_bytes)
    return fail(Code::limit_exceeded, "{}: {} tensors need a header of {} bytes; the format allows {}", path,
                tensors.size(), header_bytes, max_header_bytes);

  // A rename would replace a device or a pipe by a file.
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    return fail(Code::output_failed, "{}: cannot be written: it exists and is not a regular file", path);

  TemporaryFile file(path);
  int error = file.creation_error();
  if (error == 0)
    error = write_all(file.fd(), &header_bytes, sizeof header_bytes);
  if (error == 0)
    error = write_all(file.fd(), header->data(), header->size());
  for (std::size_t i = 0; i < order.size() && error == 0; ++i)
    error = write_all(file.fd(), tensors[order[i]].data.data(), tensors[order[i]].data.size());
  if (error == 0)
    error = file.move_to(path);
  if (error != 0)
    return fail(Code::output_failed, "{}: cannot be written: {}", path, cause(error));
  return {};
}

} // namespace deltawire::checkpoint
