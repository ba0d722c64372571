// Reads one table of the topology file. Which keys it may have, what a choice may be and what is refused by name is in
// the schema; finish() refuses every other key, and says so where the code and the schema have come apart. Errors go to
// the list with file, line and full key; values stay at their defaults.
#pragma once

#include "config/document.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::config {

/// Borrows the table and the error list. Not copied: finish() belongs to one place.
class Section {
public:
  /// `table` may be null (the section is not in the file: everything keeps its default). `path` is the full key of the
  /// table, empty for the root.
  Section(const Value* table, std::string path, ErrorList& errors);
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  /// Whether the key is given. Does not make it known.
  [[nodiscard]] bool has(std::string_view key) const { return table_ != nullptr && table_->find(key) != nullptr; }

  /// The member, whatever its type; null where it is not given.
  const Value* take(std::string_view key);

  /// The member if it has this type; an error and null if it has another.
  const Value* take(std::string_view key, Value::Kind kind);

  /// A sub-table, null if it is not given.
  const Value* table(std::string_view key) { return take(key, Value::Kind::table); }

  /// The tables of [[path.key]]; empty if it is not given.
  std::vector<const Value*> tables(std::string_view key);

  /// A string that must not be empty. `required`: an error where it is not given.
  void read_text(std::string_view key, std::string& out, bool required = false);

  /// An array of strings, none empty.
  void read_texts(std::string_view key, std::vector<std::string>& out, bool required = false);

  void read_flag(std::string_view key, bool& out);

  /// An integer from 1 to `most`.
  void read_count(std::string_view key, std::uint32_t& out, std::uint32_t most);

  /// At least one byte: "64MiB", or a plain integer of bytes.
  void read_size(std::string_view key, std::uint64_t& out);

  /// The same, where "unlimited" is legal.
  void read_cap(std::string_view key, std::uint64_t& out);

  /// Longer than nothing: "20s".
  void read_duration(std::string_view key, std::chrono::nanoseconds& out);

  /// One of the schema's choices of the key; its index, or nothing where the key is not given or wrong. What the schema
  /// has for later is refused as not supported yet, with what this version does.
  std::optional<std::size_t> read_choice(std::string_view key);

  /// Adds an error about one key, at the place of its value, or of the table where it is not given.
  void refuse(Code code, std::string_view key, std::string_view message);

  /// Where the key was written; the table's place where it is not given.
  [[nodiscard]] Place place(std::string_view key) const;

  /// Refuses every key that the schema does not have, naming the nearest that it has, and those that it has as refused.
  /// A key of the schema that the code has not asked for, or one that only the code knows, is an error of its own
  /// (Code::internal): it would be ignored.
  void finish();

private:
  [[nodiscard]] std::string full_key(std::string_view key) const;
  void read_bytes(std::string_view key, std::uint64_t& out, bool unlimited_is_legal);
  void wrong_type(const Value& value, std::string_view key, std::string_view wanted);

  const Value* table_;
  std::string path_;
  ErrorList& errors_;
  std::vector<std::string> taken_; ///< every key that was asked for
};

} // namespace deltawire::config
