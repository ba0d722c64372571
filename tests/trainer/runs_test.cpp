// Short runs of the real trainer: real processes, libtorch, and weights through deltawire.
#include "../process/command.hpp"
#include "catch.hpp"

#include <chrono>
#include <csignal>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

using namespace deltawire::test;
using nlohmann::json;

namespace {

std::string topology() {
  return source_path("tools/trainer/topology.toml");
}

/// A run small enough for a test, yet warmed up enough to be rewarded: without, nothing would change.
std::vector<std::string> small_run(const std::string& topology_file, const std::vector<std::string>& more,
                                   const std::string& updates = "5", const std::string& seed = "3") {
  std::vector<std::string> arguments{"run", topology_file, "--warm-up", "40", "--prompts", "6", "--group", "8"};
  arguments.insert(arguments.end(), {"--updates", updates, "--seed", seed});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<json> lines_of(const std::string& path) {
  std::vector<json> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);)
    lines.push_back(json::parse(line));
  return lines;
}

/// A long run, once its first updates are through.
struct LongRun {
  Scratch scratch;
  Running running;

  explicit LongRun(const std::vector<std::string>& more = {})
    : running(small_run(topology(), with(more), "1000000"), scratch.path("out")) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (read_file(scratch.path("out")).find("\n     1 ") == std::string::npos) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  [[nodiscard]] pid_t child(const std::string& command, const std::string& index) const {
    const auto found = running.children({command, "--index", index});
    REQUIRE(found.size() == 1);
    return found.front();
  }

private:
  static std::vector<std::string> with(std::vector<std::string> more) {
    more.insert(more.end(), {"--every", "1"});
    return more;
  }
};

void check_none_alive(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (is_alive(process) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK_FALSE(is_alive(process));
  }
}

} // namespace

TEST_CASE("a run through deltawire has the numbers of one with full copies, and moves fewer bytes") {
  const Scratch scratch;
  for (const std::string sync : {"deltawire", "copy"}) {
    const Ended ended = run_command(small_run(topology(), {"--sync", sync, "--log", scratch.path(sync)}));
    INFO(ended.out << ended.err);
    REQUIRE(ended.status == 0);
  }
  std::vector<json> deltas = lines_of(scratch.path("deltawire"));
  std::vector<json> copies = lines_of(scratch.path("copy"));
  REQUIRE(deltas.size() == 6);
  REQUIRE(copies.size() == 6);
  for (std::size_t update = 0; update < deltas.size(); ++update) {
    CAPTURE(update);
    CHECK(deltas[update]["delivery"]["wire_bytes"] < copies[update]["delivery"]["wire_bytes"]);
    if (update > 0) {
      CHECK(deltas[update]["changed"] > 0);
      CHECK(deltas[update]["changed"] < deltas[update]["elements"]);
      CHECK(deltas[update]["weights"] != deltas[update - 1]["weights"]);
    }
    deltas[update].erase("delivery");
    copies[update].erase("delivery");
    CHECK(deltas[update] == copies[update]);
  }
}

TEST_CASE("another seed is another run") {
  const Scratch scratch;
  for (const std::string seed : {"3", "4"})
    REQUIRE(run_command(small_run(topology(), {"--sync", "copy", "--log", scratch.path(seed)}, "1", seed)).status == 0);
  CHECK(lines_of(scratch.path("3"))[1]["rollouts"] != lines_of(scratch.path("4"))[1]["rollouts"]);
}

TEST_CASE("weights in the wrong place on a worker are found at the first update") {
  std::string text = read_file(topology());
  // gate where up belongs, and up where gate does
  const auto put = [&](const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  put("mlp.gate_proj.weight\"", "mlp.OTHER");
  put("mlp.up_proj.weight\"", "mlp.gate_proj.weight\"");
  put("mlp.OTHER", "mlp.up_proj.weight\"");
  const Scratch scratch;
  const Ended ended = run_command(small_run(scratch.write("swapped.toml", text), {}));
  CHECK(ended.status == 3);
  INFO(ended.err);
  CHECK(ended.err.find("worker 0 does not hold the weights of update 0") != std::string::npos);
}

TEST_CASE("a run ends, with its name, when a process of it dies, and leaves none behind") {
  struct Victim {
    std::string command, index, named;
  };
  const std::vector<Victim> victims{{"rank", "0", "trainer rank 0 was killed by signal 9"},
                                    {"rank", "1", "trainer rank 1 was killed by signal 9"},
                                    {"worker", "1", "worker 1 was killed by signal 9"}};
  for (const auto& [command, index, named] : victims) {
    CAPTURE(named);
    LongRun run;
    const std::vector<pid_t> children = run.running.children();
    REQUIRE(children.size() == 4);
    ::kill(run.child(command, index), SIGKILL);
    const Ended ended = run.running.wait();
    CHECK(ended.status == 3);
    INFO(ended.err);
    CHECK(ended.err.find(named) != std::string::npos);
    check_none_alive(children);
  }
}

TEST_CASE("a run ends when a process of it stands still, and leaves none behind") {
  LongRun run({"--deadline", "5", "--set", "update.stall=5s"});
  const std::vector<pid_t> children = run.running.children();
  ::kill(run.child("worker", "1"), SIGSTOP);
  const Ended ended = run.running.wait();
  CHECK(ended.status == 3);
  INFO(ended.err);
  CHECK(ended.err.find("worker 1") != std::string::npos);
  check_none_alive(children);
}

TEST_CASE("no process outlives the run's own") {
  LongRun run;
  const std::vector<pid_t> children = run.running.children();
  REQUIRE(children.size() == 4);
  ::kill(run.running.pid(), SIGKILL);
  CHECK(run.running.wait().status == 128 + SIGKILL);
  check_none_alive(children);
}

TEST_CASE("what cannot be run is refused with status 2 or 3 and a reason") {
  const Ended unknown = run_command({"run", topology(), "--sync", "carrier-pigeon"});
  CHECK(unknown.status == 2);
  CHECK(unknown.err.find("--sync") != std::string::npos);
  const Ended short_proof = run_command({"prove", topology(), "--updates", "99"});
  CHECK(short_proof.status == 2);
  CHECK(short_proof.err.find("100 or more") != std::string::npos);
  const Ended no_topology = run_command(small_run("nowhere.toml", {}));
  CHECK(no_topology.status == 3);
  CHECK(no_topology.err.find("nowhere.toml") != std::string::npos);
}
