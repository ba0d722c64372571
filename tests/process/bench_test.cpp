// Every benchmark runs at a tiny size and tells its figures with the limits that belong to them; how fast anything is
// nobody judges here. What cannot be is refused.

#include "catch.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

using namespace deltawire::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

/// Runs `bench`, which must succeed, and returns the rows of its one benchmark.
json rows_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  arguments.insert(arguments.end(), {"--runs", "1", "--json"});
  const Ended ended = run_command(arguments);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const json report = json::parse(ended.out);
  CHECK_FALSE(report.at("instruction_set").get<std::string>().empty());
  CHECK(report.at("machine").contains("cores"));
  CHECK(report.at("machine").contains("page_size"));
  REQUIRE(report.at("benches").size() == 1);
  CHECK(report.at("benches")[0].at("bench") == arguments[1]);
  return report.at("benches")[0].at("rows");
}

/// Every row has a speed, and limits with theirs and the ratio between them.
void check_limits(const json& rows) {
  CHECK_FALSE(rows.empty());
  for (const json& row : rows) {
    INFO(row.dump(2));
    CHECK(row.at("bytes_per_second").get<double>() > 0);
    CHECK_FALSE(row.at("limits").empty());
    for (const json& limit : row.at("limits")) {
      CHECK(limit.at("bytes_per_second").get<double>() > 0);
      CHECK(limit.at("ratio").get<double>() > 0);
    }
  }
}

void check_update(const json& row, double elements, double percent) {
  INFO(row.dump(2));
  CHECK(row.at("update").at("total_ms").get<double>() > 0);
  CHECK(row.at("update").at("captured_ms").get<double>() > 0);
  CHECK(row.at("update").at("pause_ms").get<double>() > 0);
  CHECK(row.at("moved").at("wire_a_change_B").get<double>() > 0);
  const double changed = row.at("moved").at("changed_M").get<double>() * 1e6;
  CHECK(changed > elements * percent / 100 * 0.8);
  CHECK(changed < elements * percent / 100 * 1.2);
}

std::vector<std::string> names_of_limits(const json& row) {
  std::vector<std::string> names;
  for (const json& limit : row.at("limits"))
    names.push_back(limit.at("name"));
  return names;
}

/// Two MiB in 10 matrices: two fours, and two more.
std::vector<std::string> tiny_update(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"update", "--gib", "0.002", "--tensors", "10", "--density", "1,100"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// The elements of tiny_update(): 10 matrices of 256 columns and the multiple of 8 rows that comes nearest.
constexpr double tiny_elements = 10.0 * 256 * 416;

void check_tiny_update(const json& rows) {
  check_limits(rows);
  REQUIRE(rows.size() == 2);
  check_update(rows[0], tiny_elements, 1);
  check_update(rows[1], tiny_elements, 100);
  CHECK(names_of_limits(rows[0]) == std::vector<std::string>{"hardware", "own kernels"});
  CHECK(names_of_limits(rows[1]) == std::vector<std::string>{"hardware", "own kernels", "a plain copy"});
  // Changes are mostly to a neighbouring value: positions and values together take less than the values themselves
  // where all change, and more where few do.
  CHECK(rows[1].at("moved").at("wire_a_change_B").get<double>() < rows[0].at("moved").at("wire_a_change_B"));
}

} // namespace

TEST_CASE("bench update relates whole updates to both bounds, in one process and in several", "[bench]") {
  check_tiny_update(rows_of(tiny_update()));
  check_tiny_update(rows_of(tiny_update({"--clustered"})));
  check_tiny_update(rows_of(tiny_update({"--processes"})));
}

TEST_CASE("bench update takes the topology's settings", "[bench]") {
  const json rows = rows_of(tiny_update({"--set", "actors.flush_bucket.values=raw", "--ranks", "3", "--workers", "5"}));
  check_tiny_update(rows);
  CHECK(rows[0].at("work") == "3 ranks to 5 workers");
  CHECK(rows[0].at("moved").at("wire_a_change_B").get<double>() > 2); // raw values alone take as much
}

TEST_CASE("the other benchmarks relate what they measure to the machine", "[bench]") {
  check_limits(rows_of({"kernel", "--gib", "0.001"}));
  const json codecs = rows_of({"codec", "--gib", "0.001", "--density", "1,100"});
  check_limits(codecs);
  CHECK((codecs.size() == 6 * 15 ||
         codecs.size() == 6 * 13)); // ways, with and without zstd, at two densities: encode, check, decode
  check_limits(rows_of({"transport", "--gib", "0.001"}));
  const json scaling = rows_of({"scaling", "--gib", "0.001", "--tensors", "4"});
  check_limits(scaling);
  for (const json& row : scaling) {
    CHECK(row.at("growth").at("time_x").get<double>() > 0);
    CHECK(row.at("remark").get<std::string>().starts_with("capture "));
  }
}

TEST_CASE("bench pause relates the pause to exchange and read-back, with as many changes in four times the weights",
          "[bench]") {
  const json rows = rows_of({"pause", "--gib", "0.002", "--tensors", "10"});
  check_limits(rows);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].at("input") == "0.002 GiB, 1 % changed");
  CHECK(rows[1].at("input") == "0.008 GiB, 0.25 % changed");
  for (const json& row : rows) {
    const double changed = row.at("pause").at("changed_M").get<double>() * 1e6;
    CHECK(changed > tiny_elements / 100 * 0.9);
    CHECK(changed < tiny_elements / 100 * 1.1);
    CHECK(row.at("pause").at("exchange_and_read_back_ms").get<double>() > 0);
  }
}

TEST_CASE("bench bookkeeping measures updates in which nothing changed, of a quarter of the slots and of all",
          "[bench]") {
  const json rows = rows_of({"bookkeeping", "--tensors", "720", "--ranks", "3"});
  REQUIRE(rows.size() == 4);
  for (const std::size_t i : {0u, 1u, 2u, 3u}) {
    CHECK(rows[i].at("work") == (i < 2 ? "3 ranks, experts whole" : "3 ranks, experts cut over all"));
    CHECK(rows[i].at("input") == (i % 2 == 0 ? "180 slots, nothing changed" : "720 slots, nothing changed"));
    CHECK(rows[i].at("update").at("publish_to_committed_ms").get<double>() > 0);
    CHECK(rows[i].at("a rank").at("processor_us").get<double>() > 0);
  }
}

TEST_CASE("bench telemetry relates updates with everything on to the same ones with everything off", "[bench]") {
  const json rows = rows_of({"telemetry", "--gib", "0.002", "--tensors", "10"});
  check_limits(rows);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].at("work") == "4 ranks to 2 workers");
  CHECK(names_of_limits(rows[0]) == std::vector<std::string>{"telemetry off"});
  for (const char* group : {"update", "processor"}) {
    const json& figures = rows[0].at(group);
    CHECK(figures.at("off_ms").get<double>() > 0);
    CHECK(figures.at("on_ms").get<double>() > 0);
    CHECK(figures.at("more_at_least_%").get<double>() <= figures.at("more_%").get<double>());
    CHECK(figures.at("more_%").get<double>() <= figures.at("more_at_most_%").get<double>());
  }
  CHECK(rows[0].at("metering").at("a_message_ns").get<double>() > 0);
  if (rows[0].at("input") == "1 % changed") { // with an endpoint
    CHECK(rows[0].at("metering").at("messages_an_update").get<double>() > 50);
    CHECK(rows[0].at("pairs").at("scrapes_x").get<double>() >= 1);
  }
}

TEST_CASE("bench gpu measures the first device, or says why there is none", "[bench]") {
  const Ended version = run_command({"--version"});
  REQUIRE(version.status == 0);
  const std::size_t none = version.out.find("no GPU: ");
  if (none == std::string::npos) {
    check_limits(rows_of({"gpu", "--gib", "0.01", "--density", "1,100"}));
    return;
  }
  const std::string reason = version.out.substr(none + 8, version.out.find('\n', none) - none - 8);
  const Ended ended = run_command({"bench", "gpu", "--json"});
  CHECK(ended.status == 2);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Contains("bench gpu: no device: " + reason));
}

TEST_CASE("bench makes tables of Markdown", "[bench]") {
  const Ended ended =
    run_command({"bench", "update", "--gib", "0.001", "--tensors", "4", "--density", "1", "--runs", "1", "--markdown"});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  CHECK_THAT(ended.out, Contains("| update | input | GB/s | total, ms |"));
  CHECK_THAT(ended.out, Contains("× hardware | × own kernels |"));
  CHECK_THAT(ended.out, Contains("| 4 ranks to 2 workers | 1 % changed |"));
}

TEST_CASE("bench refuses what cannot be", "[bench]") {
  struct Refused {
    std::vector<std::string> arguments;
    std::string says;
  };
  for (const Refused& refused : {
         Refused{{"nothing"}, "no benchmark is called \"nothing\"; there are: kernel, "},
         Refused{{"update", "--gib", "0"}, "--gib 0: "},
         Refused{{"update", "--gib", "nan"}, "--gib nan: "},
         Refused{{"update", "--gib", "2000"}, "--gib 2000: "},
         Refused{{"update", "--gib", "1024", "--tensors", "1000"}, "choose a smaller --gib"},
         Refused{{"update", "--density", "1,101"}, "--density 101: "},
         Refused{{"update", "--density", "0"}, "--density 0: "},
         Refused{{"update", "--density", "much"}, "--density"},
         Refused{{"update", "--runs", "0"}, "--runs 0: "},
         Refused{{"update", "--ranks", "-1"}, "--ranks -1: "},
         Refused{{"update", "--tensors", "0"}, "--tensors 0: "},
         Refused{{"update", "--workers", "0"}, "--workers 0: "},
         Refused{{"update", "--gib", "0.001", "--set", "actors.nothing.cap=1"}, "actors.nothing"},
         Refused{{"update", "--processes", "--gib", "0.001", "--set", "actors.nothing.cap=1"}, "actors.nothing"},
         Refused{{"gpu", "--ranks", "2"}, "--ranks is not an option of bench gpu"},
         Refused{{"transport", "--density", "1"}, "--density is not an option of bench transport"},
         Refused{{"telemetry", "--processes"}, "--processes is not an option of bench telemetry"},
         Refused{{"telemetry", "--gib", "1024", "--tensors", "1000"}, "choose a smaller --gib"},
         Refused{{"codec", "--processes"}, "--processes is not an option of bench codec"},
         Refused{{"--set", "update.stall=1s"}, "--set is not an option of bench all"},
         Refused{{"update", "--json", "--markdown"}, "--markdown"},
       }) {
    std::vector<std::string> arguments = refused.arguments;
    arguments.insert(arguments.begin(), "bench");
    const Ended ended = run_command(arguments);
    INFO(ended.err);
    CHECK(ended.status == 2);
    CHECK_THAT(ended.err, Contains(refused.says));
    CHECK(ended.out.find("GB/s") == std::string::npos);
  }
}
