// Whatever the bytes of a topology file, load() returns: a topology, or errors that each name a place.
#include "config_files.hpp"

#include "catch.hpp"
#include "random.hpp"

#include <sstream>

namespace deltawire::config {

namespace {

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream{path, std::ios::binary}.rdbuf();
  return text.str();
}

const std::vector<std::string> fragments = {
  "[",
  "]",
  "[[",
  "]]",
  "{",
  "}",
  "=",
  ".",
  ",",
  "\n",
  "\"",
  "'",
  "\"\"\"",
  "'''",
  "#",
  "\\",
  "0",
  "-1",
  "1e9",
  "9223372036854775807",
  "true",
  "nan",
  "[]",
  "{}",
  "\"\"",
  "1979-05-27",
  "\xff",
  "\xe2\x82",
  "\\u0000",
  "include = [\"t.toml\"]\n",
  "[actors]\n",
  "[[trainer.map]]\n",
  "mesh = [[[[",
  "\"unlimited\"",
  "\"64MiB\"",
  "\"-1s\"",
  "a.b.c = 1\n",
  "\r",
  std::string(1, '\0'),
};

std::string mutate(std::string text, std::mt19937_64& random) {
  const auto position = [&] { return text.empty() ? 0 : random() % text.size(); };
  for (auto edits = 1 + random() % 6; edits-- > 0;) {
    switch (random() % 5) {
    case 0:
      text.insert(position(), fragments[random() % fragments.size()]);
      break;
    case 1:
      text.erase(position(), 1 + random() % 20);
      break;
    case 2:
      if (!text.empty())
        text[position()] = static_cast<char>(random());
      break;
    case 3:
      text.insert(position(), text.substr(position(), random() % 60));
      break;
    default:
      text.resize(position());
      break;
    }
  }
  return text;
}

} // namespace

TEST_CASE("mutated topology files never crash and always name a place") {
  CAPTURE(test::seed());
  auto random = test::generator(3);
  // The beginning, where most sections are short, and a topology in full.
  const std::string full = read_file(DELTAWIRE_TOPOLOGIES "/trace.toml");
  const std::string small = "[trainer]\nmesh = [[\"ep\", 2], [\"fsdp\", 2]]\n[[trainer.placement]]\nparameter = \"*\"\n"
                            "shard = [\"fsdp:0\"]\n[worker]\nunused = [\"a\"]\n[[worker.parameter]]\nname = \"a\"\n"
                            "shape = [3, 4]\npadding = true\n[update]\nstall = \"1s\"\nquorum = \"all\"\n[actors]\n"
                            "differ = { count = 2, chunk = \"32MiB\" }\nflush_bucket = { cap = 7 }\n[transport]\n"
                            "master = \"127.0.0.1:0\"\n";
  REQUIRE(!full.empty());
  TopologyFiles files;
  int accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = mutate(i % 4 == 0 ? full : small, random);
    files.write("t.toml", text);
    std::vector<std::string> overrides;
    if (i % 3 == 0)
      overrides.push_back("actors.differ.count=" + fragments[random() % fragments.size()]);
    auto loaded = files.load("t.toml", overrides);
    if (loaded) {
      ++accepted;
      static_cast<void>(fingerprint(*loaded));
      continue;
    }
    CAPTURE(text);
    const bool known_code = loaded.error().code == Code::invalid_topology || loaded.error().code == Code::unsupported;
    CHECK(known_code);
    const std::string place = files.path("t.toml") + ":";
    const bool names_a_place =
      loaded.error().message.starts_with(place) || loaded.error().message.starts_with("--set ");
    CHECK(names_a_place);
  }
  CHECK(accepted > 0);
  CHECK(accepted < 3000);
}

} // namespace deltawire::config
