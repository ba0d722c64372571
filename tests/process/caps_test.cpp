// Caps on real input: every stage's high-water mark stays under its cap, and every worker's bits are the same whatever
// the caps, in one process and across processes.

#include "catch.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

#include <limits>
#include <map>

using namespace deltawire::test;

TEST_CASE("no stage passes its cap, and no cap changes a bit of what workers hold") {
  const std::map<std::string, std::uint64_t> caps{
    {"2KiB", 2048}, {"64KiB", 65536}, {"1MiB", 1048576}, {"unlimited", std::numeric_limits<std::uint64_t>::max() / 2}};
  std::map<int, std::string> dumps; // by worker
  for (const std::string mode : {"threads", "processes"})
    for (const auto& [text, cap] : caps) {
      CAPTURE(mode, text);
      const Scratch scratch;
      std::vector<std::string> arguments{"replay", source_path("tools/topologies/trace.toml"), "--json", "--dump",
                                         scratch.path("")};
      if (mode == "processes")
        arguments.emplace_back("--processes");
      for (const std::string key : {"flush_bucket.cap", "gather_queue.max_round", "differ.inflight"}) {
        arguments.emplace_back("--set");
        arguments.push_back("actors." + key + "=" + text);
      }
      arguments.emplace_back("--checkpoints");
      for (const char* step : {"step-00", "step-01", "step-03"})
        arguments.push_back(source_path("tests/data/trace/trainer/" + std::string(step) + ".safetensors"));
      const Ended ended = run_command(arguments);
      INFO(ended.err);
      REQUIRE(ended.status == 0);

      const auto report = nlohmann::json::parse(ended.out);
      const auto& high_water = report.at("high_water_bytes");
      INFO(high_water.dump());
      for (const char* stage : {"differ", "gather_queue", "flush_bucket"})
        CHECK(high_water.at(stage) > 0);
      CHECK(high_water.at("differ") <= cap);
      CHECK(high_water.at("gather_queue") <= cap);
      CHECK(high_water.at("flush_bucket") <= 2 * cap); // one assembled, one on the wire
      for (int worker = 0; worker < 2; ++worker) {
        const std::string dump = read_file(scratch.path("worker-" + std::to_string(worker) + ".safetensors"));
        REQUIRE(dump.size() > 1'000'000);
        CHECK((dumps.try_emplace(worker, dump).first->second == dump));
      }
    }
}
