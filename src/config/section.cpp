#include "config/section.hpp"

#include "config/schema.hpp"
#include "config/topology.hpp"
#include "config/units.hpp"

#include <algorithm>
#include <numeric>

namespace deltawire::config {

namespace {

/// Levenshtein distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// `"a", "b" or "c"`
template <class Range>
std::string quoted_list(const Range& names) {
  std::string text;
  std::size_t left = names.size();
  for (const auto& name : names) {
    text += fmt::format("\"{}\"", name);
    --left;
    text += left > 1 ? ", " : left == 1 ? " or " : "";
  }
  return text;
}

} // namespace

Section::Section(const Value* table, std::string path, ErrorList& errors)
  : table_(table), path_(std::move(path)), errors_(errors) {}

const Value* Section::take(std::string_view key) {
  taken_.emplace_back(key);
  return table_ == nullptr ? nullptr : table_->find(key);
}

const Value* Section::take(std::string_view key, Value::Kind kind) {
  const Value* value = take(key);
  if (value == nullptr || value->kind == kind)
    return value;
  wrong_type(*value, key, kind_name(kind));
  return nullptr;
}

std::vector<const Value*> Section::tables(std::string_view key) {
  const Value* array = take(key);
  if (array == nullptr)
    return {};
  if (array->kind != Value::Kind::array) {
    errors_.add(
      Code::invalid_topology, array->place, full_key(key),
      fmt::format("must be an array of tables, written as [[{}]], not {}", full_key(key), kind_name(array->kind)));
    return {};
  }
  std::vector<const Value*> result;
  for (const Value& item : array->items) {
    if (item.kind == Value::Kind::table)
      result.push_back(&item);
    else
      wrong_type(item, key, "an array of tables");
  }
  return result;
}

void Section::read_text(std::string_view key, std::string& out, bool required) {
  if (required && !has(key)) {
    take(key);
    refuse(Code::invalid_topology, key, "is missing");
    return;
  }
  const Value* value = take(key, Value::Kind::text);
  if (value == nullptr)
    return;
  if (value->text.empty())
    refuse(Code::invalid_topology, key, "must not be empty");
  else
    out = value->text;
}

void Section::read_texts(std::string_view key, std::vector<std::string>& out, bool required) {
  const Value* array = take(key);
  if (array == nullptr) {
    if (required)
      refuse(Code::invalid_topology, key, "is missing");
    return;
  }
  if (array->kind != Value::Kind::array) {
    wrong_type(*array, key, "an array of strings");
    return;
  }
  std::vector<std::string> texts;
  for (const Value& item : array->items) {
    if (item.kind != Value::Kind::text)
      wrong_type(item, key, "an array of strings");
    else if (item.text.empty())
      errors_.add(Code::invalid_topology, item.place, full_key(key), "has an empty string");
    else
      texts.push_back(item.text);
  }
  out = std::move(texts);
}

void Section::read_flag(std::string_view key, bool& out) {
  if (const Value* value = take(key, Value::Kind::boolean))
    out = value->boolean;
}

void Section::read_count(std::string_view key, std::uint32_t& out, std::uint32_t most) {
  const Value* value = take(key, Value::Kind::integer);
  if (value == nullptr)
    return;
  if (value->integer < 1 || value->integer > most)
    refuse(Code::invalid_topology, key, fmt::format("{} is not between 1 and {}", value->integer, most));
  else
    out = static_cast<std::uint32_t>(value->integer);
}

void Section::read_size(std::string_view key, std::uint64_t& out) {
  read_bytes(key, out, false);
}

void Section::read_cap(std::string_view key, std::uint64_t& out) {
  read_bytes(key, out, true);
}

void Section::read_bytes(std::string_view key, std::uint64_t& out, bool unlimited_is_legal) {
  const Value* value = take(key);
  if (value == nullptr)
    return;
  std::uint64_t bytes = 0;
  if (value->kind == Value::Kind::integer) {
    if (value->integer < 0) {
      refuse(Code::invalid_topology, key, fmt::format("{} is negative", value->integer));
      return;
    }
    bytes = static_cast<std::uint64_t>(value->integer);
  } else if (value->kind == Value::Kind::text && value->text == "unlimited") {
    if (!unlimited_is_legal) {
      refuse(Code::invalid_topology, key, "cannot be unlimited: this is a size, not a cap");
      return;
    }
    bytes = unlimited;
  } else if (value->kind == Value::Kind::text) {
    auto parsed = parse_byte_size(value->text);
    if (!parsed) {
      refuse(Code::invalid_topology, key, parsed.error().message);
      return;
    }
    bytes = *parsed;
  } else {
    wrong_type(*value, key, "a byte size, e.g. \"64MiB\"");
    return;
  }
  if (bytes == 0)
    refuse(Code::invalid_topology, key, "0 bytes hold nothing; the least is 1");
  else
    out = bytes;
}

void Section::read_duration(std::string_view key, std::chrono::nanoseconds& out) {
  const Value* value = take(key);
  if (value == nullptr)
    return;
  if (value->kind != Value::Kind::text) {
    wrong_type(*value, key, "a duration with a unit, e.g. \"20s\"");
    return;
  }
  auto parsed = parse_duration(value->text);
  if (!parsed)
    refuse(Code::invalid_topology, key, parsed.error().message);
  else if (parsed->count() == 0)
    refuse(Code::invalid_topology, key, "must be longer than 0");
  else
    out = *parsed;
}

std::optional<std::size_t> Section::read_choice(std::string_view key) {
  const Value* value = take(key, Value::Kind::text);
  const Key* row = find_key(path_, key);
  if (value == nullptr || row == nullptr) // the latter is told by finish()
    return std::nullopt;
  for (std::size_t i = 0; i < row->choices.size(); ++i)
    if (row->choices[i] == value->text)
      return i;
  const auto later =
    std::find_if(row->later.begin(), row->later.end(), [&](const Later& one) { return one.value == value->text; });
  if (later != row->later.end())
    refuse(Code::unsupported, key,
           fmt::format("\"{}\" is not supported yet; use {} ({})", value->text, quoted_list(row->choices), later->why));
  else
    refuse(Code::invalid_topology, key, fmt::format("\"{}\" is not {}", value->text, quoted_list(row->choices)));
  return std::nullopt;
}

void Section::refuse(Code code, std::string_view key, std::string_view message) {
  errors_.add(code, place(key), full_key(key), message);
}

Place Section::place(std::string_view key) const {
  if (table_ == nullptr)
    return {};
  const Value* value = table_->find(key);
  return value == nullptr ? table_->place : value->place;
}

void Section::finish() {
  if (table_ == nullptr)
    return;
  const std::vector<std::string> known = known_in(path_);
  std::vector<std::string_view> supported;
  for (const std::string& key : known) {
    const Key* row = find_key(path_, key);
    if (row != nullptr && row->refusal != nullptr) {
      if (has(key))
        refuse(row->refusal->code, key, row->refusal->message);
      continue;
    }
    supported.push_back(key);
    if (std::find(taken_.begin(), taken_.end(), key) == taken_.end())
      refuse(Code::internal, key, "the schema has this key, and nothing reads it");
  }
  for (const std::string& key : taken_)
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse(Code::internal, key, "is read, and the schema does not have it");
  for (std::size_t i = 0; i < table_->keys.size(); ++i) {
    const std::string& key = table_->keys[i];
    if (std::find(known.begin(), known.end(), key) != known.end())
      continue;
    const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
      return edit_distance(key, a) < edit_distance(key, b);
    });
    const bool is_close =
      nearest != known.end() && edit_distance(key, *nearest) <= std::max<std::size_t>(2, nearest->size() / 3);
    errors_.add(Code::invalid_topology, table_->items[i].place, full_key(key),
                is_close ? fmt::format("unknown key; did you mean \"{}\"?", *nearest)
                         : fmt::format("unknown key; known here: {}", fmt::join(supported, ", ")));
  }
}

std::string Section::full_key(std::string_view key) const {
  return path_.empty() ? std::string{key} : fmt::format("{}.{}", path_, key);
}

void Section::wrong_type(const Value& value, std::string_view key, std::string_view wanted) {
  errors_.add(Code::invalid_topology, value.place, full_key(key),
              fmt::format("must be {}, not {}", wanted, kind_name(value.kind)));
}

} // namespace deltawire::config
