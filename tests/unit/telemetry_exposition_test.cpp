// Contract: src/telemetry/endpoint.hpp and catalogue.hpp. The expectation is written by hand from the text format
// 0.0.4.
#include "telemetry/endpoint.hpp"

#include "catch.hpp"
#include "telemetry/catalogue.hpp"
#include "text_matchers.hpp"

#include <fstream>
#include <set>
#include <sstream>

namespace deltawire::telemetry {

TEST_CASE("README's table of metrics is the catalogue, and names follow Prometheus's rules") {
  std::ifstream file(std::string(DELTAWIRE_SOURCE_ROOT) + "/README.md");
  std::ostringstream readme;
  readme << file.rdbuf();
  INFO("README.md must hold, as is:\n" << families_table());
  CHECK(readme.str().find(families_table()) != std::string::npos);

  std::set<std::string_view> names;
  for (const Family* family : all_families()) {
    CAPTURE(family->name);
    CHECK(names.insert(family->name).second);
    CHECK(family->name.starts_with("deltawire_"));
    CHECK(family->name.ends_with("_total") == (family->kind == Kind::counter));
    CHECK(family->name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string_view::npos);
    CHECK((family->scale == 1e-9) == (family->name.find("_seconds") != std::string_view::npos));
    CHECK_FALSE(family->help.empty());
  }
}

TEST_CASE("the exposition is Prometheus text") {
  if (!can_serve())
    return;
  static const Family bytes{"test_bytes", Kind::gauge, "actor", "Bytes in flight"};
  static const Family flushes{"test_flushes_total", Kind::counter, "kind", "Flushes"};
  static const Family seconds{"test_seconds", Kind::histogram, "", "Seconds", 1e-9};
  Registry rank(Labels{{"rank", "0"}}), worker(Labels{{"worker", "1"}});
  rank.gauge(bytes, {{"actor", "a \"quoted\" \\ \n one"}}).set(5'000'000'000);
  worker.gauge(bytes, {{"actor", "applier"}}).set(0);
  rank.counter(flushes, {{"kind", "small"}}).add(3);
  rank.histogram(seconds).record(1024);
  rank.histogram(seconds).record(5000);

  std::istringstream text(exposition(merge({rank.list(), worker.list()})));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (line.find("_bucket") == std::string::npos || line.find("le=\"1.024e-06\"") != std::string::npos ||
        line.find("+Inf") != std::string::npos)
      lines.push_back(line);
  CHECK(lines == std::vector<std::string>{
                   "# HELP test_bytes Bytes in flight",
                   "# TYPE test_bytes gauge",
                   R"(test_bytes{rank="0",actor="a \"quoted\" \\ \n one"} 5000000000)",
                   R"(test_bytes{worker="1",actor="applier"} 0)",
                   "# HELP test_flushes_total Flushes",
                   "# TYPE test_flushes_total counter",
                   R"(test_flushes_total{rank="0",kind="small"} 3)",
                   "# HELP test_seconds Seconds",
                   "# TYPE test_seconds histogram",
                   R"(test_seconds_count{rank="0"} 2)",
                   R"(test_seconds_sum{rank="0"} 6.024e-06)",
                   R"(test_seconds_bucket{rank="0",le="1.024e-06"} 1)",
                   R"(test_seconds_bucket{rank="0",le="+Inf"} 2)",
                 });
}

TEST_CASE("an endpoint is shared within a process, and a port that is taken is named") {
  if (!can_serve()) {
    const auto refused = Endpoint::open("127.0.0.1", 0, std::make_shared<Registry>(Labels{}));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::unsupported);
    return;
  }
  const auto registry = std::make_shared<Registry>(Labels{{"rank", "0"}});
  auto first = Endpoint::open("127.0.0.1", 0, registry);
  REQUIRE(first);
  CHECK((*first)->made());
  CHECK_FALSE((*first)->address().ends_with(":0"));
  auto second = Endpoint::open("127.0.0.1", 0, registry);
  REQUIRE(second);
  CHECK_FALSE((*second)->made());
  CHECK((*second)->address() == (*first)->address());

  // Another spelling is another endpoint, and finds the port taken.
  const std::string address = (*first)->address();
  const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const auto taken = Endpoint::open("127.0.0.1", port, registry);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == Code::address_in_use);
  CHECK_THAT(taken.error().message, test::contains("telemetry.prometheus: " + address + ": address in use"));
  const auto nowhere = Endpoint::open("192.0.2.1", 9464, registry); // TEST-NET-1: no machine has it
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code == Code::invalid_argument);
}

} // namespace deltawire::telemetry
