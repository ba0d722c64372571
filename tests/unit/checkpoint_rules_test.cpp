// Reading: one test a rule of the format, each with the message that names file, tensor and rule; then mutations of a
// good file, which must be refused or be read within bounds.
#include "catch.hpp"
#include "checkpoint/safetensors.hpp"
#include "random.hpp"
#include "scratch_folder.hpp"
#include "text_matchers.hpp"

#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace deltawire;
using namespace deltawire::checkpoint;
using test::contains;
using test::ScratchFolder;

namespace {

/// The bytes of a file: the length of `header`, the header, and `data_bytes` bytes that count up from 0.
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i)
    bytes += static_cast<char>(i);
  return bytes;
}

/// Pads the header as writers do, so that the data is aligned.
std::string padded(std::string header) {
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

void check_bytes_refused(const std::string& bytes, const std::vector<std::string>& parts) {
  const ScratchFolder folder;
  const std::string path = folder.write("bad.safetensors", bytes);
  const Result<File> file = File::open(path);
  REQUIRE(!file);
  CHECK(file.error().code == Code::invalid_input);
  CHECK_THAT(file.error().message, contains(path));
  for (const std::string& part : parts)
    CHECK_THAT(file.error().message, contains(part));
}

void check_refused(const std::string& header, std::size_t data_bytes, const std::vector<std::string>& parts) {
  INFO(header);
  check_bytes_refused(file_bytes(padded(header), data_bytes), parts);
}

/// One tensor 'w' with this text as its entry.
void check_entry_refused(const std::string& entry, const std::vector<std::string>& parts) {
  check_refused("{\"w\":" + entry + "}", 8, parts);
}

} // namespace

TEST_CASE("a file that is not there, no file, or too short is refused") {
  const ScratchFolder folder;
  const auto refused = [](const std::string& path, const std::string& why) {
    const Result<File> file = File::open(path);
    REQUIRE(!file);
    CHECK(file.error().code == Code::invalid_input);
    CHECK_THAT(file.error().message, contains(path));
    CHECK_THAT(file.error().message, contains(why));
  };
  refused(folder.path("missing"), "No such file");
  refused(folder.path(""), "not a regular file");
  REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  refused(folder.path("pipe"), "not a regular file");
  refused("/dev/null", "not a regular file");
  refused(folder.write("empty", ""), "has 0 bytes");
  refused(folder.write("short", "1234567"), "has 7 bytes");
}

TEST_CASE("a header length past the file or past the format's limit is refused before anything is read") {
  std::string bytes = file_bytes(padded("{}"), 0);
  bytes[0] = 9;
  check_bytes_refused(bytes, {"header of 9 bytes", "only 8 follow"});
  std::memset(bytes.data(), 0xff, 8);
  check_bytes_refused(bytes, {"header of 18446744073709551615 bytes", "allows 100000000"});
  const std::uint64_t past_the_limit = 100'000'001;
  std::memcpy(bytes.data(), &past_the_limit, 8);
  check_bytes_refused(bytes, {"header of 100000001 bytes"});
}

TEST_CASE("a header that is no JSON object is refused") {
  check_bytes_refused(file_bytes("", 0), {"does not begin with '{'"});
  check_refused(" {}", 0, {"does not begin with '{'"});
  check_refused("\xEF\xBB\xBF{}", 0, {"does not begin with '{'"});
  check_refused("[]", 0, {"does not begin with '{'"});
  check_refused("{", 0, {"no JSON"});
  check_refused("{\"w\":", 0, {"no JSON"});
  check_refused("{}{}", 0, {"no JSON"});
  check_refused("{} x", 0, {"no JSON"});
  check_refused("{\"w\xff\":{}}", 0, {"no JSON"});
  check_refused("{'w':{}}", 0, {"no JSON"});
  check_refused("{/* */}", 0, {"no JSON"});
  check_bytes_refused(file_bytes(std::string("{}") + '\0', 0), {"byte 2 of it is zero"});
  check_bytes_refused(file_bytes(std::string("{}") + '\0' + "[[", 0), {"byte 2 of it is zero"});
}

TEST_CASE("a tensor that is no object is refused") {
  check_entry_refused("null", {"tensor 'w' must be an object, and is null"});
  check_entry_refused("true", {"tensor 'w' must be an object, and is a boolean"});
  check_entry_refused("3", {"tensor 'w' must be an object, and is a number"});
  check_entry_refused("-3", {"tensor 'w' must be an object, and is a negative number"});
  check_entry_refused("1.5", {"tensor 'w' must be an object, and is '1.5'"});
  check_entry_refused("\"F32\"", {"tensor 'w' must be an object, and is a string"});
  check_entry_refused("[]", {"tensor 'w' must be an object, and is an array"});
}

TEST_CASE("dtype, shape and data_offsets must be there, once, and nothing else") {
  check_entry_refused(R"({"shape":[2],"data_offsets":[0,8]})", {"tensor 'w'", "dtype is missing"});
  check_entry_refused(R"({"dtype":"F32","data_offsets":[0,8]})", {"tensor 'w'", "shape is missing"});
  check_entry_refused(R"({"dtype":"F32","shape":[2]})", {"tensor 'w'", "data_offsets is missing"});
  check_entry_refused(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", {"'dtype' appears twice"});
  check_entry_refused(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})", {"'shape' appears twice"});
  check_entry_refused(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]})",
                      {"tensor 'w'", "key 'strides' is not known"});
}

TEST_CASE("a dtype must be a known name") {
  check_entry_refused(R"({"dtype":"F4","shape":[2],"data_offsets":[0,8]})",
                      {"tensor 'w'", "dtype 'F4' is not known", "BF16"});
  check_entry_refused(R"({"dtype":"f32","shape":[2],"data_offsets":[0,8]})", {"dtype 'f32' is not known"});
  check_entry_refused(R"({"dtype":5,"shape":[2],"data_offsets":[0,8]})", {"dtype must be a string, and is a number"});
  check_entry_refused(R"({"dtype":["F32"],"shape":[2],"data_offsets":[0,8]})",
                      {"dtype must be a string, and is an array"});
  check_entry_refused(R"({"dtype":{},"shape":[2],"data_offsets":[0,8]})", {"dtype must be a string, and is an object"});
}

TEST_CASE("a shape must be whole numbers that make the bytes of the range") {
  const auto refused = [](const std::string& shape, const std::vector<std::string>& parts) {
    check_entry_refused(R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]})", parts);
  };
  refused("2", {"tensor 'w'", "shape must be an array of whole numbers, and is a number"});
  refused("[-2]", {"shape must hold whole numbers, and holds a negative number"});
  refused("[2.0]", {"shape must hold whole numbers, and holds '2.0'"});
  refused("[2e0]", {"shape must hold whole numbers, and holds '2e0'"});
  refused("[\"2\"]", {"shape must hold whole numbers, and holds a string"});
  refused("[[2]]", {"shape must hold whole numbers, and holds an array"});
  refused("[{}]", {"shape must hold whole numbers, and holds an object"});
  refused("[18446744073709551616]", {"no whole number below 2^64"});
  refused("[9223372036854775808]", {"past 2^63 - 1"});
  refused("[3]", {"tensor 'w'", "shape [3] of F32 does not make the 8 bytes"});
  refused("[1]", {"does not make the 8 bytes"});
  refused("[]", {"shape [] of F32 does not make the 8 bytes"});
  refused("[0]", {"does not make the 8 bytes"});
  // Products that would wrap around to 2 elements, or to 8 bytes.
  refused("[4611686018427387905, 4, 1]", {"does not make the 8 bytes"});
  refused("[4294967296, 4294967296]", {"does not make the 8 bytes"});
  refused("[4611686018427387906]", {"does not make the 8 bytes"});
}

TEST_CASE("data_offsets must be two numbers, in order, within the data") {
  const auto refused = [](const std::string& offsets, const std::vector<std::string>& parts) {
    check_entry_refused(R"({"dtype":"U8","shape":[8],"data_offsets":)" + offsets + "}", parts);
  };
  refused("8", {"tensor 'w'", "data_offsets must be an array"});
  refused("[]", {"must be two numbers, and has 0"});
  refused("[8]", {"must be two numbers, and has 1"});
  refused("[0,8,8]", {"must be two numbers, and has more"});
  refused("[0,\"8\"]", {"must hold two whole numbers, and holds a string"});
  refused("[-1,7]", {"must hold two whole numbers, and holds a negative number"});
  refused("[0,[8]]", {"must hold two whole numbers, and holds an array"});
  refused("[0,null]", {"must hold two whole numbers, and holds null"});
  refused("[8,0]", {"tensor 'w'", "[8, 0] run backwards"});
  refused("[0,9]", {"[0, 9] pass the end of the data, which has 8 bytes"});
  refused("[1,9]", {"pass the end"});
  refused("[18446744073709551608,18446744073709551615]", {"pass the end"});
}

TEST_CASE("ranges must cover the data without overlap or hole") {
  const auto u8 = [](int begin, int end) {
    return fmt::format(R"({{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", end - begin, begin, end);
  };
  const auto two = [&](const std::string& a, const std::string& b) { return R"({"a":)" + a + R"(,"b":)" + b + "}"; };
  check_refused(two(u8(0, 4), u8(3, 8)), 8, {"tensor 'b'", "[3, 8] overlap those of tensor 'a', [0, 4]"});
  check_refused(two(u8(3, 8), u8(0, 4)), 8, {"tensor 'a'", "overlap those of tensor 'b'"});
  check_refused(two(u8(0, 8), u8(0, 8)), 8, {"overlap"});
  check_refused(two(u8(0, 4), u8(5, 8)), 8, {"bytes 4 to 5 of the data belong to no tensor", "before tensor 'b'"});
  check_refused(two(u8(1, 4), u8(4, 8)), 8, {"bytes 0 to 1", "before tensor 'a'"});
  check_refused(two(u8(0, 4), u8(4, 7)), 8, {"bytes 7 to 8", "at the end of the file"});
  check_refused("{}", 8, {"bytes 0 to 8", "at the end of the file"});
  check_refused(two(u8(0, 8), u8(4, 4)), 8, {"tensor 'b'", "[4, 4] overlap"}); // inside another tensor
}

TEST_CASE("a truncated file says which tensor is cut off") {
  check_refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, {"tensor 'w'", "which has 7 bytes"});
}

TEST_CASE("data must be aligned to its element size") {
  check_refused(
    R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})", 5,
    {"tensor 'b'", "no multiple of its element size 4"});
  const std::string header = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string odd = padded(header) + " ";
  check_bytes_refused(file_bytes(odd, 8), {"tensor 'w'", "no multiple of its element size 4"});
}

TEST_CASE("a name that appears twice is refused, however it is spelled") {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  check_refused(R"({"w":)" + entry + R"(,"w":)" + entry + "}", 0, {"tensor 'w' appears twice"});
  check_refused(R"({"w":)" + entry + R"(,"\u0077":)" + entry + "}", 0, {"tensor 'w' appears twice"});
  check_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__ appears twice"});
}

TEST_CASE("metadata must be strings by distinct keys") {
  check_refused(R"({"__metadata__":3})", 0, {"__metadata__ must be an object, and is a number"});
  check_refused(R"({"__metadata__":{"a":3}})", 0, {"__metadata__: value of 'a' must be a string, and is a number"});
  check_refused(R"({"__metadata__":{"a":null}})", 0, {"value of 'a' must be a string, and is null"});
  check_refused(R"({"__metadata__":{"a":{}}})", 0, {"value of 'a' must be a string, and is an object"});
  check_refused(R"({"__metadata__":{"a":["b"]}})", 0, {"value of 'a' must be a string, and is an array"});
  check_refused(R"({"__metadata__":{"a":"b","a":"b"}})", 0, {"__metadata__: key 'a' appears twice"});
}

TEST_CASE("nesting without end is refused at its first level") {
  check_refused("{\"w\":" + std::string(1'000'000, '['), 0, {"tensor 'w' must be an object, and is an array"});
  std::string objects = "{\"w\":";
  for (int i = 0; i < 100'000; ++i)
    objects += "{\"shape\":";
  check_refused(objects, 0, {"tensor 'w'", "shape must be an array of whole numbers, and is an object"});
}

TEST_CASE("a message shows names from the file in bounded, printable form") {
  check_refused("{\"\\u0007" + std::string(10'000, 'x') + "\":3}", 0, {"'\\x07xxx", "xxx...' must be an object"});
}

TEST_CASE("empty files, scalars, empty tensors and metadata are read") {
  const ScratchFolder folder;
  const Result<File> nothing = File::open(folder.write("a", file_bytes("{}", 0)));
  REQUIRE(nothing);
  CHECK(nothing->tensors().empty());
  CHECK(nothing->find("w") == nullptr);

  const std::string header = R"({"__metadata__":{"format":"pt","step":"3"},)"
                             R"("last":{"dtype":"U8","shape":[1,3],"data_offsets":[12,15]},)"
                             R"("none":{"data_offsets":[8,8],"shape":[0,9223372036854775807,4],"dtype":"BF16"},)"
                             R"("scalar":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                             R"("also none":{"dtype":"F64","shape":[5,0],"data_offsets":[0,0]},)"
                             R"("bias":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  const std::string path = folder.write("b", file_bytes(padded(header), 15));
  const Result<File> file = File::open(path);
  INFO((file ? "" : file.error().message));
  REQUIRE(file);
  CHECK(file->path() == path);
  std::vector<std::string> names;
  for (const TensorView& tensor : file->tensors())
    names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"also none", "scalar", "none", "bias", "last"});
  const TensorView* scalar = file->find("scalar");
  REQUIRE(scalar != nullptr);
  CHECK(scalar->shape.empty());
  CHECK(scalar->data.size() == 8);
  CHECK(file->find("none")->data.empty());
  const TensorView* last = file->find("last");
  CHECK(last->dtype == DType::u8);
  CHECK(last->shape == layout::Shape{1, 3});
  REQUIRE(last->data.size() == 3);
  CHECK(last->data[0] == std::byte{12});
  CHECK(last->data[2] == std::byte{14});
  CHECK(file->find("__metadata__") == nullptr);
}

TEST_CASE("mutated files are refused, or read within their bounds") {
  CAPTURE(test::seed());
  auto random = test::generator(1);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  // In memory: thousands of files on disk would wait for the disk.
  const int memory = ::memfd_create("mutated", MFD_CLOEXEC);
  REQUIRE(memory >= 0);
  const std::string path = fmt::format("/proc/self/fd/{}", memory);
  const std::string good = file_bytes(padded(R"({"__metadata__":{"format":"pt"},)"
                                             R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                             R"("b.c":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
                                             R"("d":{"dtype":"U8","shape":[0,7],"data_offsets":[26,26]},)"
                                             R"("e":{"dtype":"I8","shape":[6],"data_offsets":[26,32]}})"),
                                      32);
  const std::size_t header_end = good.size() - 32;
  const std::string interesting = "{}[]\",:0123456789-.eE\\u \x00\xff";
  std::size_t accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (std::size_t mutations = 1 + below(3); mutations > 0; --mutations) {
      const std::size_t at = below(std::min(bytes.size(), header_end));
      switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(below(256));
        break;
      case 1:
        bytes[8 + below(bytes.size() - 8)] = interesting[below(interesting.size())];
        break;
      case 2:
        bytes.insert(at, 1, interesting[below(interesting.size())]);
        break;
      case 3:
        bytes.erase(at, 1 + below(4));
        break;
      case 4:
        bytes[below(8)] = static_cast<char>(below(256));
        break;
      case 5: // repeat a stretch: doubled keys, tensors, brackets
        bytes.insert(at, bytes.substr(at, 1 + below(60)));
        break;
      default:
        bytes.resize(16 + below(bytes.size() - 15));
      }
      bytes.resize(std::max<std::size_t>(bytes.size(), 16));
      if (below(2) == 0) { // otherwise most mutations would only show as a wrong length
        const std::uint64_t length = bytes.size() - 8 - std::min<std::size_t>(32, bytes.size() - 8);
        std::memcpy(bytes.data(), &length, 8);
      }
    }
    CAPTURE(round, bytes);
    REQUIRE(::ftruncate(memory, static_cast<off_t>(bytes.size())) == 0);
    REQUIRE(::pwrite(memory, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    const Result<File> file = File::open(path);
    if (!file) {
      REQUIRE(file.error().code == Code::invalid_input);
      REQUIRE(!file.error().message.empty());
      continue;
    }
    ++accepted;
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), 8);
    std::size_t at = 8 + header_bytes; // tensors lie end to end behind the header, and end with the file
    for (const TensorView& tensor : file->tensors()) {
      std::size_t count = 1;
      for (layout::Index extent : tensor.shape)
        count *= static_cast<std::size_t>(extent);
      REQUIRE(tensor.data.size() == count * size_of(tensor.dtype));
      REQUIRE(std::memcmp(tensor.data.data(), bytes.data() + at, tensor.data.size()) == 0);
      REQUIRE(file->find(tensor.name) == &tensor);
      at += tensor.data.size();
    }
    REQUIRE(at == bytes.size());
  }
  CHECK(accepted > 100); // mutations of data and of names: else this test would not look at good files at all
  CHECK(accepted < 15'000);
  ::close(memory);
}
