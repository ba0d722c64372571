// Real processes that die, stand still or are missing: the replicas that are left are served to the end, and exit
// status, message and report say what happened.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "running_replay.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace deltawire::test;
using Catch::Matchers::Contains;

namespace {

/// small_topology with two replicas of two workers.
std::string two_replicas() {
  std::string topology = small_topology;
  const std::string one = R"(mesh = [["tp", 2]])";
  return topology.replace(topology.find(one), one.size(), R"(mesh = [["dp", 2], ["tp", 2]])");
}

/// Every update was taken by worker `index`, and what it dumped last is the last checkpoint.
void check_served_to_the_end(const RunningReplay& replay, std::size_t index) {
  const auto report = replay.report();
  REQUIRE(report.at("updates").size() == static_cast<std::size_t>(replay.versions));
  for (const auto& update : report.at("updates")) {
    CHECK(update.at("workers").at(index).at("version") == update.at("version"));
    CHECK(update.at("workers").at(index).at("digest_ok") == true);
  }
  const auto model = small_model(replay.versions % 2 == 0 ? 2 : 1);
  const auto dump = tensors_of(replay.scratch.path("dumps/worker-" + std::to_string(index) + ".safetensors"));
  CHECK(dump.at("b").data == model[0].data);
  CHECK(dump.at("a").data == model[1].data.substr(index % 2 == 0 ? 0 : 12, 12));
}

/// Somebody else who listens on a port for a while, and hangs up on everybody at once.
class HangingUp {
public:
  explicit HangingUp(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(socket_, 16) != 0)
      throw std::runtime_error("cannot listen on the reserved port");
    thread_ = std::thread([this] {
      while (!stopped_) {
        if (const int peer = ::accept(socket_, nullptr, nullptr); peer >= 0) {
          ::close(peer);
          ++calls_;
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    });
  }
  ~HangingUp() { stop(); }
  HangingUp(const HangingUp&) = delete;
  HangingUp& operator=(const HangingUp&) = delete;

  [[nodiscard]] int calls() const { return calls_; }
  void stop() {
    stopped_ = true;
    if (thread_.joinable())
      thread_.join();
    if (const int open = std::exchange(socket_, -1); open >= 0)
      ::close(open);
  }

private:
  int socket_;
  std::atomic<bool> stopped_ = false;
  std::atomic<int> calls_ = 0;
  std::thread thread_;
};

} // namespace

TEST_CASE("a worker that is killed is named, and the other replica served to the end") {
  RunningReplay replay(two_replicas(), 300);
  replay.until_held(3, 1);
  ::kill(replay.child("worker", "--index", "1"), SIGKILL);
  const Ended ended = replay.running->wait(60);
  INFO(ended.err);
  CHECK(ended.status == 3);
  CHECK_THAT(ended.err, Contains("worker 1") && Contains("signal 9"));
  check_served_to_the_end(replay, 2);
  check_served_to_the_end(replay, 3);
  const auto report = replay.report();
  CHECK(report.at("verified") == false);
  const auto& last = report.at("updates").back().at("workers");
  CHECK(last.at(1).at("state") == "lost");
  CHECK_THAT(last.at(1).at("error").get<std::string>(), Contains("worker 1"));
  CHECK(last.at(0).at("version") == last.at(1).at("version")); // whole or not at all, a replica at a time
}

TEST_CASE("a worker that is stopped becomes a laggard within the stall deadline, nobody waits for its captures, and it "
          "catches up") {
  RunningReplay replay(two_replicas(), 600, {"--set", "update.stall=1s", "--set", "update.engine=1s"});
  replay.until_held(3, 2);
  const pid_t stopped = replay.child("worker", "--index", "2");
  ::kill(stopped, SIGSTOP);
  // The other replica goes on without it. (The parent would give it up after twice the deadline, 3 s at least.)
  const int held = replay.newest_of(0);
  replay.until_held(held + 5, 0);
  ::kill(stopped, SIGCONT);
  const Ended ended = replay.running->wait(60);
  INFO(ended.err);
  CHECK(ended.status == 3);
  CHECK_THAT(ended.err, Contains("worker 2") && Contains("update.stall"));
  check_served_to_the_end(replay, 0);
  check_served_to_the_end(replay, 1);

  const auto report = replay.report();
  int missed = 0;
  double longest = 0, longest_capture = 0;
  for (const auto& update : report.at("updates")) {
    missed += update.at("workers").at(2).at("version") != update.at("version") ? 1 : 0;
    longest = std::max(longest, update.at("committed_s").get<double>());
    longest_capture = std::max(longest_capture, update.at("captured_s").get<double>());
    // A replica is whole: its two workers are at the same version.
    CHECK(update.at("workers").at(2).at("version") == update.at("workers").at(3).at("version"));
  }
  CHECK(missed > 0);
  // At most one update waited for the deadline (none, where it stopped between two), not longer, and no capture did.
  CHECK(longest < 20); // (machines under load)
  CHECK((longest < 0.9 || longest_capture < longest / 2));
  const auto& last = report.at("updates").back().at("workers");
  CHECK(last.at(2).at("version") == replay.versions);
  CHECK(last.at(2).at("state") == "serving");
}

TEST_CASE("a worker that never comes is named by everybody when the connect deadline passes, whoever came first") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string file = scratch.write("1.safetensors", file_of(small_model(1)));
  for (const bool root_is_last : {false, true}) {
    CAPTURE(root_is_last);
    const int port = reserve_port();
    const auto start = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(),
                       {"--set", "transport.master=127.0.0.1:" + std::to_string(port), "--set", "update.connect=3s"});
      return std::make_unique<Running>(arguments);
    };
    std::unique_ptr<Running> root;
    const auto start_root = [&] { root = start({"trainer", topology, "--rank", "0", "--checkpoints", file}); };
    if (!root_is_last)
      start_root();
    const auto other = start({"trainer", topology, "--rank", "1", "--checkpoints", file});
    const auto worker = start({"worker", topology, "--index", "0"});
    if (root_is_last) { // their time is over before its own
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      start_root();
    }
    for (Running* running : {root.get(), other.get(), worker.get()}) {
      const Ended ended = running->wait(30);
      INFO(ended.err);
      CHECK(ended.status == 3);
      CHECK_THAT(ended.err, Contains("worker 1") && Contains("update.connect"));
    }
  }
}

TEST_CASE("ranks and workers call again where somebody hangs up before the first word") {
  const Scratch scratch;
  const std::string topology = scratch.write("small.toml", small_topology);
  const std::string file = scratch.write("1.safetensors", file_of(small_model(1)));
  const int port = reserve_port();
  const auto start = [&](std::vector<std::string> arguments, const std::string& connect) {
    arguments.insert(arguments.end(), {"--set", "transport.master=127.0.0.1:" + std::to_string(port), "--set",
                                       "update.connect=" + connect});
    return std::make_unique<Running>(arguments);
  };
  const auto all_but_the_root = [&](const std::string& connect) {
    std::vector<std::unique_ptr<Running>> peers;
    peers.push_back(start({"trainer", topology, "--rank", "1", "--checkpoints", file}, connect));
    for (const std::string index : {"0", "1"})
      peers.push_back(start({"worker", topology, "--index", index}, connect));
    return peers;
  };

  const auto stranger = std::make_unique<HangingUp>(port);
  for (const auto& peer : all_but_the_root("1s")) { // to the deadline, and no further
    const Ended ended = peer->wait(30);
    INFO(ended.err);
    CHECK(ended.status == 3);
    CHECK_THAT(ended.err, Contains("rank 0") && Contains("update.connect"));
  }

  auto peers = all_but_the_root("60s");
  for (const int enough = stranger->calls() + 30; stranger->calls() < enough;) // 6 connections an attempt
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  stranger->stop();
  peers.push_back(start({"trainer", topology, "--rank", "0", "--checkpoints", file}, "60s"));
  for (const auto& peer : peers) {
    const Ended ended = peer->wait();
    INFO(ended.err);
    CHECK(ended.status == 0);
  }
}

TEST_CASE("a disk that fills up under the dumps is an output error that names the file") {
  const Scratch scratch;
  FileTensor tensor{"a", "BF16", {512, 512}, std::string(2 * 512 * 512, 'x')};
  const std::string file = scratch.write("1.safetensors", file_of({tensor}));
  const std::string topology = scratch.write("one.toml", "[trainer]\nmesh = []\n[worker]\nmesh = []\n");
  // What a full disk does to a write, for files above 64 KiB; this process writes none meanwhile.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{65536, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  Ended ended;
  for (const bool processes : {false, true}) {
    std::vector<std::string> arguments{"replay",        topology, "--quiet", "--dump", scratch.path("dumps"),
                                       "--checkpoints", file};
    if (processes)
      arguments.insert(arguments.begin() + 2, "--processes");
    ended = run_command(arguments);
    CAPTURE(processes, ended.err);
    CHECK(ended.status == 4);
    CHECK_THAT(ended.err, Contains("--dump: ") && Contains("worker-0.safetensors"));
    CHECK_FALSE(std::filesystem::exists(scratch.path("dumps/worker-0.safetensors"))); // not half a file
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
}

TEST_CASE("a trainer rank that is stopped is named by all the others, started by hand, within the stall deadline") {
  const Scratch scratch;
  const std::string topology = scratch.write("two.toml", two_replicas());
  const std::string first = scratch.write("1.safetensors", file_of(small_model(1)));
  const std::string second = scratch.write("2.safetensors", file_of(small_model(2)));
  std::vector<std::string> checkpoints{"--checkpoints"};
  for (int i = 0; i < 20000; ++i)
    checkpoints.push_back(i % 2 == 0 ? first : second);
  struct Job {
    std::unique_ptr<Running> victim;
    std::vector<std::unique_ptr<Running>> others;

    [[nodiscard]] bool runs() const {
      return is_alive(victim->pid()) &&
             std::all_of(others.begin(), others.end(), [](const auto& other) { return is_alive(other->pid()); });
    }
  };
  const auto start_job = [&](const std::string& victim, const std::string& stall, const std::string& dumps) {
    const int port = reserve_port();
    Job job;
    const auto start = [&](std::vector<std::string> arguments) {
      arguments.insert(arguments.end(), {"--set", "transport.master=127.0.0.1:" + std::to_string(port), "--set",
                                         "update.stall=" + stall, "--set", "update.engine=" + stall});
      if (arguments.front() == "trainer")
        arguments.insert(arguments.end(), checkpoints.begin(), checkpoints.end());
      return std::make_unique<Running>(arguments);
    };
    for (const std::string rank : {"0", "1"})
      (rank == victim ? job.victim : job.others.emplace_back()) = start({"trainer", topology, "--rank", rank});
    for (const std::string index : {"0", "1", "2", "3"})
      job.others.push_back(start({"worker", topology, "--index", index, "--dump-each", dumps}));
    return job;
  };
  for (const std::string stopped : {"0", "1"}) {
    CAPTURE(stopped);
    // On a machine so busy that one of the processes is not run for the deadline, the session ends before anybody was
    // stopped, as it should: again, with more patience.
    Job job;
    bool under_way = false;
    for (const std::string stall : {"1s", "3s", "9s"}) {
      const std::string dumps = scratch.path("by-hand" + stopped + "-" + stall);
      job = start_job(stopped, stall, dumps);
      const std::string third = dumps + "/v3/worker-0.safetensors";
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (!under_way && job.runs() && std::chrono::steady_clock::now() < give_up) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        under_way = std::filesystem::exists(third);
      }
      job.victim->signal(SIGSTOP);
      under_way = under_way && job.runs();
      if (under_way)
        break;
    }
    REQUIRE(under_way);
    for (const auto& running : job.others) {
      const Ended ended = running->wait(60);
      INFO(ended.err);
      CHECK(ended.status == 3);
      CHECK_THAT(ended.err, Contains("rank " + stopped) && Contains("update.stall"));
    }
  }
}
