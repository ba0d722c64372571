// A topology file as plain values that know where they were written: TOML read, includes followed and merged, --set
// applied. Nothing here knows which keys exist. The one place that sees the TOML library.
#pragma once

#include "config/error_list.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::config {

/// One TOML value.
struct Value {
  enum class Kind { text, integer, real, boolean, array, table, other };

  Kind kind = Kind::table;
  std::string text;
  std::int64_t integer = 0;
  double real = 0;
  bool boolean = false;
  std::vector<Value> items;      ///< of an array, or of a table: the values
  std::vector<std::string> keys; ///< of a table: keys[i] names items[i]
  Place place;

  /// The member of a table; null where there is none (or this is no table).
  [[nodiscard]] const Value* find(std::string_view key) const noexcept;
  [[nodiscard]] Value* find(std::string_view key) noexcept;
};

/// "a string", "an array", ...: for messages.
[[nodiscard]] std::string_view kind_name(Value::Kind kind) noexcept;

/// Reads `path` and what it includes, relative to the including file, each file once. The including file's entries of
/// an array of tables come before those of its includes; tables merge; any other key set in two files is an error that
/// names both places. Returns the root table without `include`; what could not be read is missing and in `errors`.
[[nodiscard]] Value read_document(const std::string& path, ErrorList& errors);

/// Sets one key from "key.path=value". The value is TOML where it parses as such, otherwise a string. Replaces what is
/// there; creates the tables on the way. Fails only on text that has no key.
[[nodiscard]] Result<void> apply_override(Value& root, const std::string& override_text, std::uint32_t order,
                                          ErrorList& errors);

} // namespace deltawire::config
