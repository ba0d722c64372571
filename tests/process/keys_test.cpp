// `deltawire keys` lists the parser's schema, whole or a table of it, for people, programs and README.md; and `plan`
// refuses what it lists as refused, saying why.

#include "catch.hpp"
#include "checkpoint_files.hpp"
#include "command.hpp"

#include <nlohmann/json.hpp>

#include <set>
#include <sstream>

using namespace deltawire::test;
using Catch::Matchers::Contains;
using Json = nlohmann::json;

namespace {

Json keys_of(std::vector<std::string> under) {
  under.insert(under.begin(), "keys");
  under.emplace_back("--json");
  const Ended ended = run_command(under);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  return Json::parse(ended.out).at("keys");
}

void require_refused(const Ended& ended, const std::vector<std::string>& parts) {
  INFO(ended.err);
  CHECK(ended.status == 2);
  CHECK(ended.out.empty());
  for (const std::string& part : parts)
    CHECK_THAT(ended.err, Contains(part));
}

} // namespace

TEST_CASE("keys are listed in words, as JSON and as README has them") {
  const Json keys = keys_of({});
  CHECK(keys.size() > 50);
  const Ended text = run_command({"keys"});
  REQUIRE(text.status == 0);
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 120);
    CHECK((line.empty() || line.back() != ' '));
  }
  std::set<std::string> names;
  for (const Json& key : keys) {
    const std::string name = key.at("key");
    CAPTURE(name);
    CHECK(names.insert(name).second);
    CHECK_THAT(text.out, Contains("  " + name.substr(name.find_last_of('.') + 1) + " "));
    if (key.contains("refused"))
      CHECK_THAT(text.out, Contains("refused: "));
    else
      CHECK_FALSE(key.at("what").get<std::string>().empty());
  }
  const Ended markdown = run_command({"keys", "--markdown"});
  REQUIRE(markdown.status == 0);
  CHECK_THAT(read_file(source_path("README.md")), Contains(markdown.out));
}

TEST_CASE("a table's keys are listed alone, a side's like both sides'") {
  CHECK(keys_of({"actors.differ"}).size() == 5);
  CHECK(keys_of({"update.stall"}).size() == 1);
  CHECK(keys_of({"trainer.map"}) == keys_of({"*.map"}));
  CHECK(keys_of({"worker"}).size() > keys_of({"worker.placement"}).size());
  for (const char* nothing : {"actors.diff", "updat", "nonsense"})
    require_refused(run_command({"keys", nothing}), {nothing});
  require_refused(run_command({"keys", "--json", "--markdown"}), {"--markdown"});
}

TEST_CASE("keys that cannot be shown are an output failure") {
  Running running({"keys"}, "/dev/full");
  CHECK(running.wait().status == 4);
}

TEST_CASE("plan refuses every key and value that is listed as refused, and says why") {
  const Scratch scratch;
  const std::string empty = scratch.write("empty.toml", "");
  int values = 0, whole = 0;
  for (const Json& key : keys_of({})) {
    const std::string name = key.at("key");
    CAPTURE(name);
    if (key.contains("refused")) {
      const auto dot = name.find_last_of('.');
      const std::string last = name.substr(dot + 1);
      std::string table = name.substr(0, dot);
      if (table.starts_with('*'))
        table = "worker" + table.substr(1);
      const bool many = table.find('.') != std::string::npos && !table.starts_with("actors");
      const std::string topology =
        scratch.write("refused.toml", many ? "[[" + table + "]]\nparameter = \"*\"\nshard = []\n" + last + " = [0]\n"
                                           : "[" + table + "]\n" + last + " = [0]\n");
      require_refused(run_command({"plan", topology}),
                      {topology + (many ? ":4: " : ":2: "), table + "." + last, key.at("refused")});
      ++whole;
      continue;
    }
    for (const Json& refused : key.at("refused_values")) {
      const std::string value = refused.at("value");
      CAPTURE(value);
      require_refused(run_command({"plan", empty, "--set", name + "=" + value}),
                      {name + ": \"" + value + "\" is not supported yet; use ", refused.at("why")});
      ++values;
    }
  }
  CHECK(values >= 5);
  CHECK(whole == 3);
}
