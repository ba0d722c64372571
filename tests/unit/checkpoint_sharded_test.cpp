// Checkpoints in several files: what a path stands for, that the tensors are those of the files, and every way in which
// an index and its files disagree.
#include "catch.hpp"
#include "checkpoint/checkpoint.hpp"
#include "random.hpp"
#include "scratch_folder.hpp"
#include "text_matchers.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

using namespace deltawire;
using namespace deltawire::checkpoint;
using test::contains;
using test::ScratchFolder;

namespace {

using Bytes = std::vector<std::byte>;

constexpr const char* index_name = "model.safetensors.index.json";

/// A folder with a checkpoint of u8 vectors in files, to be broken in one way at a time.
struct Sharded {
  ScratchFolder folder;
  std::map<std::string, std::map<std::string, Bytes>> files; ///< file -> tensor -> values
  std::map<std::string, std::string> weight_map;             ///< tensor -> file
  std::optional<std::uint64_t> total_size = 0;

  Sharded() {
    add("one.safetensors", "a", 5);
    add("one.safetensors", "b", 3);
    add("two.safetensors", "c", 0);
    add("two.safetensors", "d", 7);
  }

  void add(const std::string& file, const std::string& tensor, std::size_t bytes) {
    Bytes values(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      values[i] = static_cast<std::byte>(tensor[0] + static_cast<char>(i));
    files[file][tensor] = std::move(values);
    weight_map[tensor] = file;
    *total_size += bytes;
  }

  void write_file(const std::string& name) const {
    std::vector<TensorToWrite> tensors;
    for (const auto& [tensor, values] : files.at(name))
      tensors.push_back({tensor, DType::u8, {static_cast<layout::Index>(values.size())}, values});
    REQUIRE(write(folder.path(name), tensors));
  }

  /// Writes everything; the path of the index.
  [[nodiscard]] std::string path() const {
    for (const auto& [name, tensors] : files)
      write_file(name);
    std::string text = "{\"metadata\": {";
    if (total_size)
      text += fmt::format("\"total_size\": {}", *total_size);
    text += "}, \"weight_map\": {";
    const char* between = "";
    for (const auto& [tensor, file] : weight_map) {
      text += fmt::format("{}\"{}\": \"{}\"", between, tensor, file);
      between = ", ";
    }
    return folder.write(index_name, text + "}}");
  }

  void check_refused(const std::vector<std::string>& parts) const { check_path_refused(path(), parts); }

  static void check_path_refused(const std::string& path, const std::vector<std::string>& parts) {
    const Result<Checkpoint> opened = Checkpoint::open(path);
    REQUIRE(!opened);
    INFO(opened.error().message);
    CHECK(opened.error().code == Code::invalid_input);
    CHECK_THAT(opened.error().message, contains(path));
    for (const std::string& part : parts)
      CHECK_THAT(opened.error().message, contains(part));
  }
};

void check_holds(const Sharded& sharded, const std::string& path) {
  const Result<Checkpoint> opened = Checkpoint::open(path);
  INFO((opened ? "" : opened.error().message));
  REQUIRE(opened);
  CHECK(opened->path() == path);
  std::vector<std::string> names;
  for (const TensorView& tensor : opened->tensors()) {
    names.push_back(tensor.name);
    REQUIRE(opened->find(tensor.name) == &tensor);
    const Bytes& values = sharded.files.at(sharded.weight_map.at(tensor.name)).at(tensor.name);
    CHECK(tensor.shape == layout::Shape{static_cast<layout::Index>(values.size())});
    CHECK(std::ranges::equal(tensor.data, values));
  }
  CHECK(names == std::vector<std::string>{"a", "b", "c", "d"}); // file by file
  CHECK(opened->find("e") == nullptr);
}

} // namespace

TEST_CASE("an index stands for the tensors of its files") {
  const Sharded sharded;
  check_holds(sharded, sharded.path());
}

TEST_CASE("a folder with one index stands for it, whatever else lies there") {
  const Sharded sharded;
  (void)sharded.path();
  (void)sharded.folder.write("config.json", "{}");
  (void)sharded.folder.write("consolidated.safetensors", "x");
  check_holds(sharded, sharded.folder.path(""));
}

TEST_CASE("files in folders below the index are found, and symbolic links are followed") {
  Sharded sharded;
  std::filesystem::create_directory(sharded.folder.path("below"));
  std::filesystem::create_directory(sharded.folder.path("elsewhere"));
  for (const char* tensor : {"c", "d"})
    sharded.weight_map[tensor] = "below/two.safetensors";
  sharded.files["below/two.safetensors"] = sharded.files["two.safetensors"];
  sharded.files.erase("two.safetensors");
  std::swap(sharded.files["below/two.safetensors"], sharded.files["one.safetensors"]); // "below/" sorts first
  for (auto& [tensor, file] : sharded.weight_map)
    file = file == "one.safetensors" ? "below/two.safetensors" : "one.safetensors";
  const std::string path = sharded.path();
  std::filesystem::rename(sharded.folder.path("one.safetensors"), sharded.folder.path("elsewhere/blob"));
  std::filesystem::create_symlink("elsewhere/blob", sharded.folder.path("one.safetensors"));
  check_holds(sharded, path);
}

TEST_CASE("a single file, or the folder that holds it, is a checkpoint") {
  Sharded sharded;
  sharded.files = {{"model.safetensors", {{"w", Bytes(9)}}}};
  sharded.write_file("model.safetensors");
  for (const std::string& path : {sharded.folder.path("model.safetensors"), sharded.folder.path("")}) {
    const Result<Checkpoint> opened = Checkpoint::open(path);
    REQUIRE(opened);
    CHECK(opened->path() == path);
    REQUIRE(opened->tensors().size() == 1);
    CHECK(opened->find("w")->data.size() == 9);
  }
}

TEST_CASE("a checkpoint lives as long as its last copy") {
  const Sharded sharded;
  Result<Checkpoint> opened = Checkpoint::open(sharded.path());
  REQUIRE(opened);
  const Checkpoint copy = *opened;
  opened = tl::make_unexpected(Failure{});
  CHECK(copy.find("a")->data[4] == std::byte{'e'});
}

TEST_CASE("a folder with no checkpoint or more than one is refused") {
  const Sharded sharded;
  Sharded::check_path_refused(sharded.folder.path(""), {"no model.safetensors"});
  (void)sharded.path();
  (void)sharded.folder.write("other.safetensors.index.json", "{}");
  Sharded::check_path_refused(sharded.folder.path(""),
                              {"more than one", "model.safetensors.index.json, other.safetensors.index.json"});
  std::filesystem::remove(sharded.folder.path("other.safetensors.index.json"));
  (void)sharded.folder.write("model.safetensors", "x");
  Sharded::check_path_refused(sharded.folder.path(""), {"more than one", "model.safetensors.index.json, model.saf"});
}

TEST_CASE("paths that are nothing are refused") {
  const Sharded sharded;
  Sharded::check_path_refused(sharded.folder.path("gone.json"), {"No such file"});
  Sharded::check_path_refused(sharded.folder.path("gone"), {"No such file"});
  Sharded::check_path_refused(sharded.folder.write("empty.json", ""), {"no JSON"});
  Sharded::check_path_refused(sharded.folder.write("bad.json", R"({"weight_map":{"w":"../f"}})"), {"'../f'"});
}

TEST_CASE("an index that is too long is refused before it is parsed") {
  const Sharded sharded;
  const std::string path = sharded.folder.write("long.json", "{");
  std::filesystem::resize_file(path, 100'000'001); // sparse
  Sharded::check_path_refused(path, {"100000001 bytes", "100000000"});
}

TEST_CASE("all files that are missing or no good are named at once") {
  Sharded sharded;
  sharded.add("three.safetensors", "e", 1);
  const std::string path = sharded.path();
  std::filesystem::remove(sharded.folder.path("one.safetensors"));
  std::filesystem::resize_file(sharded.folder.path("two.safetensors"), 30);
  Sharded::check_path_refused(path, {sharded.folder.path("one.safetensors") + ": cannot be opened: No such file",
                                     sharded.folder.path("two.safetensors") + ": claims a header", "of the 3 files"});
}

TEST_CASE("a tensor that its file lacks is refused") {
  Sharded sharded;
  sharded.weight_map["e"] = "one.safetensors";
  sharded.weight_map["f"] = "two.safetensors";
  sharded.check_refused({sharded.folder.path("one.safetensors") + ": tensor 'e' is missing", "tensor 'f' is missing"});
}

TEST_CASE("tensors that the index does not name are refused") {
  Sharded sharded;
  sharded.weight_map.erase("a");
  sharded.weight_map.erase("d");
  sharded.check_refused({sharded.folder.path("one.safetensors") + ": holds tensor 'a', which weight_map",
                         "holds tensor 'd', which weight_map"});
}

TEST_CASE("a tensor in two files, or in another one than the index says, is refused") {
  Sharded sharded;
  SECTION("in two") {
    sharded.files["two.safetensors"]["a"] = Bytes(5);
    sharded.check_refused(
      {sharded.folder.path("two.safetensors") + ": holds tensor 'a', but weight_map", "is in one.safetensors"});
  }
  SECTION("in another") {
    sharded.weight_map["a"] = "two.safetensors";
    sharded.check_refused({sharded.folder.path("one.safetensors") + ": holds tensor 'a', but", "is in two.safetensors",
                           sharded.folder.path("two.safetensors") + ": tensor 'a' is missing"});
  }
}

TEST_CASE("a total_size that is not what the tensors come to is refused with both numbers") {
  Sharded sharded;
  for (const std::uint64_t wrong : {std::uint64_t{0}, std::uint64_t{14}, std::uint64_t{16}, ~std::uint64_t{0}}) {
    sharded.total_size = wrong;
    sharded.check_refused({"total_size " + std::to_string(wrong), "have 15 bytes"});
  }
  sharded.total_size = std::nullopt;
  check_holds(sharded, sharded.path());
}
