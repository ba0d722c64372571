// Peers that are killed or stand still, and peers that are started by hand.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "running_replay.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <csignal>
#include <memory>
#include <sstream>
#include <thread>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

/// A replay of so many versions that it is under way for long.
struct LongReplay : RunningReplay {
  explicit LongReplay(const std::vector<std::string>& more = {}) : RunningReplay(small_topology, 10000, more) {}

  /// Waits until both workers hold version 3.
  void until_under_way() const {
    until_held(3, 0);
    until_held(3, 1);
  }
};

void require_all_gone(const std::vector<pid_t>& processes) {
  REQUIRE_FALSE(processes.empty());
  for (int i = 0; i < 400; ++i) {
    bool any = false;
    for (const pid_t pid : processes)
      any = any || is_alive(pid);
    if (!any)
      return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  FAIL("a child outlives its parent");
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// Lines that are no warnings, of which a long replay of a tiny model may have some.
std::size_t count_errors(const std::string& text) {
  std::istringstream lines(text);
  std::size_t errors = 0;
  for (std::string line; std::getline(lines, line);)
    errors += line.starts_with("deltawire: warning: ") ? 0 : 1;
  return errors;
}

} // namespace

TEST_CASE("a worker that is killed is named, and the report still written") {
  LongReplay replay;
  replay.until_under_way();
  const auto children = replay.running->children();
  CHECK(children.size() == 4);
  ::kill(replay.child("worker", "--index", "1"), SIGKILL);
  const Ended ended = replay.running->wait(30);
  INFO(ended.err);
  CHECK(ended.status == 3);
  CHECK_THAT(ended.err, Contains("worker 1") && Contains("signal 9"));
  CHECK(count_errors(ended.err) == 1);
  CHECK(replay.report().at("verified") == false);
  require_all_gone(children);
}

TEST_CASE("a trainer rank that is killed is named") {
  for (const std::string rank : {"0", "1"}) {
    CAPTURE(rank);
    LongReplay replay;
    replay.until_under_way();
    const auto children = replay.running->children();
    ::kill(replay.child("trainer", "--rank", rank), SIGKILL);
    const Ended ended = replay.running->wait(30);
    INFO(ended.err);
    CHECK(ended.status == 3);
    CHECK_THAT(ended.err, Contains("trainer rank " + rank) && Contains("signal 9"));
    CHECK(count_errors(ended.err) == 1);
    require_all_gone(children);
  }
}

TEST_CASE("a peer that stands still, in an update or between two, is named when the stall deadline passes") {
  for (const auto& [side, option, index, name] :
       {std::array{"worker", "--index", "1", "worker 1"}, std::array{"trainer", "--rank", "1", "rank 1"},
        std::array{"trainer", "--rank", "0", "rank 0"}}) {
    CAPTURE(name);
    LongReplay replay({"--set", "update.stall=1s", "--set", "update.engine=1s"});
    replay.until_under_way();
    const pid_t child = replay.child(side, option, index);
    const auto children = replay.running->children();
    ::kill(child, SIGSTOP);
    const Ended ended = replay.running->wait(30);
    INFO(ended.err);
    CHECK(ended.status == 3);
    CHECK_THAT(ended.err, Contains(name));
    require_all_gone(children);
  }
}

TEST_CASE("no child outlives the command") {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    CAPTURE(signal);
    LongReplay replay;
    replay.until_under_way();
    const auto children = replay.running->children();
    ::kill(replay.running->pid(), signal);
    CHECK(replay.running->wait(30).status == 128 + signal);
    require_all_gone(children);
  }
}

TEST_CASE("trainer ranks and workers started by hand meet, and prove themselves") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string first = scratch.write("1.safetensors", file_of(small_model(1)));
  const std::string second = scratch.write("2.safetensors", file_of(small_model(2)));
  const int port = reserve_port();
  const std::string master = "transport.master=127.0.0.1:" + std::to_string(port);

  const auto trainer = [&](const std::string& rank) {
    return std::make_unique<Running>(
      std::vector<std::string>{"trainer", topology, "--set", master, "--rank", rank, "--checkpoints", first, second});
  };
  const auto worker = [&](const std::string& index, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"worker", topology, "--set", master, "--index", index};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Running>(arguments);
  };
  const auto other = trainer("1"); // the root may come last
  const auto plain = worker("0", {"--dump", scratch.path("dump.safetensors")});

  SECTION("with the right checkpoints") {
    const auto proven = worker("1", {"--verify", first, second});
    const auto root = trainer("0");
    const Ended told = root->wait(60);
    INFO(told.err);
    CHECK(told.status == 0);
    CHECK(count_lines(told.out) == 2);
    CHECK_THAT(told.out, Contains("version 1: seed") && Contains("version 2: delta"));
    CHECK(other->wait(60).status == 0);
    CHECK(plain->wait(60).status == 0);
    const Ended proof = proven->wait(60);
    INFO(proof.err);
    CHECK(proof.status == 0);
    CHECK(count_lines(proof.out) == 2);
    CHECK(tensors_of(scratch.path("dump.safetensors")).at("b").data == small_model(2)[0].data);
    CHECK(tensors_of(scratch.path("dump.safetensors")).at("a").data == small_model(2)[1].data.substr(0, 12));
  }
  SECTION("with others, the difference is found and named") {
    const auto misled = worker("1", {"--verify", first, first});
    const auto root = trainer("0");
    CHECK(root->wait(60).status == 0);
    const Ended proof = misled->wait(60);
    CHECK(proof.status == 1);
    CHECK_THAT(proof.err, Contains("worker 1") && Contains("version 2"));
  }
}
