// What README shows of embedding deltawire is code that runs.
#include "catch.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(DELTAWIRE_SOURCE_ROOT "/") + path);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// What lies between the two marks of a source file.
std::string region(const std::string& path, const std::string& name) {
  const std::string text = text_of(path);
  const std::string mark = "// README: " + name + "\n";
  const std::size_t begin = text.find(mark);
  REQUIRE(begin != std::string::npos);
  const std::size_t end = text.find("// README: end\n", begin);
  REQUIRE(end != std::string::npos);
  return text.substr(begin + mark.size(), end - begin - mark.size());
}

} // namespace

TEST_CASE("README shows the embedding code of each side as it is built, in at most 30 lines") {
  const std::string readme = text_of("README.md");
  for (const auto& [path, name] : {std::pair{"tools/trainer/embed_trainer.cpp", "trainer rank"},
                                   std::pair{"tools/trainer/embed_worker.cpp", "rollout worker"}}) {
    CAPTURE(path);
    const std::string code = region(path, name);
    CHECK(std::count(code.begin(), code.end(), '\n') <= 30);
    INFO("README must have this code block:\n" << code);
    CHECK(readme.find("```cpp\n#include <deltawire/deltawire.hpp>\n\n" + code + "```\n") != std::string::npos);
  }
}
