// Contract: src/telemetry/trace.hpp. The JSON is read back by a parser that shares nothing with the writer.
#include "telemetry/trace.hpp"

#include "catch.hpp"
#include "random.hpp"
#include "text_matchers.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace deltawire::telemetry {

using test::contains;

namespace {

TimePoint at(std::int64_t ns) {
  return TimePoint{std::chrono::nanoseconds{ns}};
}

} // namespace

TEST_CASE("spans come out as complete events, one thread a lane") {
  Recorder recorder{"trainer rank 0", 42};
  recorder.span("Differ 0", "diff", at(1'700'000'000'123'456'789), at(1'700'000'000'123'458'000),
                {{"bytes", 4096}, {"version", 2}});
  recorder.span("Sender", "send", at(2000), at(3500));
  recorder.span("Differ 0", "wait", at(5000), at(4000));
  CHECK(recorder.recorded() == 3);

  const std::string text = recorder.json();
  CHECK_THAT(text, contains("\"ts\":1700000000123456,\"dur\":2,")); // from 456.789 to 458.000
  const auto trace = nlohmann::json::parse(text);
  const auto& events = trace.at("traceEvents");
  REQUIRE(events.size() == 6);
  CHECK(events[0] ==
        nlohmann::json::parse(R"({"ph": "M", "pid": 42, "name": "process_name", "args": {"name": "trainer rank 0"}})"));
  CHECK(events[1] == nlohmann::json::parse(
                       R"({"ph": "M", "pid": 42, "tid": 1, "name": "thread_name", "args": {"name": "Differ 0"}})"));
  CHECK(events[2] == nlohmann::json::parse(
                       R"({"ph": "M", "pid": 42, "tid": 2, "name": "thread_name", "args": {"name": "Sender"}})"));
  // By time.
  CHECK(events[3] ==
        nlohmann::json::parse(R"({"ph": "X", "pid": 42, "tid": 2, "name": "send", "ts": 2, "dur": 1, "args": {}})"));
  CHECK(events[4].at("name") == "wait");
  CHECK(events[4].at("dur") == 0); // an end before its begin has no length
  CHECK(events[5].at("tid") == 1);
  CHECK(events[5].at("name") == "diff");
  CHECK(events[5].at("args") == nlohmann::json::parse(R"({"bytes": 4096, "version": 2})"));
  CHECK(trace.at("otherData").at("dropped_spans") == 0);
}

TEST_CASE("any bytes in a name give valid JSON") {
  Recorder recorder{"a \"quoted\"\n\\process", 1};
  recorder.span("lane\twith\x01 control", std::string_view{"n\0ul", 4}, at(1), at(2), {{"\xff\xfe", -1}});
  const auto trace = nlohmann::json::parse(recorder.json());
  CHECK(trace.at("traceEvents")[0].at("args").at("name") == "a \"quoted\"\n\\process");
  CHECK(trace.at("traceEvents")[2].at("name") == std::string("n\0ul", 4));
}

TEST_CASE("a trace names the sessions that its process was in, each once, exact past what doubles hold") {
  Recorder recorder{"worker 0", 1};
  CHECK(nlohmann::json::parse(recorder.json()).at("otherData").at("sessions").empty());
  recorder.in_session(0xfedcba9876543211);
  recorder.in_session(0x2a);
  recorder.in_session(0xfedcba9876543211);
  CHECK(nlohmann::json::parse(recorder.json()).at("otherData").at("sessions") ==
        nlohmann::json::parse(R"(["fedcba9876543211", "000000000000002a"])"));
  for (std::uint64_t session = 0; session < 2 * Recorder::most_sessions; ++session)
    recorder.in_session(session);
  CHECK(nlohmann::json::parse(recorder.json()).at("otherData").at("sessions").size() == Recorder::most_sessions);
}

TEST_CASE("a disabled recorder keeps and writes nothing") {
  Recorder recorder;
  recorder.span("lane", "name", at(1), at(2));
  CHECK_FALSE(recorder.enabled());
  CHECK(recorder.recorded() == 0);
  CHECK(recorder.dropped() == 0);
  CHECK(recorder.write("/nonexistent/trace.json"));
}

TEST_CASE("memory is bounded and what does not fit is counted") {
  Recorder recorder{"p", 1, 10};
  for (int i = 0; i < 25; ++i)
    recorder.span("lane", "name", at(i), at(i + 1));
  CHECK(recorder.recorded() == 10);
  CHECK(recorder.dropped() == 15);
  const auto trace = nlohmann::json::parse(recorder.json());
  CHECK(trace.at("traceEvents").size() == 2 + 10);
  CHECK(trace.at("otherData").at("dropped_spans") == 15);

  Recorder many_names{"p", 1};
  for (std::size_t i = 0; i < Recorder::most_names + 5; ++i)
    many_names.span("lane", std::to_string(i), at(1), at(2));
  CHECK(many_names.recorded() == Recorder::most_names);
  CHECK(many_names.dropped() == 5);
}

TEST_CASE("arguments past the fourth are not kept") {
  Recorder recorder{"p", 1};
  recorder.span("lane", "name", at(1), at(2), {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}, {"e", 5}});
  const auto trace = nlohmann::json::parse(recorder.json());
  CHECK(trace.at("traceEvents")[2].at("args") == nlohmann::json::parse(R"({"a": 1, "b": 2, "c": 3, "d": 4})"));
}

TEST_CASE("threads may record and read at once") {
  Recorder recorder{"p", 1};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&recorder, t] {
        const std::string lane = "lane " + std::to_string(t);
        for (int i = 0; i < 1000; ++i) {
          recorder.span(lane, "step", at(i), at(i + 1), {{"i", i}});
          if (i % 250 == 0)
            static_cast<void>(recorder.json());
        }
      });
  }
  CHECK(recorder.recorded() == 4000);
  CHECK(nlohmann::json::parse(recorder.json()).at("traceEvents").size() == 1 + 4 + 4000);
}

TEST_CASE("a trace is written to a file, and a file that cannot be written is named") {
  const auto path =
    (std::filesystem::temp_directory_path() / ("deltawire-trace-" + std::to_string(::getpid()) + ".json")).string();
  Recorder recorder{"p", 1};
  recorder.span("lane", "name", at(1), at(2));
  REQUIRE(recorder.write(path));
  std::ifstream stream{path};
  CHECK(nlohmann::json::parse(stream).at("traceEvents").size() == 3);
  std::filesystem::remove(path);

  auto refused = recorder.write("/nonexistent/trace.json");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::output_failed);
  CHECK(refused.error().message ==
        "telemetry.trace: /nonexistent/trace.json: the trace could not be written: No such file or directory");
  auto full = recorder.write("/dev/full");
  REQUIRE_FALSE(full);
  CHECK(full.error().code == Code::output_failed);
}

TEST_CASE("whether a trace can be written is known before there is one, and asking changes nothing") {
  CHECK(trace_path("runs/trace.json", "rank 0") == "runs/trace.json");
  CHECK(trace_path("runs/trace.json", "rank 12") == "runs/trace-rank12.json");
  CHECK(trace_path("trace", "worker 3") == "trace-worker3");

  const auto folder = std::filesystem::temp_directory_path() / ("deltawire-trace-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string trace = (folder / "t.json").string();
  CHECK(check_trace_path(trace, "rank 0"));
  CHECK(std::filesystem::is_empty(folder));
  std::ofstream(trace) << "kept";
  CHECK(check_trace_path(trace, "rank 0"));
  CHECK(std::filesystem::file_size(trace) == 4);
  std::filesystem::create_symlink(folder / "nowhere", folder / "t-rank1.json");
  CHECK(check_trace_path(trace, "rank 1"));
  CHECK(std::filesystem::is_symlink(folder / "t-rank1.json"));
  REQUIRE(::mkfifo((folder / "t-rank2.json").c_str(), 0600) == 0); // nobody reads it
  CHECK(check_trace_path(trace, "rank 2"));
  CHECK(check_trace_path("/dev/full", "rank 0")); // no test but writing tells
  std::filesystem::create_directory(folder / "t-worker1.json");
  const auto refused = check_trace_path(trace, "worker 1");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::output_failed);
  CHECK(refused.error().message == "telemetry.trace: " + (folder / "t-worker1.json").string() +
                                     ": the trace of worker 1 cannot be written there: Is a directory");
  CHECK_FALSE(check_trace_path("/nonexistent/trace.json", "rank 0"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a flow leaves one span and enters another, bound to each by time and thread") {
  constexpr std::uint64_t number = flow_number({1, 2, 3});
  static_assert(number != 0 && number == flow_number({1, 2, 3}) && number != flow_number({1, 3, 2}));
  Recorder sender{"rank 0", 1};
  sender.span("sender", "frame", at(1000), at(2000), {}, {.out = number});
  Recorder applier{"worker 0", 2};
  applier.span("applier", "stage", at(3000), at(5000), {}, {.in = number});
  const auto out = nlohmann::json::parse(sender.json()).at("traceEvents").back();
  const auto in = nlohmann::json::parse(applier.json()).at("traceEvents").back();
  CHECK(out.at("ph") == "s");
  CHECK(in.at("ph") == "f");
  CHECK(in.at("bp") == "e");
  CHECK(out.at("ts") == 1.0);
  CHECK(in.at("ts") == 3.0);
  CHECK(in.at("tid") == 1);
  for (const char* key : {"id", "cat", "name"})
    CHECK(out.at(key) == in.at(key));
}

TEST_CASE("counters come out as counter events and count as recorded") {
  Recorder recorder{"rank 0", 7, 2};
  recorder.count("held", at(1000), 4096);
  recorder.count("held", at(2000), 0);
  recorder.count("held", at(3000), 1); // no room
  const auto trace = nlohmann::json::parse(recorder.json());
  CHECK(trace.at("traceEvents")[1] ==
        nlohmann::json::parse(R"({"ph": "C", "pid": 7, "name": "held", "ts": 1.0, "args": {"bytes": 4096}})"));
  CHECK(trace.at("otherData").at("dropped_spans") == 1);
}

TEST_CASE("spans of a lane that overlap are on threads side by side, numbered, which say whose they are") {
  Recorder recorder{"rank 0", 1};
  for (int i = 0; i < 3; ++i)
    recorder.span("gather \"queue\"", "gather", at(1000 * i), at(10'000 + 1000 * i));
  recorder.span("sender", "frame", at(1), at(2));
  const auto names = [](const Recorder& of) {
    std::vector<std::pair<std::string, std::string>> list; // by number: the thread's, the lane's
    const auto trace = nlohmann::json::parse(of.json());
    for (const auto& event : trace.at("traceEvents"))
      if (event.at("name") == "thread_name") {
        CHECK(event.at("tid") == list.size() + 1);
        list.emplace_back(event.at("args").at("name"), event.at("args").value("lane", "-"));
      }
    return list;
  };
  using Names = std::vector<std::pair<std::string, std::string>>;
  CHECK(names(recorder) == Names{{"gather \"queue\"", "-"},
                                 {"gather \"queue\" (at the same time, 2)", "gather \"queue\""},
                                 {"gather \"queue\" (at the same time, 3)", "gather \"queue\""},
                                 {"sender", "-"}});
}

TEST_CASE("on every thread of a trace spans nest, in the order of the file, and times are exact as doubles") {
  CAPTURE(test::seed());
  auto random = test::generator(3);
  Recorder recorder{"rank 0", 1};
  for (int i = 0; i < 3000; ++i) {
    // Wall time; some spans begin or end with others, or have no length.
    const std::int64_t begin = 1'796'000'000'000'000'000 + static_cast<std::int64_t>(random() % 100'000) * 777;
    const std::int64_t length = static_cast<std::int64_t>(random() % 40) * 777;
    recorder.span(random() % 2 == 0 ? "a" : "b", "span", at(begin), at(begin + length));
    if (i % 5 == 0)
      recorder.span("a", "inner", at(begin + length / 2), at(begin + length));
  }
  const auto trace = nlohmann::json::parse(recorder.json());
  std::map<int, std::string> lanes;
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> threads;
  std::map<int, std::vector<std::int64_t>> stacks; // ends of what is open, as a parser keeps them
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name")
      lanes[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") {
      REQUIRE(event.at("ts").is_number_integer());
      REQUIRE(event.at("dur").is_number_integer());
      const auto begin = event.at("ts").get<std::int64_t>(), length = event.at("dur").get<std::int64_t>();
      REQUIRE(static_cast<std::int64_t>(event.at("ts").get<double>()) == begin);
      auto& open = stacks[event.at("tid")];
      while (!open.empty() && open.back() <= begin)
        open.pop_back();
      if (!open.empty() && begin + length > open.back())
        FAIL("thread " << event.at("tid") << ": " << begin << ".." << begin + length << " ends after " << open.back());
      if (!threads[event.at("tid")].empty() && begin < threads[event.at("tid")].back().first)
        FAIL("thread " << event.at("tid") << ": " << begin << " comes late");
      open.push_back(begin + length);
      threads[event.at("tid")].emplace_back(begin, begin + length);
    }
  }
  CHECK(threads.size() > 2); // they did overlap
  std::size_t spans = 0;
  for (const auto& [tid, list] : threads) {
    CHECK(lanes.count(tid) == 1);
    spans += list.size();
    for (const auto& a : list)
      for (const auto& b : list)
        if (a.first < b.first && b.first < a.second && a.second < b.second)
          FAIL("thread " << tid << ": " << a.first << ".." << a.second << " and " << b.first << ".." << b.second);
  }
  CHECK(spans == 3600);
}

TEST_CASE("now is wall time in nanoseconds") {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::nanoseconds{now_ns()}).count();
  CHECK(std::abs(seconds - ::time(nullptr)) <= 2);
}

} // namespace deltawire::telemetry
