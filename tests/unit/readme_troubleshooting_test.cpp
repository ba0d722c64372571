// README's troubleshooting quotes what the product says: each quoted text of the first column is a string of the
// sources, "..." standing for what is put into it. Read as text, so that a message that changes takes its row along.
#include "catch.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path root = DELTAWIRE_SOURCE_ROOT;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The string literals of a C++ source, neighbours joined as the compiler joins them.
std::vector<std::string> literals_of(std::string_view source) {
  std::vector<std::string> literals;
  bool joins = false; // nothing but white space since the last literal
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source.substr(at).starts_with("//")) {
      at = std::min(source.find('\n', at), source.size());
      continue;
    }
    if (source[at] == '\'' && at + 2 < source.size() && (source[at + 2] == '\'' || source[at + 1] == '\\')) {
      at = source.find('\'', at + 2); // a character, perhaps '"'
      joins = false;
      continue;
    }
    if (source[at] != '"') {
      joins = joins && (source[at] == ' ' || source[at] == '\n');
      continue;
    }
    std::string text;
    for (++at; at < source.size() && source[at] != '"'; ++at) {
      if (source[at] == '\\')
        ++at;
      text += source[at];
    }
    if (joins)
      literals.back() += text;
    else
      literals.push_back(std::move(text));
    joins = true;
  }
  return literals;
}

std::vector<std::string> literals_of_the_product() {
  std::vector<std::string> literals;
  for (const char* room : {"src", "actors", "tools", "include"})
    for (const auto& entry : fs::recursive_directory_iterator(root / room))
      if (const std::string kind = entry.path().extension().string(); kind == ".cpp" || kind == ".hpp")
        for (std::string& literal : literals_of(text_of(entry.path())))
          literals.push_back(std::move(literal));
  return literals;
}

/// What lies between backticks.
std::vector<std::string> quotes_of(std::string_view text) {
  std::vector<std::string> quotes;
  for (std::size_t open = text.find('`'); open != std::string_view::npos; open = text.find('`', open)) {
    const std::size_t close = text.find('`', open + 1);
    REQUIRE(close != std::string_view::npos);
    quotes.emplace_back(text.substr(open + 1, close - open - 1));
    open = close + 1;
  }
  return quotes;
}

std::vector<std::string> parts_of(std::string_view quote) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t dots = quote.find("...");
    if (const std::string_view part = quote.substr(0, dots); !part.empty())
      parts.emplace_back(part);
    if (dots == std::string_view::npos)
      return parts;
    quote.remove_prefix(dots + 3);
  }
}

/// Whether the parts lie in the literal one after the other, and what lies between two of them is put in: "{}".
bool says(const std::string& literal, const std::vector<std::string>& parts) {
  std::size_t at = literal.find(parts.front());
  if (at == std::string::npos)
    return false;
  at += parts.front().size();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t next = literal.find(parts[i], at);
    if (next == std::string::npos || literal.substr(at, next - at).find('{') == std::string::npos)
      return false;
    at = next + parts[i].size();
  }
  return true;
}

/// The first cells of the rows of the table under a heading.
std::vector<std::string> symptoms(const std::string& readme) {
  const std::size_t begin = readme.find("\n## Troubleshooting\n");
  REQUIRE(begin != std::string::npos);
  std::istringstream lines(readme.substr(begin + 1, readme.find("\n## ", begin + 1) - begin));
  std::vector<std::string> cells;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("| ") && !line.starts_with("| symptom")) {
      CAPTURE(line);
      CHECK(std::count(line.begin(), line.end(), '|') == 4);
      cells.push_back(line.substr(2, line.find(" | ") - 2));
    }
  return cells;
}

} // namespace

TEST_CASE("what README quotes as said is said by the product") {
  const std::vector<std::string> literals = literals_of_the_product();
  CHECK(literals.size() > 2000);
  const std::vector<std::string> cells = symptoms(text_of(root / "README.md"));
  CHECK(cells.size() >= 10);
  std::size_t quoted = 0;
  for (const std::string& cell : cells) {
    const auto quotes = quotes_of(cell);
    CAPTURE(cell);
    CHECK(!quotes.empty());
    for (const std::string& quote : quotes) {
      if (quote == "captured()") // no message: a call that is slow
        continue;
      CAPTURE(quote);
      const auto parts = parts_of(quote);
      REQUIRE(!parts.empty());
      CHECK(std::any_of(literals.begin(), literals.end(), [&](const auto& literal) { return says(literal, parts); }));
      ++quoted;
    }
  }
  CHECK(quoted >= 15);
}

TEST_CASE("a quote that nobody says is told from one that is") {
  const auto literals =
    literals_of("f(\"worker {} made no \"\n  \"progress for {:.1f} s\"); // \"a comment\"\nc == '\"'; "
                "g(\"say \\\"it\\\"\", \"other\");");
  CHECK(literals == std::vector<std::string>{"worker {} made no progress for {:.1f} s", "say \"it\"", "other"});
  CHECK(says(literals[0], parts_of("worker ... made no progress for ... s")));
  CHECK(says(literals[0], parts_of("... made no progress")));
  CHECK_FALSE(says(literals[0], parts_of("worker ... made some progress")));
  CHECK_FALSE(says(literals[0], parts_of("made no progress ... worker")));
  CHECK_FALSE(says(literals[0], parts_of("made ... progress"))); // "no" is not put in
}
