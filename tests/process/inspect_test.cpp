// Flushes that a replay keeps, and what inspect tells of them.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

#include <fstream>

using namespace deltawire::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

struct Kept {
  Scratch scratch;
  std::vector<std::string> files;
  json report;

  explicit Kept(const std::vector<std::string>& more) {
    std::vector<std::string> arguments{
      "replay",       scratch.write("small.toml", small_topology), "--json", "--keep-flushes", scratch.path("flushes"),
      "--checkpoints"};
    for (int version : {1, 2, 3})
      arguments.push_back(scratch.write(std::to_string(version) + ".safetensors", file_of(small_model(version))));
    arguments.insert(arguments.begin() + 2, more.begin(), more.end());
    const Ended ended = run_command(arguments);
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    report = json::parse(ended.out);
    for (const auto& entry : std::filesystem::directory_iterator(scratch.path("flushes")))
      files.push_back(entry.path().string());
  }
};

} // namespace

TEST_CASE("every part of every flush is kept, and inspect finds all of its bytes in pieces") {
  for (const bool processes : {false, true}) {
    CAPTURE(processes);
    const Kept kept(processes ? std::vector<std::string>{"--processes"} : std::vector<std::string>{});
    std::uint64_t flushes = 0;
    for (const auto& update : kept.report.at("updates"))
      flushes += update.at("flushes").get<std::uint64_t>();
    CHECK(kept.files.size() >= flushes); // a part a route
    for (const std::string& file : kept.files) {
      CAPTURE(file);
      const Ended text = run_command({"inspect", file});
      CHECK(text.status == 0);
      CHECK_THAT(text.out, Contains("route") && Contains("block"));
      const json told = json::parse(run_command({"inspect", file, "--json"}).out);
      std::uint64_t bytes = 0;
      for (const auto& piece : told.at("pieces")) {
        CHECK(piece.at("offset") == bytes);
        bytes += piece.at("bytes").get<std::uint64_t>();
      }
      CHECK(told.at("payload_bytes") == bytes);
      CHECK(std::filesystem::file_size(file) == 72 + bytes);
    }
  }
}

TEST_CASE("inspect refuses what is no flush, and names the file") {
  const Kept kept({});
  const std::string good = read_file(kept.files.front());
  std::string flipped = good;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  for (const std::string& bad : {std::string(), good.substr(0, 71), good.substr(0, good.size() - 1), good + "x",
                                 flipped, std::string(200, 'x')}) {
    const std::string path = kept.scratch.write("bad.flush", bad);
    const Ended ended = run_command({"inspect", path});
    INFO(ended.err);
    CHECK(ended.status == 2);
    CHECK(ended.out.empty());
    CHECK_THAT(ended.err, Contains(path));
  }
  const Ended model = run_command({"inspect", kept.scratch.write("m.safetensors", file_of(small_model(1)))});
  CHECK(model.status == 2);
  CHECK_THAT(model.err, Contains("m.safetensors: is no flush") && Contains("it looks like a safetensors file") &&
                          !Contains("peer"));
  const Ended text = run_command({"inspect", kept.scratch.write("notes", "not a flush at all")});
  CHECK(text.status == 2);
  CHECK_THAT(text.err, Contains("notes: is no flush") && !Contains("safetensors"));
  CHECK(run_command({"inspect", kept.scratch.path("none.flush")}).status == 2);
  CHECK(run_command({"inspect"}).status == 2);
}

TEST_CASE("a folder for flushes that cannot be written is an output failure before anything starts") {
  const Scratch scratch;
  const std::string file = scratch.write("1.safetensors", file_of(small_model(1)));
  const Ended ended = run_command({"replay", scratch.write("small.toml", small_topology), "--keep-flushes",
                                   file + "/flushes", "--checkpoints", file});
  CHECK(ended.status == 4);
  CHECK_THAT(ended.err, Contains("--keep-flushes"));
}
