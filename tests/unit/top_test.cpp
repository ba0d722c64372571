// Contracts: tools/top/metrics_text.hpp, view.hpp; tools/report/run.hpp, page.hpp.
#include "report/page.hpp"
#include "top/view.hpp"

#include "catch.hpp"
#include "text_matchers.hpp"

#include <algorithm>
#include <cmath>

namespace deltawire::top {

using test::contains;

TEST_CASE("Prometheus text is read: labels with escapes, numbers of every form, comments and timestamps") {
  const auto series =
    parse_metrics("# HELP a b\n# TYPE a counter\na 1\n\nb{x=\"1\",y=\"q\\\"\\\\\\n\"} 2.5e-06 1700000000\n"
                  "c{} +Inf\r\nd{le=\"+Inf\",} NaN");
  REQUIRE(series);
  REQUIRE(series->size() == 4);
  CHECK((*series)[0].name == "a");
  CHECK((*series)[1].label("y") == "q\"\\\n");
  CHECK((*series)[1].value == 2.5e-6);
  CHECK(std::isinf((*series)[2].value));
  CHECK(std::isnan((*series)[3].value));
  for (const char* bad : {"a", "a{", "a{x} 1", "a{x=\"1} 2", "a 1x", "{x=\"1\"} 1", "a{x=\"1\" 1"}) {
    CAPTURE(bad);
    const auto refused = parse_metrics(std::string("ok 1\n") + bad);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().message, contains("line 2 is no metric"));
  }
}

namespace {

Scrape scrape(double at_s, const std::string& text) {
  auto series = parse_metrics(text);
  REQUIRE(series);
  return {at_s, *series};
}

constexpr const char* first = R"(
deltawire_actor_running{rank="0",actor="sender"} 1
deltawire_actor_start_time_seconds{rank="0",actor="sender"} 100
deltawire_actor_busy_seconds_total{rank="0",actor="sender"} 5
deltawire_actor_blocked_seconds_total{rank="0",actor="sender"} 2
deltawire_messages_total{rank="0",actor="sender",message="Tick"} 30
deltawire_messages_total{rank="0",actor="sender",message="FrameArrived"} 70
deltawire_message_seconds_bucket{rank="0",actor="sender",message="Tick",le="0.001"} 60
deltawire_message_seconds_bucket{rank="0",actor="sender",message="Tick",le="0.002"} 98
deltawire_message_seconds_bucket{rank="0",actor="sender",message="Tick",le="0.004"} 100
deltawire_message_seconds_bucket{rank="0",actor="sender",message="Tick",le="+Inf"} 100
deltawire_held_bytes{worker="1",actor="applier"} 1024
deltawire_held_bytes_high_water{worker="1",actor="applier"} 4096
deltawire_cap_bytes{worker="1",actor="applier"} 8192
deltawire_version{rank="0"} 7
deltawire_update_density{rank="0"} 0.0125
deltawire_worker_version{rank="0",worker="1"} 6
deltawire_worker_lag{rank="0",worker="1"} 1
deltawire_worker_joins_total{rank="0",worker="1"} 3
deltawire_worker_state{rank="0",worker="1",state="serving"} 0
deltawire_worker_state{rank="0",worker="1",state="lagging"} 1
)";

} // namespace

TEST_CASE("one scrape shows shares and rates since an actor's start, two since the first") {
  const Scrape one = scrape(110, first);
  const std::string alone = view(one, nullptr);
  INFO(alone);
  CHECK_THAT(alone, contains("version 7, last update: density 1.25%"));
  CHECK_THAT(alone, contains(" 50%     30%     20% ")); // 5 s of 10, and 2 blocked
  CHECK_THAT(alone, contains(" 10.0 "));                // 100 messages in 10 s
  CHECK_THAT(alone, contains("1.00ms   4.00ms"));       // p50 and p99
  CHECK_THAT(alone, contains("1.00KiB/8.00KiB (4.00KiB)"));
  CHECK_THAT(alone, contains("     1        6     1 lagging           - -             3\n")); // restarts

  std::string later = first;
  later.replace(later.find("} 5\n"), 4, "} 5.5\n");
  later.replace(later.find("} 70\n"), 5, "} 90\n");
  const std::string live = view(scrape(112, later), &one);
  INFO(live);
  CHECK_THAT(live, contains(" 25%     75%      0% ")); // 0.5 s of 2
  CHECK_THAT(live, contains(" 10.0 "));                // 20 messages in 2 s
}

TEST_CASE("series of others and nonsense labels are no rows") {
  const std::string text =
    view(scrape(1, "go_goroutines 8\ndeltawire_held_bytes{rank=\"x\",actor=\"a\"} 1\n"), nullptr);
  CHECK_THAT(text, contains("no update yet"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
}

} // namespace deltawire::top

namespace deltawire::report {

using test::contains;

namespace {

constexpr const char* run_text = R"({"updates": [
 {"version": 1, "base": 0, "kind": "seed", "slots": 2, "elements": 1000, "changed": 1000, "wire_bytes": 2048,
  "gather_bytes": 10, "flushes": 1, "rounds": 1, "captured_s": 0.001, "committed_s": 0.004, "pause_s": 0.0005,
  "phase_s": {"diff": 0.001, "gather": 0.001, "assemble": 0.001, "send": 0.001, "stage": 0.001, "commit": 0.001},
  "workers": [{"index": 0, "version": 1, "state": "serving", "bytes": 2048, "digest_ok": true, "error": null}]},
 {"version": 2, "base": 1, "kind": "delta", "slots": 2, "elements": 1000, "changed": 20, "wire_bytes": 100,
  "gather_bytes": 10, "flushes": 1, "rounds": 1, "captured_s": 0.001, "committed_s": 0.002, "pause_s": 0.0005,
  "phase_s": {"diff": 0.001, "gather": 0.001, "assemble": 0.001, "send": 0.001, "stage": 0.001, "commit": 0.001},
  "workers": [{"index": 0, "version": 1, "state": "lost", "bytes": 0, "digest_ok": false, "error": "worker 0: <gone>"}],
  "warnings": ["a & b"]}],
 "high_water_bytes": {"differ": 0, "gather_queue": 0, "flush_bucket": 0, "applier": 0}, "verified": true})";

} // namespace

TEST_CASE("a page holds the run's figures, what is worth a look, and nothing from elsewhere") {
  const auto run = parse_run(run_text);
  REQUIRE(run);
  const auto spans = parse_trace(R"json({"traceEvents": [
    {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "rank 0"}},
    {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "rank 0: differ 0"}},
    {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name",
     "args": {"name": "rank 0: differ 0 (at the same time, 2)", "lane": "rank 0: differ 0"}},
    {"ph": "X", "pid": 1, "tid": 1, "name": "diff", "ts": 1000.5, "dur": 150.0, "args": {"version": 2}},
    {"ph": "X", "pid": 1, "tid": 1, "name": "blocked", "ts": 1100.5, "dur": 100.0, "args": {}},
    {"ph": "X", "pid": 1, "tid": 2, "name": "diff", "ts": 1200.5, "dur": 50.0, "args": {"version": 2}},
    {"ph": "C", "pid": 1, "name": "held", "ts": 1000.5, "args": {"bytes": 5}}]})json");
  REQUIRE(spans);
  REQUIRE(spans->spans.size() == 3);
  CHECK(spans->spans.front().lane == "rank 0: differ 0");
  CHECK(spans->spans.back().lane == "rank 0: differ 0");
  CHECK(spans->spans.front().begin_ns == 1'000'500);
  CHECK(spans->spans.front().end_ns == 1'150'500);
  const std::string html = page("run <1>", *run, spans->spans);
  CHECK_THAT(html, contains("run &lt;1&gt;"));
  CHECK_THAT(html, contains("2.00 %</b>"));
  CHECK_THAT(html, contains("a &amp; b"));
  CHECK_THAT(html, contains("version 2: worker 0: worker 0: &lt;gone&gt;"));
  CHECK_THAT(html, contains("version 2: holds 1, lost, digest not confirmed"));
  CHECK_THAT(html, contains("rank 0: differ 0"));
  CHECK_THAT(html, contains("80.0 % busy, 20.0 % blocked")); // busy comes first where both are
  for (const char* outside : {"<script", "http://", "https://", "url(", "@import"})
    CHECK(html.find(outside) == std::string::npos);

  const auto nothing = parse_run(R"({"updates": [], "verified": false})"); // a run that never got to an update
  REQUIRE(nothing);
  const std::string bare = page("none", *nothing, {});
  CHECK_THAT(bare, contains("nothing was done") && contains("</html>"));
  CHECK(bare.find("verified") == std::string::npos);
}

TEST_CASE("times are held against what memory alone would take, where the report has its speed") {
  const auto plain = parse_run(run_text);
  REQUIRE(plain);
  const std::string without = page("run", *plain, {});
  CHECK_THAT(without, contains("Where time went against the limit") && contains("No limit to hold this against"));
  CHECK(without.find("dark line") == std::string::npos);

  std::string text = run_text;
  text.insert(text.rfind('}'), R"(, "session": "00000000000000ff", "parameter_bytes": 4000, "snapshot_bytes": 2000,
    "machine": {"cores": 2, "compare_bytes_per_s": 1e9, "copy_bytes_per_s": 5e8, "array_bytes": 1048576})");
  const auto run = parse_run(text);
  REQUIRE(run);
  CHECK(run->session == "00000000000000ff");
  const std::string html = page("run", *run, {});
  // Of the delta: (4000 + 2000) / 2 bytes compared in 3 us; 2 % of 2000 bytes written on each side, 0.08 us each; 100
  // bytes sent in 0.2 us.
  CHECK_THAT(html, contains("The limit (the dark line), 3.36 us,") && contains("all 2 cores over arrays of 1.00 MiB"));
  CHECK_THAT(html, contains("1.00 ms (50 %), limit 3.08 us</text>")); // diff
  CHECK_THAT(html, contains("1.00 ms (50 %), limit 0.20 us</text>")); // send
  CHECK_THAT(html, contains("1.00 ms (50 %), limit 0.08 us</text>")); // commit
  CHECK_THAT(html, contains("took 595 times its limit"));             // 2 ms
  CHECK_THAT(html,
             contains("gather 1.00 ms, assemble 1.00 ms, stage 1.00 ms, commit 1000 us, send 1000 us, diff 997 us"));
  CHECK_THAT(html,
             contains("<td>2.00 ms</td><td>595</td>") && contains("<td>4.00 ms</td><td>-</td>")); // a delta, a seed
  CHECK(html.find("No limit") == std::string::npos);

  text.replace(text.find("5e8"), 3, "0.0");
  CHECK(parse_run(text).error().message == "machine.copy_bytes_per_s: must be a number above 0, not 0.0");
}

TEST_CASE("a report or trace that does not fit is refused by key") {
  const auto broken = [](const std::string& from, const std::string& to) {
    std::string text = run_text;
    text.replace(text.rfind(from), from.size(), to);
    const auto run = parse_run(text);
    return run ? std::string("accepted") : run.error().message;
  };
  CHECK(broken("\"diff\": 0.001", "\"diff\": \"1\"") ==
        "updates[1].phase_s.diff: must be a number from 0 on, not \"1\"");
  CHECK(broken("\"committed_s\": 0.002", "\"committed_s\": -5") ==
        "updates[1].committed_s: must be a number from 0 on, not -5");
  CHECK(broken("\"kind\": \"delta\"", "\"kind\": [1]") == "updates[1].kind: must be a string, not array");
  CHECK(broken("\"pause_s\": 0.0005", "\"pause_s\": \"" + std::string(50, 'x') + "\"") ==
        "updates[1].pause_s: must be a number from 0 on, not string");
  CHECK(broken("\"gather\": 0.001, ", "") == "updates[1].phase_s.gather: is missing");
  CHECK(broken("\"wire_bytes\": 100", "\"wire_bytes\": -1") ==
        "updates[1].wire_bytes: must be a number from 0 on, without a fraction, not -1");
  CHECK(broken("\"digest_ok\": false", "\"digest_ok\": 0") ==
        "updates[1].workers[0].digest_ok: must be true or false, not 0");
  CHECK(broken("\"verified\": true", "\"verify\": true") == "verified: is missing");
  CHECK(parse_run(R"({"updates": [], "verified": true})").error().message ==
        "updates: is empty, and verified is true: a run without an update has proven nothing");
  CHECK(parse_run("[]").error().message == "the document: must be an object, not array");
  CHECK(parse_run("{").error().message == "is no JSON");
  CHECK(parse_trace(R"({"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "args": {}}]})").error().message ==
        "traceEvents[0].dur: is missing");
}

} // namespace deltawire::report
