// Writing: what was written is read back, in the documented order; a failure leaves nothing behind.
#include "catch.hpp"
#include "checkpoint/safetensors.hpp"
#include "random.hpp"
#include "scratch_folder.hpp"
#include "text_matchers.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace deltawire;
using namespace deltawire::checkpoint;
using test::contains;
using test::ScratchFolder;

namespace {

struct Made {
  std::vector<std::vector<std::byte>> storage;
  std::vector<TensorToWrite> tensors;

  void add(std::mt19937_64& random, std::string name, DType dtype, layout::Shape shape) {
    std::size_t bytes = size_of(dtype);
    for (layout::Index extent : shape)
      bytes *= static_cast<std::size_t>(extent);
    std::vector<std::byte>& data = storage.emplace_back(bytes);
    for (std::byte& b : data)
      b = static_cast<std::byte>(random());
    tensors.push_back({std::move(name), dtype, std::move(shape), data}); // a moved vector keeps its memory
  }
};

/// Larger files than this cannot be written while it lives: as on a full disk, but anywhere and without being root.
class FileSizeLimit {
public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

private:
  rlimit before_{};
  void (*handler_)(int);
};

void check_output_failed(const Result<void>& result, const std::string& path, const std::string& why) {
  REQUIRE(!result);
  CHECK(result.error().code == Code::output_failed);
  CHECK_THAT(result.error().message, contains(path));
  CHECK_THAT(result.error().message, contains(why));
}

} // namespace

TEST_CASE("tensors of every dtype are read back as they were written, larger elements first, then by name") {
  CAPTURE(test::seed());
  auto random = test::generator(2);
  const ScratchFolder folder;
  Made made;
  for (std::size_t i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    made.add(random, fmt::format("z.{}", to_string(dtype)), dtype, {3, 1, 5});
    made.add(random, fmt::format("scalar.{}", to_string(dtype)), dtype, {});
    made.add(random, fmt::format("empty.{}", to_string(dtype)), dtype, {2, 0});
  }
  made.add(random, "quote \" backslash \\ newline \n umlaut \xc3\xbc", DType::u8, {1});
  made.add(random, "", DType::i16, {7});
  std::shuffle(made.tensors.begin(), made.tensors.end(), random);

  const std::string path = folder.path("all.safetensors");
  const Result<void> written = write(path, made.tensors);
  INFO((written ? "" : written.error().message));
  REQUIRE(written);
  CHECK(folder.entries() == 1);
  const Result<File> file = File::open(path);
  INFO((file ? "" : file.error().message));
  REQUIRE(file);
  REQUIRE(file->tensors().size() == made.tensors.size());
  for (const TensorToWrite& tensor : made.tensors) {
    CAPTURE(tensor.name);
    const TensorView* read = file->find(tensor.name);
    REQUIRE(read != nullptr);
    CHECK(read->dtype == tensor.dtype);
    CHECK(read->shape == tensor.shape);
    CHECK(std::equal(read->data.begin(), read->data.end(), tensor.data.begin(), tensor.data.end()));
  }
  for (std::size_t i = 1; i < file->tensors().size(); ++i) {
    const TensorView& a = file->tensors()[i - 1];
    const TensorView& b = file->tensors()[i];
    CAPTURE(a.name, b.name);
    CHECK(size_of(a.dtype) >= size_of(b.dtype));
    // Empty tensors share their place with a neighbour, which the reader puts behind them.
    if (a.dtype == b.dtype && !a.data.empty() && !b.data.empty())
      CHECK(a.name < b.name);
  }
}

TEST_CASE("a file is laid out as documented, byte for byte") {
  const ScratchFolder folder;
  const std::byte data[6] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}, std::byte{6}};
  const std::vector<TensorToWrite> tensors = {{"b", DType::u8, {2}, {data, 2}}, {"a", DType::f32, {}, {data + 2, 4}}};
  REQUIRE(write(folder.path("f"), tensors));
  std::ifstream in(folder.path("f"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size();
  std::string expected(8, '\0');
  std::memcpy(expected.data(), &length, 8);
  CHECK(bytes == expected + header + "\x03\x04\x05\x06\x01\x02");
}

TEST_CASE("no tensors make a legal file, and an existing file is replaced whole") {
  CAPTURE(test::seed());
  auto random = test::generator(3);
  const ScratchFolder folder;
  const std::string path = folder.path("f");
  Made made;
  made.add(random, "w", DType::f32, {1000});
  REQUIRE(write(path, made.tensors));
  const Result<File> before = File::open(path);
  REQUIRE(before);
  REQUIRE(write(path, {}));
  CHECK(before->tensors().size() == 1); // who has the old file open keeps it
  CHECK(std::equal(made.storage[0].begin(), made.storage[0].end(), before->tensors()[0].data.begin()));
  const Result<File> after = File::open(path);
  REQUIRE(after);
  CHECK(after->tensors().empty());
  CHECK(folder.entries() == 1);
}

TEST_CASE("a disk that fills up fails the write, keeps the old file and leaves nothing else behind") {
  CAPTURE(test::seed());
  auto random = test::generator(4);
  const ScratchFolder folder;
  const std::string path = folder.path("f");
  REQUIRE(write(path, {}));
  Made made;
  made.add(random, "small", DType::f32, {10});
  made.add(random, "large", DType::bf16, {1000, 100});
  for (rlim_t bytes : {rlim_t{0}, rlim_t{3}, rlim_t{8}, rlim_t{100}, rlim_t{4096}, rlim_t{200'000}}) {
    CAPTURE(bytes);
    const FileSizeLimit limit(bytes);
    check_output_failed(write(path, made.tensors), path, "File too large");
    check_output_failed(write(folder.path("new"), made.tensors), folder.path("new"), "File too large");
    CHECK(folder.entries() == 1);
  }
  const Result<File> kept = File::open(path);
  REQUIRE(kept);
  CHECK(kept->tensors().empty());
}

TEST_CASE("a place that cannot be written is refused, and a device is not replaced by a file") {
  const ScratchFolder folder;
  check_output_failed(write(folder.path("none/f"), {}), folder.path("none/f"), "No such file");
  folder.write("file", "x");
  check_output_failed(write(folder.path("file/f"), {}), folder.path("file/f"), "Not a directory");
  check_output_failed(write(folder.path(""), {}), folder.path(""), "not a regular file");
  check_output_failed(write("/dev/full", {}), "/dev/full", "not a regular file");
  REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  check_output_failed(write(folder.path("pipe"), {}), folder.path("pipe"), "not a regular file");
  check_output_failed(write(folder.path(std::string(300, 'x')), {}), "xxx", "too long");
  CHECK(folder.entries() == 2);
  struct stat status {};
  REQUIRE(::stat("/dev/full", &status) == 0);
  CHECK(S_ISCHR(status.st_mode));
}

TEST_CASE("tensors that no file can hold are refused before anything is written") {
  const ScratchFolder folder;
  const std::byte data[8] = {};
  const auto refused = [&](const std::vector<TensorToWrite>& tensors, const std::string& why) {
    const Result<void> written = write(folder.path("f"), tensors);
    REQUIRE(!written);
    CHECK(written.error().code == Code::invalid_argument);
    CHECK_THAT(written.error().message, contains(folder.path("f")));
    CHECK_THAT(written.error().message, contains(why));
  };
  refused({{"w", DType::u8, {8}, data}, {"w", DType::u8, {8}, data}}, "tensor 'w' is to be written twice");
  refused({{"w", DType::f32, {8}, data}}, "tensor 'w': 8 bytes of data do not make shape [8] of F32");
  refused({{"w", DType::f32, {}, data}}, "shape [] of F32");
  refused({{"w", DType::f64, {-1}, data}}, "negative extent");
  refused({{"__metadata__", DType::f64, {1}, data}}, "__metadata__");
  refused({{"w\xff", DType::f64, {1}, data}}, "no UTF-8");
  CHECK(folder.entries() == 0);
}
