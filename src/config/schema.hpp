// Every key of the topology file as data. The parser knows no other key (Section looks them up here), refuses by name
// what is listed as refused, and takes the values of a choice from here; `deltawire keys` prints it, and README's table
// is made of it. tests/unit/config_schema_test.cpp walks it: each key has an effect or is refused.
#pragma once

#include "result.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::config {

/// What a key is set to.
enum class ValueKind : std::uint8_t {
  size,     ///< at least 1 byte
  cap,      ///< the same, or "unlimited"
  duration, ///< longer than 0
  text,     ///< not empty
  texts,    ///< an array of such
  flag,     ///< true or false
  choice,   ///< one of Key::choices
  other,    ///< as Key::form says
};

/// Who acts on a key. Every process reads and checks the whole file.
enum class Reader : std::uint8_t { all, side, ranks, root, workers, root_and_workers };

/// "all", "its side", "ranks", "root", "workers", "root, workers".
[[nodiscard]] std::string_view to_string(Reader reader) noexcept;

/// A value that the parser knows and refuses as not supported yet.
struct Later {
  std::string_view value;
  std::string_view why;   ///< what this version does instead
  std::string_view since; ///< version that first refused it
};

/// A whole key that the parser knows and refuses.
struct Refusal {
  Code code = Code::unsupported; ///< or invalid_topology: it is a key of another table
  std::string_view message;      ///< all that is said after the key
  std::string_view since;        ///< version that first refused it; empty: it will not come
};

struct Key {
  std::string_view table; ///< "update", "actors.differ"; "*.map": of trainer and worker; empty: the top level
  std::string_view key;
  ValueKind kind = ValueKind::other;
  std::string_view form = {};     ///< of ValueKind::other: what it is set to
  std::string_view fallback = {}; ///< the default as a file would set it; empty: there is none
  Reader reader = Reader::all;
  std::string_view meaning = {}; ///< a line for people
  bool required = false;         ///< of its table
  bool own = false;              ///< processes of a session may differ in it; all others must agree
  std::span<const std::string_view> choices = {};
  std::span<const Later> later = {};
  const Refusal* refusal = nullptr;
};

/// All of them, table by table, in the order of the documentation.
[[nodiscard]] std::span<const Key> all_keys() noexcept;

/// Whether a row's table ("*.map") is the table of this path ("worker.map").
[[nodiscard]] bool is_table(std::string_view row, std::string_view path) noexcept;

/// The row of a key; null where no table of that path has it.
[[nodiscard]] const Key* find_key(std::string_view path, std::string_view key) noexcept;

/// What a table of this path may hold, in order: its keys, then the tables in it.
[[nodiscard]] std::vector<std::string> known_in(std::string_view path);

/// "update.stall", "*.map.slot", "include".
[[nodiscard]] std::string full_name(const Key& key);

/// "duration", "`\"wait\"` or `\"fold\"`": what a key is set to, in Markdown.
[[nodiscard]] std::string value_text(const Key& key);

/// README's tables, in Markdown: every key that has an effect, then what is refused by name.
[[nodiscard]] std::string keys_markdown();

} // namespace deltawire::config
