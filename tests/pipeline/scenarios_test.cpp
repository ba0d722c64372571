// Every file of tests/scenarios, with several sets of caps: bits must not depend on how they travel.

#include "catch.hpp"
#include "session.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

using namespace deltawire;
using namespace deltawire::test;

namespace {

std::vector<std::string> scenario_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(DELTAWIRE_SCENARIOS))
    if (entry.path().extension() == ".toml")
      files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

/// Runs all files; each failure is a failure of the test, with its file's title.
void run_all(const std::vector<std::string>& overrides) {
  const std::vector<std::string> files = scenario_files();
  REQUIRE(files.size() >= 35);
  for (const std::string& file : files) {
    const Scenario scenario = read_scenario(file);
    INFO(file);
    INFO(scenario.title);
    CHECK(run(scenario, overrides) == "");
  }
}

/// What the folder's README names in backticks and ends in ".toml".
std::set<std::string> named_scenarios() {
  std::ifstream file(std::string(DELTAWIRE_SCENARIOS) + "/README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex name("`([a-z0-9_]+\\.toml)`");
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

} // namespace

TEST_CASE("the list of failures names every scenario, and no other") {
  std::set<std::string> files;
  for (const std::string& file : scenario_files())
    files.insert(std::filesystem::path(file).filename().string());
  CHECK(named_scenarios() == files);
}

TEST_CASE("scenarios hold with the caps as they come") {
  run_all({});
}

TEST_CASE("scenarios hold when every stage holds a few elements and one Differ works") {
  run_all({"actors.differ.count=1", "actors.differ.chunk=40B", "actors.differ.inflight=200B",
           "actors.gather_queue.window=30B", "actors.gather_queue.max_round=150B", "actors.flush_bucket.cap=200B"});
}

TEST_CASE("scenarios hold with odd caps") {
  run_all({"actors.differ.count=2", "actors.differ.chunk=41B", "actors.differ.inflight=203B",
           "actors.gather_queue.window=31B", "actors.gather_queue.max_round=151B", "actors.flush_bucket.cap=207B"});
}

TEST_CASE("scenarios hold with caps of 1 KiB and three Differs") {
  run_all({"actors.differ.count=3", "actors.differ.chunk=1KiB", "actors.differ.inflight=1KiB",
           "actors.gather_queue.window=1KiB", "actors.gather_queue.max_round=1KiB", "actors.flush_bucket.cap=1KiB"});
}

TEST_CASE("scenarios hold with caps without limit and Differs on threads of their own") {
  run_all({"actors.differ.thread=detached", "actors.differ.inflight=unlimited", "actors.gather_queue.window=unlimited",
           "actors.gather_queue.max_round=unlimited", "actors.flush_bucket.cap=unlimited",
           "actors.applier.stage=unlimited"});
}
