// The pipeline under load: while a flush is on the wire the next one is assembled and another rank's share is gathered.
// tools/overlap.py reads that from the trace files of a real run, on one clock.

#include "catch.hpp"
#include "command.hpp"

#include <cstdlib>
#include <filesystem>
#include <sys/wait.h>

using namespace deltawire::test;

namespace {

/// Updates between two steps of the trace, back and forth, traced into `folder`.
Ended traced_replay(const std::string& folder, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"replay", source_path("tools/topologies/trace.toml"), "--set",
                                     "telemetry.trace=" + folder + "/trace.json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--checkpoints");
  for (int update = 0; update < 4; ++update)
    for (const char* step : {"step-00", "step-03"})
      arguments.push_back(source_path("tests/data/trace/trainer/" + std::string(step) + ".safetensors"));
  return run_command(arguments);
}

/// Runs tools/overlap.py on the trace files of a folder. What it said goes into `report`.
int overlap_of(const std::string& folder, std::string& report) {
  std::string command = "python3 '" + source_path("tools/overlap.py") + "'";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") {
      command += " '" + entry.path().string() + "'";
      ++files;
    }
  REQUIRE(files == 6); // four ranks, two workers
  const std::string output = folder + "/report.txt";
  const int status = std::system((command + " > '" + output + "' 2>&1").c_str()); // NOLINT(concurrency-mt-unsafe)
  report = read_file(output);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

TEST_CASE("while a flush is on the wire, the next one is assembled and another rank's share is gathered") {
  for (const std::string mode : {"threads", "processes"}) {
    CAPTURE(mode);
    const Scratch scratch;
    std::vector<std::string> options{"--set", "actors.flush_bucket.cap=4KiB",
                                     "--set", "actors.gather_queue.max_round=2KiB",
                                     "--set", "actors.differ.inflight=4KiB"};
    if (mode == "processes")
      options.emplace_back("--processes");
    const Ended ended = traced_replay(scratch.path(""), options);
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    std::string report;
    const int status = overlap_of(scratch.path(""), report);
    INFO(report);
    CHECK(status == 0);
    CHECK_THAT(report, Catch::Matchers::Contains("for example, version"));
  }
}

TEST_CASE("README's commands for newcomers show the overlap") {
  const std::string readme = read_file(source_path("README.md"));
  const std::string fence = "  ```\n";
  const std::size_t end = readme.find(fence, readme.find("  tools/overlap.py --seeds trace*.json\n"));
  REQUIRE(end != std::string::npos);
  const std::size_t begin = readme.rfind("```sh\n", end) + 6;
  const std::string commands = readme.substr(begin, end - begin);
  INFO(commands);
  REQUIRE(commands.find("deltawire replay") != std::string::npos);

  const Scratch scratch; // a tree that was just built, to the eye
  std::filesystem::create_directories(scratch.path("build/tools"));
  std::filesystem::create_symlink(std::getenv("DELTAWIRE_COMMAND"), // NOLINT(concurrency-mt-unsafe)
                                  scratch.path("build/tools/deltawire"));
  for (const char* folder : {"tools", "tests"})
    std::filesystem::create_directory_symlink(source_path(folder), scratch.path(folder));
  const std::string script = scratch.write("commands.sh", "set -e\ncd '" + scratch.path("") + "'\n" + commands);
  const std::string said = scratch.path("said.txt");
  const int status =
    std::system(("sh '" + script + "' > '" + said + "' 2>&1").c_str()); // NOLINT(concurrency-mt-unsafe)
  INFO(read_file(said));
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK_THAT(read_file(said), Catch::Matchers::Contains("flushes were on the wire") &&
                                Catch::Matchers::Contains("for example, version") &&
                                !Catch::Matchers::Contains("warning"));
}

TEST_CASE("updates of one flush each overlap with nothing, and the overlap check says so") {
  const Scratch scratch;
  const Ended ended = traced_replay(scratch.path(""), {});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  std::string report;
  CHECK(overlap_of(scratch.path(""), report) == 1);
  CHECK_THAT(report, Catch::Matchers::Contains("the stages do not overlap"));
}
