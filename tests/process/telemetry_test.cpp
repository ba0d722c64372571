// Metrics, top and report of the real command: a scrape during a replay agrees with the replay's own report, and every
// metric of README's table moves where it should.

#include "catch.hpp"
#include "command.hpp"
#include "scrape.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

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

/// The last scrape of a run in which at least two updates had ended and nobody had left: the series of who leaves are
/// gone, and until then they only become more.
std::map<std::string, double> last_scrape(int port) {
  std::map<std::string, double> last;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    auto now = series_of(scrape(port));
    if (now.empty() && !last.empty())
      break;
    if (const auto version = now.find("deltawire_version{rank=\"0\"}");
        version != now.end() && version->second >= 2 && now.size() >= last.size())
      last = std::move(now);
    std::this_thread::sleep_for(std::chrono::milliseconds(last.empty() ? 2 : 20));
  }
  return last;
}

} // namespace

TEST_CASE("a scrape during a replay agrees with its report, and one process is one endpoint") {
  const Scratch scratch;
  const int port = likely_free_port();
  Running running(replay_of_trace(
    100, {"--report", scratch.path("run.json"), "--set", "telemetry.prometheus=127.0.0.1:" + std::to_string(port)}));
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

namespace {

/// The names in the first column of README's table of metrics.
std::set<std::string> names_in_readme() {
  std::istringstream readme(read_file(source_path("README.md")));
  std::set<std::string> names;
  for (std::string line; std::getline(readme, line);)
    if (line.starts_with("| `deltawire_"))
      names.insert(line.substr(3, line.find('`', 3) - 3));
  return names;
}

/// Without labels, and a histogram's without what its series add.
std::string name_of(const std::string& series) {
  std::string name = series.substr(0, series.find('{'));
  for (const std::string end : {"_bucket", "_count", "_sum"})
    if (name.ends_with("_seconds" + end))
      name.resize(name.size() - end.size());
  return name;
}

} // namespace

TEST_CASE("every metric of README's table moves in a replay that is short of credit, and no other is served") {
  const int port = likely_free_port(3);
  Running running(replay_of_trace(32, {"--set", "telemetry.prometheus=127.0.0.1:" + std::to_string(port), "--set",
                                       "actors.flush_bucket.cap=4KiB", "--set", "actors.gather_queue.max_round=4KiB",
                                       "--set", "actors.differ.inflight=8KiB", "--set", "actors.differ.chunk=8KiB"}));
  const auto series = last_scrape(port);
  const Ended ended = running.wait();
  INFO(ended.err);
  REQUIRE(ended.status == 0);

  // Of what does not happen here other tests tell: unit (telemetry_*), sessions (restarts).
  const std::set<std::string> nothing_went_wrong{"deltawire_actor_errors_total", "deltawire_reconnects_total",
                                                 "deltawire_worker_joins_total"};
  const std::set<std::string> may_be_zero{"deltawire_worker_lag", "deltawire_mailbox_length", "deltawire_held_bytes"};
  const std::set<std::string> known = names_in_readme();
  CHECK(known.size() > 35);
  std::map<std::string, double> most;
  for (const auto& [written, value] : series) {
    CAPTURE(written);
    if (written.starts_with("exposer_"))
      continue; // of the library that serves them
    CHECK(known.contains(name_of(written)));
    const auto [at, added] = most.try_emplace(name_of(written), value);
    at->second = std::max(at->second, value);
  }
  for (const std::string& name : known) {
    CAPTURE(name);
    REQUIRE(most.contains(name)); // from 0 on: a rate would miss the first one
    if (nothing_went_wrong.contains(name))
      CHECK(most.at(name) == 0);
    else
      CHECK((most.at(name) > 0 || may_be_zero.contains(name)));
  }
  // Who waits for credit was blocked; who takes none never is.
  for (const std::string actor : {"snapshotter", "gather queue", "flush bucket"})
    CHECK(series.contains("deltawire_actor_blocked_seconds_total{rank=\"0\",actor=\"" + actor + "\"}"));
  for (const std::string actor : {"differ 0", "sender", "supervisor"})
    CHECK_FALSE(series.contains("deltawire_actor_blocked_seconds_total{rank=\"0\",actor=\"" + actor + "\"}"));
}

TEST_CASE("of several processes each serves at a port of its own, and a port that is taken is named") {
  const int base = likely_free_port(1);
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
  for (const auto& [index, process] : {std::pair{0, "trainer rank 0"}, {3, "trainer rank 3"}, {5, "worker 1"}}) {
    const Ended late = run_command(replay_of_trace(
      2, {"--processes", "--set", "telemetry.prometheus=127.0.0.1:" + std::to_string(taken.port() - index)}));
    INFO(late.err);
    CHECK(late.status == 3);
    CHECK_THAT(late.err, Catch::Matchers::StartsWith("deltawire: " + std::string(process) + ": telemetry.prometheus: " +
                                                     named + ": address in use: another process listens there"));
    CHECK(late.out.empty()); // nobody had started: else there would be a line of who serves metrics, before this one
  }
  const Ended past = run_command(replay_of_trace(2, {"--processes", "--set", "telemetry.prometheus=127.0.0.1:65532"}));
  CHECK(past.status == 2);
  CHECK_THAT(past.err, Catch::Matchers::StartsWith("deltawire: worker 0: telemetry.prometheus: 127.0.0.1:65532: ") &&
                         Catch::Matchers::Contains("port 65536, past 65535"));
  const std::string master = "127.0.0.1:" + std::to_string(base + 2);
  const Ended own =
    run_command(replay_of_trace(2, {"--processes", "--set", address, "--set", "transport.master=" + master}));
  CHECK(own.status == 3);
  CHECK_THAT(own.err, Catch::Matchers::Contains("trainer rank 2: telemetry.prometheus: " + master +
                                                ": the root listens there (transport.master)"));
  const Ended refused = run_command(replay_of_trace(2, {"--set", "telemetry.prometheus=" + named}));
  CHECK(refused.status == 3);
  CHECK_THAT(refused.err, Catch::Matchers::Contains("telemetry.prometheus: " + named + ": address in use"));
}

TEST_CASE("top shows a frame of a running session, and says where nothing answers") {
  const int port = likely_free_port(2);
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

  CHECK_THAT(html, Catch::Matchers::Contains("times its limit"));

  // Another run of the same updates.
  const Ended again = run_command(replay_of_trace(4, {"--processes", "--report", scratch.path("other.json"), "--set",
                                                      "telemetry.trace=" + scratch.path("other-trace.json")}));
  REQUIRE(again.status == 0);
  const std::string session = json::parse(read_file(scratch.path("run.json"))).at("session");
  CHECK(session.size() == 16);
  CHECK(session != json::parse(read_file(scratch.path("other.json"))).at("session"));
  for (const char* file : {"other-trace.json", "other-trace-rank3.json", "other-trace-worker1.json"}) {
    const Ended mixed = run_command({"report", scratch.path("run.json"), "--trace", scratch.path("trace.json"),
                                     "--trace", scratch.path(file), "-o", scratch.path("mixed.html")});
    INFO(mixed.err);
    CHECK(mixed.status == 2);
    CHECK_THAT(mixed.err, Catch::Matchers::Contains("--trace " + scratch.path(file) + ": is of another run") &&
                            Catch::Matchers::Contains(session));
    CHECK_FALSE(std::filesystem::exists(scratch.path("mixed.html")));
    CHECK(run_command(
            {"report", scratch.path("other.json"), "--trace", scratch.path(file), "-o", scratch.path("right.html")})
            .err.empty());
  }
  const Ended untold =
    run_command({"report", scratch.path("run.json"), "--trace", scratch.write("old.json", R"({"traceEvents": []})"),
                 "-o", scratch.path("untold.html")});
  CHECK(untold.status == 0);
  CHECK_THAT(untold.err,
             Catch::Matchers::Contains("warning: ") && Catch::Matchers::Contains("old.json names no session"));
  CHECK_THAT(read_file(scratch.path("untold.html")), Catch::Matchers::Contains("old.json names no session"));

  const Ended refused = run_command(
    {"report", scratch.write("bad.json", R"({"updates": [{}], "verified": true})"), "-o", scratch.path("bad.html")});
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Catch::Matchers::Contains("bad.json: updates[0].version: is missing"));
  CHECK(run_command({"report", scratch.path("run.json"), "-o", scratch.path("no/such/folder.html")}).status == 4);
  const Ended nothing = run_command(
    {"report", scratch.write("empty.json", R"({"updates": [], "verified": true})"), "-o", scratch.path("bad.html")});
  CHECK(nothing.status == 2);
  CHECK_THAT(nothing.err, Catch::Matchers::Contains("empty.json: updates: is empty"));
  CHECK_FALSE(std::filesystem::exists(scratch.path("bad.html")));
}

TEST_CASE("a trace that cannot be written is found before the run, of whichever process, and nothing is left behind") {
  const Scratch scratch;
  const std::string missing = scratch.path("no/such/trace.json");
  for (const std::string mode : {"--quiet", "--processes"}) {
    CAPTURE(mode);
    const Ended refused = run_command(replay_of_trace(2, {mode, "--set", "telemetry.trace=" + missing}));
    INFO(refused.err);
    CHECK(refused.status == 4);
    CHECK_THAT(refused.err, Catch::Matchers::Contains("telemetry.trace: " + scratch.path("no/such/trace")) &&
                              Catch::Matchers::Contains("No such file or directory"));
    CHECK(refused.out.empty()); // no update was made
  }
  std::filesystem::create_directory(scratch.path("trace-worker1.json"));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{replay_of_trace(2, {}),
                                             replay_of_trace(2, {"--processes"}),
                                             {"worker", source_path("tools/topologies/trace.toml"), "--index", "1"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--set", "telemetry.trace=" + scratch.path("trace.json"), "--set",
                                       "transport.master=127.0.0.1:1"});
    const Ended one = run_command(arguments);
    INFO(one.err);
    CHECK(one.status == 4);
    CHECK_THAT(one.err, Catch::Matchers::Contains("telemetry.trace: " + scratch.path("trace-worker1.json") +
                                                  ": the trace of worker 1 cannot be written there: Is a directory"));
    CHECK(one.out.empty());
  }
  CHECK_FALSE(std::filesystem::exists(scratch.path("trace-worker0.json"))); // a test leaves no file
}

TEST_CASE("every arrow of a trace that leaves a span enters one, in whichever process") {
  const Scratch scratch;
  const Ended ran =
    run_command(replay_of_trace(4, {"--processes", "--set", "telemetry.trace=" + scratch.path("trace.json")}));
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  std::map<std::string, int> starts, ends;
  std::size_t counters = 0;
  for (const char* file : {"trace.json", "trace-rank1.json", "trace-rank2.json", "trace-rank3.json",
                           "trace-worker0.json", "trace-worker1.json"}) {
    const json trace = json::parse(read_file(scratch.path(file)));
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == "s")
        ++starts[event.at("id")];
      if (event.at("ph") == "f")
        ++ends[event.at("id")];
      counters += event.at("ph") == "C" ? 1 : 0;
    }
  }
  // An update: four chunks at least (a rank has one), three shares, four times into the flush, a flush, and a frame to
  // each of two workers.
  CHECK(starts.size() >= 4 * (4 + 3 + 4 + 1 + 2));
  CHECK(starts == ends);
  CHECK(counters > 0);
}
