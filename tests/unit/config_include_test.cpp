// Contract: `include` of src/config/document.hpp.
#include "config_files.hpp"

#include "catch.hpp"
#include "text_matchers.hpp"

namespace deltawire::config {

using test::starts_with;

TEST_CASE("includes are relative to the including file, tables merge and arrays of tables append") {
  TopologyFiles files;
  files.write("t.toml", R"(include = ["maps/a.toml"]
[trainer]
mesh = [["fsdp", 2]]
[[trainer.placement]]
parameter = "own"
shard = []
[actors]
differ = { count = 3 }
)");
  files.write("maps/a.toml", R"(include = ["../other/b.toml"]
[[trainer.placement]]
parameter = "a"
shard = []
[actors]
differ = { chunk = "1MiB" }
)");
  files.write("other/b.toml", "[[trainer.placement]]\nparameter = \"b\"\nshard = []\n[worker]\nmesh = [[\"tp\", 2]]\n");
  auto t = files.load();
  if (!t)
    FAIL(t.error().message);
  REQUIRE(t->trainer.placements.size() == 3);
  CHECK(t->trainer.placements[0].parameter == "own"); // first match wins: the including file comes first
  CHECK(t->trainer.placements[1].parameter == "a");
  CHECK(t->trainer.placements[1].where == files.path("maps/a.toml") + ":2");
  CHECK(t->trainer.placements[2].parameter == "b");
  CHECK(t->trainer.placements[2].where == files.path("other/b.toml") + ":1");
  CHECK(t->worker.mesh.size() == 2);
  CHECK(t->actors.differ.count == 3);
  CHECK(t->actors.differ.chunk == 1u << 20);
}

TEST_CASE("a key set in two files is refused and both places are named") {
  TopologyFiles files;
  files.write("t.toml", "include = [\"a.toml\", \"b.toml\"]\n[update]\nstall = \"1s\"\n[worker]\nunused = [\"x\"]\n");
  files.write("a.toml", "update.stall = \"1s\"\n");
  files.write("b.toml", "\n[worker]\nunused = [\"y\"]\n[[transport]]\n");
  CHECK(files.errors() == "a.toml:1: update.stall: already set at t.toml:3; a key may be set in one file only\n"
                          "b.toml:3: worker.unused: already set at t.toml:5; a key may be set in one file only\n"
                          "b.toml:4: transport: must be a table, not an array");
  files.write("b.toml", "update = 3\n");
  CHECK(files.errors() == "a.toml:1: update.stall: already set at t.toml:3; a key may be set in one file only\n"
                          "b.toml:1: update: already set at t.toml:2; a key may be set in one file only");
}

TEST_CASE("errors of included files carry their own name and line") {
  TopologyFiles files;
  files.write("t.toml", "include = [\"a.toml\", \"broken.toml\"]\nupdate.stal = 1\n");
  files.write("a.toml", "\n\nactors.differ.count = 0\n");
  files.write("broken.toml", "x = \n");
  const std::string errors = files.errors();
  CHECK_THAT(errors, starts_with("t.toml:2: update.stal: unknown key; did you mean \"stall\"?\n"
                                 "a.toml:3: actors.differ.count: 0 is not between 1 and 1024\n"
                                 "broken.toml:1: not valid TOML: "));
}

TEST_CASE("cycles are refused, and a file that is reached by two ways counts once") {
  TopologyFiles files;
  files.write("t.toml", "include = [\"a.toml\"]\n");
  files.write("a.toml", "\ninclude = [\"t.toml\"]\n");
  CHECK(files.errors() == "a.toml:2: include: \"t.toml\" includes itself, directly or through another file");
  files.write("self.toml", "include = [\"./self.toml\"]\n");
  CHECK(files.errors("self.toml") ==
        "self.toml:1: include: \"self.toml\" includes itself, directly or through another file");

  files.write("t.toml", "include = [\"a.toml\", \"b.toml\"]\n");
  files.write("a.toml", "include = [\"common.toml\"]\n");
  files.write("b.toml", "include = [\"common.toml\"]\n");
  files.write("common.toml", "update.stall = \"1s\"\n[[worker.map]]\nparameter = \"*\"\n");
  auto t = files.load();
  if (!t)
    FAIL(t.error().message);
  CHECK(t->worker.maps.size() == 1);
}

TEST_CASE("includes that cannot be right are refused at their line") {
  TopologyFiles files;
  files.write("t.toml", "include = [\n  \"missing.toml\",\n]\n");
  CHECK(files.errors() == "t.toml:2: include: \"missing.toml\" cannot be read: No such file or directory");
  for (const char* value : {"\"a.toml\"", "[1]", "[\"\"]", "{}", "3"}) {
    CAPTURE(value);
    files.write("t.toml", fmt::format("\ninclude = {}\n", value));
    CHECK(files.errors() == "t.toml:2: include: must be an array of file names, e.g. [\"maps/qwen3-moe.toml\"]");
  }
  files.write("directory/x.toml", "");
  files.write("t.toml", "include = [\"directory\"]\n");
  CHECK(files.errors() == "t.toml:1: include: \"directory\" is a directory");
  files.write("t.toml", "[trainer]\ninclude = [\"a.toml\"]\n");
  CHECK_THAT(files.errors(), starts_with("t.toml:2: trainer.include: unknown key"));
}

TEST_CASE("a chain of includes without end is refused") {
  TopologyFiles files;
  for (int i = 0; i < 70; ++i)
    files.write(fmt::format("{}.toml", i), fmt::format("include = [\"{}.toml\"]\n", i + 1));
  CHECK(files.errors("0.toml") == "63.toml:1: include: \"64.toml\" is one file too many: at most 63 may be included");
}

} // namespace deltawire::config
