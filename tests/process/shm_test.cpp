// Sessions whose processes share memory: the same bits as over TCP, whichever stages use it, and workers that are
// killed.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "running_replay.hpp"

#include <nlohmann/json.hpp>

#include <csignal>
#include <fstream>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> over(const std::string& gather, const std::string& sender) {
  return {"--set", "actors.gather_queue.transport=" + gather, "--set", "actors.sender.transport=" + sender};
}

std::vector<std::string> replay_of_trace(const std::string& dump, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{
    "replay", source_path("tools/topologies/trace.toml"), "--processes", "--quiet", "--dump", dump, "--dump-each"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--checkpoints");
  for (int step = 0; step < 4; ++step)
    arguments.push_back(source_path("tests/data/trace/trainer/step-0" + std::to_string(step) + ".safetensors"));
  return arguments;
}

/// small_topology with two replicas of two workers, over shared memory.
std::string two_replicas() {
  std::string topology = small_topology;
  const std::string one = R"(mesh = [["tp", 2]])";
  return topology.replace(topology.find(one), one.size(), R"(mesh = [["dp", 2], ["tp", 2]])");
}

} // namespace

TEST_CASE("the trace replays over shared memory to the bits of TCP, whichever stages use it") {
  const Scratch scratch;
  const std::vector<std::vector<std::string>> ways = {over("tcp", "tcp"), over("shm", "shm"), over("tcp", "shm"),
                                                      over("shm", "auto")};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    const Ended ended = run_command(replay_of_trace(scratch.path(std::to_string(way)), ways[way]));
    INFO(ended.err);
    REQUIRE(ended.status == 0);
    CHECK(ended.err.empty());
    CHECK_THAT(ended.out, Contains("verified: 4 versions on 2 workers"));
    for (int version = 1; version <= 4; ++version)
      for (int worker = 0; worker < 2; ++worker) {
        const std::string file = "/v" + std::to_string(version) + "/worker-" + std::to_string(worker) + ".safetensors";
        CHECK((read_file(scratch.path(std::to_string(way)) + file) == read_file(scratch.path("0") + file)));
      }
  }
}

TEST_CASE("a broadcast, parts and small flushes replay over shared memory") {
  const Scratch scratch;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--set", "actors.sender.route=broadcast"},
        {"--parts", "3"},
        {"--set", "actors.flush_bucket.cap=100KiB", "--set", "actors.gather_queue.max_round=90KiB"}}) {
    std::vector<std::string> options = over("shm", "shm");
    options.insert(options.end(), more.begin(), more.end());
    CAPTURE(more.back());
    const Ended ended = run_command(replay_of_trace(scratch.path("dump"), options));
    INFO(ended.err);
    CHECK(ended.status == 0);
    CHECK_THAT(ended.out, Contains("verified: 4 versions on 2 workers"));
  }
}

TEST_CASE("over shared memory a worker that is killed is named, and the other replica served to the end") {
  RunningReplay replay(two_replicas(), 300, over("shm", "shm"));
  replay.until_held(3, 1);
  ::kill(replay.child("worker", "--index", "1"), SIGKILL);
  const Ended ended = replay.running->wait(60);
  INFO(ended.err);
  CHECK(ended.status == 3);
  CHECK_THAT(ended.err, Contains("worker 1") && Contains("signal 9"));
  const auto report = replay.report();
  REQUIRE(report.at("updates").size() == 300);
  for (const auto& update : report.at("updates"))
    for (const std::size_t other : {2, 3}) {
      CHECK(update.at("workers").at(other).at("version") == update.at("version"));
      CHECK(update.at("workers").at(other).at("digest_ok") == true);
    }
  const auto& last = report.at("updates").back().at("workers");
  CHECK(last.at(1).at("state") == "lost");
  CHECK_THAT(last.at(1).at("error").get<std::string>(), Contains("worker 1") && Contains("shm:127.0.0.1:"));
}

TEST_CASE("over shared memory a trainer rank that is killed ends the session for everybody, by name") {
  RunningReplay replay(small_topology, 600, over("shm", "shm"));
  replay.until_held(3, 0);
  ::kill(replay.child("trainer", "--rank", "1"), SIGKILL);
  const Ended ended = replay.running->wait(60);
  INFO(ended.err);
  CHECK(ended.status == 3);
  CHECK_THAT(ended.err, Contains("rank 1"));
}

TEST_CASE("shared memory is refused where the master may be another host, and needs no secret where it is not") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string first = scratch.write("1.safetensors", file_of(small_model(1)));
  const std::string second = scratch.write("2.safetensors", file_of(small_model(2)));
  const auto replay = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"replay", topology, "--processes", "--quiet"};
    for (const auto& part : {over("shm", "shm"), more})
      arguments.insert(arguments.end(), part.begin(), part.end());
    arguments.insert(arguments.end(), {"--checkpoints", first, second});
    return run_command(arguments);
  };
  const Ended far = replay({"--set", "transport.master=10.0.0.1:29500", "--set", "transport.secret_file=none"});
  CHECK(far.status == 2);
  CHECK_THAT(far.err, Contains("actors.sender.transport") && Contains("actors.gather_queue.transport") &&
                        Contains("joins processes of one host"));
  // Not read: nothing would be encrypted with it.
  CHECK(replay({"--set", "transport.secret_file=" + scratch.path("none")}).status == 0);
}
