// Metrics, top and report of the real command: a scrape during a replay agrees with the replay's own report.

#include "catch.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

using namespace deltawire::test;
using nlohmann::json;

namespace {

std::vector<std::string> replay_of_trace(int updates, const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"replay", source_path("tools/topologies/trace.toml"), "--quiet"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--checkpoints");
  for (int update = 0; update < updates; ++update)
    arguments.push_back(source_path("tests/data/trace/trainer/step-0" + std::to_string(update % 4) + ".safetensors"));
  return arguments;
}

/// GET /metrics by hand; empty where nobody answers.
std::string scrape(int port) {
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  std::string answer;
  if (::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    (void)::send(connection, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[65536];
    for (ssize_t count = 0; (count = ::read(connection, buffer, sizeof buffer)) > 0;)
      answer.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(connection);
  const auto head = answer.find("\r\n\r\n");
  return head == std::string::npos || answer.find(" 200 ") > 12 ? "" : answer.substr(head + 4);
}

/// By the series as written: name and labels.
std::map<std::string, double> series_of(const std::string& text) {
  std::map<std::string, double> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#')
      series[line.substr(0, line.rfind(' '))] = std::stod(line.substr(line.rfind(' ') + 1));
  return series;
}

/// The last scrape of a run in which at least two updates had ended.
std::map<std::string, double> last_scrape(int port) {
  std::map<std::string, double> last;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    auto now = series_of(scrape(port));
    if (now.empty() && !last.empty())
      break;
    if (const auto version = now.find("deltawire_version{rank=\"0\"}"); version != now.end() && version->second >= 2)
      last = std::move(now);
    std::this_thread::sleep_for(std::chrono::milliseconds(last.empty() ? 2 : 20));
  }
  return last;
}

/// A port below those that the system hands out, with a few more behind it.
int likely_free_port() {
  return 20000 + static_cast<int>(::getpid() * 37 % 12000);
}

} // namespace

TEST_CASE("a scrape during a replay agrees with its report, and one process is one endpoint") {
  const Scratch scratch;
  const int port = likely_free_port();
  Running running(replay_of_trace(
    24, {"--report", scratch.path("run.json"), "--set", "telemetry.prometheus=127.0.0.1:" + std::to_string(port)}));
  const auto series = last_scrape(port);
  const Ended ended = running.wait();
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.err, Catch::Matchers::Contains("metrics at http://127.0.0.1:" + std::to_string(port) + "/metrics"));
  CHECK(ended.err.find("metrics at") == ended.err.rfind("metrics at")); // said once
  REQUIRE_FALSE(series.empty());

  // A scrape may fall between two counts of an update: what it has is that update's or the one's before.
  const json updates = json::parse(read_file(scratch.path("run.json"))).at("updates");
  const auto version = static_cast<std::size_t>(series.at("deltawire_version{rank=\"0\"}"));
  const auto sum = [&](const char* key, std::size_t count) {
    double total = 0;
    for (std::size_t u = 0; u < count; ++u)
      total += updates.at(u).at(key).get<double>();
    return total;
  };
  const auto agrees = [&](const std::string& name, const char* key) {
    CAPTURE(name, version, series.at(name));
    bool found = false;
    for (const std::size_t count : {version - 1, version, version + 1})
      found |= count <= updates.size() && series.at(name) == sum(key, count);
    CHECK(found);
  };
  agrees("deltawire_wire_bytes_total{rank=\"0\"}", "wire_bytes");
  agrees("deltawire_gather_bytes_total{rank=\"0\"}", "gather_bytes");
  agrees("deltawire_changed_elements_total{rank=\"0\"}", "changed");
  for (const std::string worker : {"0", "1"}) {
    CHECK(series.at("deltawire_worker_lag{rank=\"0\",worker=\"" + worker + "\"}") == 0);
    CHECK(series.at("deltawire_worker_digest_ok{rank=\"0\",worker=\"" + worker + "\"}") == 1);
    CHECK(series.at("deltawire_served_version{worker=\"" + worker + "\"}") >= static_cast<double>(version) - 1);
    CHECK(series.at("deltawire_actor_running{worker=\"" + worker + "\",actor=\"applier\"}") == 1);
    CHECK(series.at("deltawire_held_bytes_high_water{worker=\"" + worker + "\",actor=\"applier\"}") > 0);
    CHECK(series.at("deltawire_connection_received_bytes_total{worker=\"" + worker + "\",channel=\"data\"}") > 0);
  }
  // Every actor of every rank, each message counted as often as it was timed.
  for (const std::string rank : {"0", "1", "2", "3"})
    for (const std::string actor : {"supervisor", "snapshotter", "differ 0", "gather queue"})
      CHECK(series.at("deltawire_actor_busy_seconds_total{rank=\"" + rank + "\",actor=\"" + actor + "\"}") > 0);
  const std::string sealed = "{rank=\"0\",actor=\"sender\",message=\"FlushSealed\"}";
  CHECK(std::abs(series.at("deltawire_messages_total" + sealed) -
                 series.at("deltawire_message_seconds_count" + sealed)) <= 1);
  CHECK(series.at("deltawire_held_bytes_high_water{rank=\"0\",actor=\"flush bucket\"}") <=
        series.at("deltawire_cap_bytes{rank=\"0\",actor=\"flush bucket\"}"));
}

TEST_CASE("of several processes each serves at a port of its own, and a port that is taken is named") {
  const int base = likely_free_port() + 100;
  const std::string address = "telemetry.prometheus=127.0.0.1:" + std::to_string(base);
  Running running(replay_of_trace(24, {"--processes", "--set", address}));
  std::map<std::string, double> worker;
  for (int look = 0; look < 2000 && worker.empty(); ++look) { // four ranks, then the workers
    auto now = series_of(scrape(base + 5));
    if (now.count("deltawire_served_version{worker=\"1\"}") > 0)
      worker = std::move(now);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const Ended ended = running.wait();
  INFO(ended.err);
  CHECK(ended.status == 0);
  CHECK_FALSE(worker.empty());
  CHECK(worker.count("deltawire_version{rank=\"0\"}") == 0);

  const TakenPort taken;
  const std::string named = "127.0.0.1:" + std::to_string(taken.port());
  const Ended refused = run_command(replay_of_trace(2, {"--set", "telemetry.prometheus=" + named}));
  CHECK(refused.status == 3);
  CHECK_THAT(refused.err, Catch::Matchers::Contains("telemetry.prometheus: " + named + ": address in use"));
}

TEST_CASE("top shows a frame of a running session, and says where nothing answers") {
  const int port = likely_free_port() + 200;
  const std::string address = "127.0.0.1:" + std::to_string(port);
  const Ended nobody = run_command({"top", address, "--once"});
  CHECK(nobody.status == 3);
  CHECK_THAT(nobody.err, Catch::Matchers::Contains(address) && Catch::Matchers::Contains("telemetry.prometheus"));
  CHECK(run_command({"top", "nonsense"}).status == 2);

  Running running(replay_of_trace(32, {"--set", "telemetry.prometheus=" + address}));
  Ended frame;
  for (int look = 0; look < 200; ++look) {
    frame = run_command({"top", address, "--once"});
    if (frame.status == 0 && frame.out.find("\nworker ") != std::string::npos &&
        frame.out.find("serving") != std::string::npos)
      break;
  }
  CHECK(running.wait().status == 0);
  INFO(frame.out << frame.err);
  CHECK(frame.status == 0);
  CHECK_THAT(frame.out, Catch::Matchers::Contains("flush bucket") && Catch::Matchers::Contains("applier") &&
                          Catch::Matchers::Contains("serving") && Catch::Matchers::Contains("on the wire"));
  CHECK(frame.out.find('\x1b') == std::string::npos); // no terminal
}

TEST_CASE("report makes a page of a run and its traces, and names the key that does not fit") {
  const Scratch scratch;
  const Ended ran = run_command(replay_of_trace(
    4, {"--report", scratch.path("run.json"), "--set", "telemetry.trace=" + scratch.path("trace.json")}));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const Ended made = run_command({"report", scratch.path("run.json"), "--trace", scratch.path("trace.json"), "--trace",
                                  scratch.path("trace-worker0.json"), "-o", scratch.path("run.html")});
  INFO(made.err);
  REQUIRE(made.status == 0);
  const std::string html = read_file(scratch.path("run.html"));
  CHECK_THAT(html, Catch::Matchers::Contains("rank 0: flush bucket") &&
                     Catch::Matchers::Contains("worker 0: applier") && Catch::Matchers::Contains("verified"));

  const Ended refused = run_command(
    {"report", scratch.write("bad.json", R"({"updates": [{}], "verified": true})"), "-o", scratch.path("bad.html")});
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Catch::Matchers::Contains("bad.json: updates[0].version: is missing"));
  CHECK(run_command({"report", scratch.path("run.json"), "-o", scratch.path("no/such/folder.html")}).status == 4);
}

TEST_CASE("arrows of a trace lead from sealed flushes over the wire into the workers' stages") {
  const Scratch scratch;
  const Ended ran =
    run_command(replay_of_trace(4, {"--processes", "--set", "telemetry.trace=" + scratch.path("trace.json")}));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  std::map<std::string, int> starts, ends;
  std::size_t counters = 0;
  for (const char* file : {"trace.json", "trace-worker0.json", "trace-worker1.json"}) {
    const json trace = json::parse(read_file(scratch.path(file)));
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == "s")
        ++starts[event.at("id")];
      if (event.at("ph") == "f")
        ++ends[event.at("id")];
      counters += event.at("ph") == "C" ? 1 : 0;
    }
  }
  CHECK(starts.size() >= 4 * 3); // a flush, and a frame to each of two workers, an update
  CHECK(starts == ends);
  CHECK(counters > 0);
}
