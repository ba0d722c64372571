// The index of a checkpoint in several files, as text: one test a rule, and what is passed over.
#include "catch.hpp"
#include "checkpoint/index.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include <set>

using namespace deltawire;
using namespace deltawire::checkpoint;
using test::contains;

namespace {

Index parsed(const std::string& text) {
  Result<Index> index = parse_index(text);
  INFO(text << (index ? "" : ": " + index.error().message));
  REQUIRE(index);
  return *index;
}

void check_refused(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text);
  const Result<Index> index = parse_index(text);
  REQUIRE(!index);
  CHECK(index.error().code == Code::invalid_input);
  for (const std::string& part : parts)
    CHECK_THAT(index.error().message, contains(part));
}

void check_file_refused(const std::string& name, const std::string& why) {
  check_refused(R"({"weight_map":{"w":")" + name + R"("}})", {"file name", "(of tensor 'w')", why});
}

} // namespace

TEST_CASE("an index gives its files by name, each with its tensors") {
  const Index index = parsed(R"({"metadata":{"total_size":24},)"
                             R"("weight_map":{"z":"b.safetensors","a":"b.safetensors","m":"a.safetensors"}})");
  CHECK(index.total_size == 24);
  REQUIRE(index.files.size() == 2);
  CHECK(index.files[0].name == "a.safetensors");
  CHECK(index.files[0].tensors == std::vector<std::string>{"m"});
  CHECK(index.files[1].tensors.size() == 2);
}

TEST_CASE("an index needs no metadata, and what is for others is passed over") {
  CHECK(!parsed(R"({"weight_map":{"w":"f"}})").total_size);
  CHECK(!parsed(R"({"metadata":{},"weight_map":{"w":"f"}})").total_size);
  const Index index = parsed(R"({"a":[{"weight_map":3,"weight_map":[]},null,true,-1,1.5,"x"],"weight_map":{"w":"f"},)"
                             R"("metadata":{"b":{"total_size":5},"total_size":7,"c":[[8]],"total_parameters":-1}})");
  CHECK(index.total_size == 7);
  REQUIRE(index.files.size() == 1);
  CHECK(index.files[0].tensors == std::vector<std::string>{"w"});
}

TEST_CASE("a total_size that some writer made a float is read where it is whole") {
  CHECK(parsed(R"({"metadata":{"total_size":4538376.0},"weight_map":{"w":"f"}})").total_size == 4538376);
  for (const std::string text :
       {"0.5", "-1", "-1.0", "1e300", "18446744073709551616", "\"7\"", "null", "true", "[7]", "{\"total_size\":7}"})
    check_refused(R"({"metadata":{"total_size":)" + text + R"(},"weight_map":{"w":"f"}})",
                  {"total_size must be a whole number of bytes"});
}

TEST_CASE("an index that is no JSON object is refused") {
  for (const std::string text : {"", "{", "{} x", "{}{}", R"({"weight_map":{"w":"f"})", R"({'weight_map':{}})"})
    check_refused(text, {"no JSON"});
  check_refused(R"({"weight_map":{"w":"f"}})" + std::string(1, '\0') + "[[", {"byte 24 is zero"});
  for (const std::string text : {"[]", "3", "null", "\"weight_map\""})
    check_refused(text, {"must be a JSON object"});
}

TEST_CASE("an index without a weight_map, or with one that is none, is refused") {
  check_refused("{}", {"weight_map is missing"});
  check_refused(R"({"metadata":{"total_size":0,"weight_map":{"w":"f"}}})", {"weight_map is missing"});
  check_refused(R"({"weight_map":{}})", {"names no tensor"});
  check_refused(R"({"weight_map":[]})", {"weight_map must be an object, and is an array"});
  check_refused(R"({"weight_map":null})", {"weight_map must be an object, and is null"});
  check_refused(R"({"weight_map":{"w":"f"},"metadata":3})", {"metadata must be an object, and is a number"});
  for (const std::string text : {"3", "null", "[\"f\"]", "{\"w\":\"f\"}", "true", "-1", "1.5"})
    check_refused(R"({"weight_map":{"w":)" + text + "}}", {"tensor 'w' must be given a file name"});
}

TEST_CASE("what an index says twice is refused, however it is spelled") {
  check_refused(R"({"weight_map":{"w":"f","w":"f"}})", {"tensor 'w' appears twice"});
  check_refused(R"({"weight_map":{"w":"f","\u0077":"g"}})", {"tensor 'w' appears twice"});
  check_refused(R"({"weight_map":{"w":"f"},"weight_map":{"v":"f"}})", {"'weight_map' appears twice"});
  check_refused(R"({"metadata":{"total_size":1,"total_size":1},"weight_map":{"w":"f"}})", {"total_size appears twice"});
}

TEST_CASE("file names that leave the folder, or are one of several spellings, are refused") {
  check_file_refused("/etc/passwd", "is absolute");
  check_file_refused("..", "leaves the folder");
  check_file_refused("../f", "leaves the folder");
  check_file_refused("a/../../f", "leaves the folder");
  check_file_refused("a/..", "leaves the folder");
  check_file_refused("", "is empty");
  check_file_refused("./f", "'.'");
  check_file_refused("a/./f", "'.'");
  check_file_refused("a//f", "empty part");
  check_file_refused("a/", "empty part");
  check_file_refused("f\\u0000g", "zero byte");
  for (const std::string name : {"f", "..f", "f..", "a/b/f", "a..b/f", ".f"})
    CHECK(parsed(R"({"weight_map":{"w":")" + name + R"("}})").files.at(0).name == name);
}

TEST_CASE("all file names that are refused are named at once") {
  check_refused(R"({"weight_map":{"v":"../a","w":"/b","x":"c"}})", {"'../a' (of tensor 'v')", "'/b' (of tensor 'w')"});
}

TEST_CASE("nesting without end is passed over or refused, and ends") {
  check_refused("{\"a\":" + std::string(1'000'000, '['), {"no JSON"});
  check_refused("{\"weight_map\":{\"w\":" + std::string(1'000'000, '['), {"must be given a file name"});
}

TEST_CASE("mutated indexes are refused, or keep every promise") {
  CAPTURE(test::seed());
  auto random = test::generator(11);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  const std::string good = R"({"metadata":{"total_size":24,"x":[1,{"y":"z"}]},)"
                           R"("weight_map":{"a":"m-1","b.c":"m-2","d":"s/m-1","e":"m-1"},"o":{}})";
  const std::string interesting = "{}[]\",:0123456789-.eE\\u/ \x00\xff";
  std::size_t accepted = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::string text = good;
    for (std::size_t mutations = 1 + below(3); mutations > 0; --mutations) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
      case 0:
        text[at] = interesting[below(interesting.size())];
        break;
      case 1:
        text.insert(at, 1, interesting[below(interesting.size())]);
        break;
      case 2:
        text.erase(at, 1 + below(4));
        break;
      default:
        text.insert(at, text.substr(at, 1 + below(30)));
      }
      if (text.empty())
        text = "{";
    }
    CAPTURE(round, text);
    const Result<Index> index = parse_index(text);
    if (!index) {
      REQUIRE(index.error().code == Code::invalid_input);
      REQUIRE(!index.error().message.empty());
      continue;
    }
    ++accepted;
    std::set<std::string> tensors;
    std::string last;
    for (const IndexedFile& file : index->files) {
      REQUIRE(last < file.name);
      last = file.name;
      REQUIRE(("/" + file.name + "/").find("/../") == std::string::npos);
      REQUIRE(("/" + file.name + "/").find("//") == std::string::npos);
      REQUIRE(!file.tensors.empty());
      for (const std::string& tensor : file.tensors)
        REQUIRE(tensors.insert(tensor).second);
    }
    REQUIRE(!tensors.empty());
  }
  CHECK(accepted > 1'000);
  CHECK(accepted < 45'000);
}
