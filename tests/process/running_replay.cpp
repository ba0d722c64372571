#include "running_replay.hpp"

#include "catch.hpp"
#include "checkpoint_files.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <thread>

namespace deltawire::test {

RunningReplay::RunningReplay(const std::string& topology, int count, const std::vector<std::string>& more)
  : versions(count) {
  std::vector<std::string> arguments{"replay",
                                     scratch.write("topology.toml", topology),
                                     "--processes",
                                     "--dump",
                                     scratch.path("dumps"),
                                     "--dump-each",
                                     "--report",
                                     scratch.path("report.json")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--checkpoints");
  const std::string first = scratch.write("1.safetensors", file_of(small_model(1)));
  const std::string second = scratch.write("2.safetensors", file_of(small_model(2)));
  for (int version = 0; version < versions; ++version)
    arguments.push_back(version % 2 == 0 ? first : second);
  running = std::make_unique<Running>(arguments);
}

std::string RunningReplay::dump_of(int version, int worker) const {
  return scratch.path("dumps/v" + std::to_string(version) + "/worker-" + std::to_string(worker) + ".safetensors");
}

void RunningReplay::until_held(int version, int worker) const {
  const std::string dump = dump_of(version, worker);
  for (int i = 0; i < 6000; ++i) {
    if (std::filesystem::exists(dump))
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL("worker " << worker << " does not come to version " << version << ": "
                 << read_file(scratch.path("report.json")));
}

int RunningReplay::newest_of(int worker) const {
  int version = 1;
  while (std::filesystem::exists(dump_of(version + 1, worker)))
    ++version;
  return version;
}

pid_t RunningReplay::child(const std::string& side, const std::string& option, const std::string& index) const {
  const auto found = running->children({side, option, index});
  REQUIRE(found.size() == 1);
  return found.front();
}

nlohmann::json RunningReplay::report() const {
  return nlohmann::json::parse(read_file(scratch.path("report.json")));
}

} // namespace deltawire::test
