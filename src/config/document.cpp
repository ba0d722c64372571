#include "config/document.hpp"

// Header-only, whatever the distribution's build of the library is: its shared object is compiled with exceptions, and
// failures here are values. The nesting limit, with the limit on dots below, bounds every recursion over a document.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 32
// toml++ 3.3.0 assumes that a table header starts with a key and checks only afterwards: "[=]" is an abort with
// assertions and undefined behaviour without them. Without the assumption its own check reports the error. Can go when
// no supported distribution has a version that assumes it.
#include <toml++/impl/preprocessor.h>
#undef TOML_ASSERT_ASSUME
#define TOML_ASSERT_ASSUME(...) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

namespace deltawire::config {

namespace {

constexpr std::size_t max_file_bytes = 4u << 20;
constexpr std::size_t max_dots_a_line = 32;

/// What the TOML library must not see, and the line that has it; line 0 where there is nothing.
struct Unfit {
  std::uint32_t line = 0;
  std::string_view what;
};

/// Looks outside strings and comments for
/// - more dots than any key needs: the library limits the nesting of values but not of dotted keys, and destroys nested
///   tables by recursion;
/// - what is not ASCII, which is no TOML there. toml++ 3.3.0 classifies it by tables that are undefined behaviour for
///   some of it ("a =" and U+FEFE). Can go when no supported distribution has a version that does.
Unfit find_unfit(std::string_view text) {
  std::uint32_t line = 1;
  std::size_t dots = 0;
  std::size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; // a byte order mark
  const auto skip_string = [&](std::string_view quote, bool escapes) {
    const bool multiline = quote.size() == 3;
    for (at += quote.size(); at < text.size(); ++at) {
      if (text.substr(at).starts_with(quote)) {
        at += quote.size();
        return;
      }
      if (text[at] == '\n') {
        if (!multiline)
          return; // not valid TOML: the parser stops there
        ++line;
        dots = 0;
      } else if (escapes && text[at] == '\\' && at + 1 < text.size() && text[at + 1] != '\n') {
        ++at;
      }
    }
  };
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("\"\"\"")) {
      skip_string("\"\"\"", true);
    } else if (rest.starts_with("'''")) {
      skip_string("'''", false);
    } else if (rest.starts_with('"')) {
      skip_string("\"", true);
    } else if (rest.starts_with('\'')) {
      skip_string("'", false);
    } else if (rest.starts_with('#')) {
      at = std::min(text.find('\n', at), text.size());
    } else {
      if (rest.front() == '\n') {
        ++line;
        dots = 0;
      } else if (rest.front() == '.' && ++dots > max_dots_a_line) {
        return {line, "a key with more dots than any key has"};
      } else if (static_cast<unsigned char>(rest.front()) > 0x7F) {
        return {line, "not valid TOML: letters and signs that are not ASCII may only stand in strings and comments"};
      }
      ++at;
    }
  }
  return {};
}

Value convert(const toml::node& node, Place place) {
  Value value;
  value.place = std::move(place);
  const auto placed = [&](const toml::source_region& source) {
    Place inner = value.place;
    if (inner.line != 0) // an override has no lines
      inner.line = source.begin.line;
    return inner;
  };
  if (const auto* table = node.as_table()) {
    value.kind = Value::Kind::table;
    for (auto&& [key, member] : *table) {
      value.keys.emplace_back(key.str());
      value.items.push_back(convert(member, placed(key.source())));
    }
  } else if (const auto* array = node.as_array()) {
    value.kind = Value::Kind::array;
    for (const toml::node& item : *array)
      value.items.push_back(convert(item, placed(item.source())));
  } else if (const auto* text = node.as_string()) {
    value.kind = Value::Kind::text;
    value.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.kind = Value::Kind::integer;
    value.integer = integer->get();
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = Value::Kind::real;
    value.real = real->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.kind = Value::Kind::boolean;
    value.boolean = boolean->get();
  } else {
    value.kind = Value::Kind::other;
  }
  return value;
}

Result<std::string> read_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return fail(Code::invalid_topology, "is a directory");
  errno = 0;
  std::ifstream stream{path, std::ios::binary};
  if (!stream)
    return fail(Code::invalid_topology, "cannot be read: {}", std::strerror(errno == 0 ? EIO : errno));
  std::string text; // grows with what is there, so that a small file takes little memory
  std::array<char, 4096> part;
  while (text.size() <= max_file_bytes && (stream.read(part.data(), part.size()) || stream.gcount() > 0))
    text.append(part.data(), static_cast<std::size_t>(stream.gcount()));
  if (stream.bad())
    return fail(Code::invalid_topology, "cannot be read: {}", std::strerror(errno == 0 ? EIO : errno));
  if (text.size() > max_file_bytes)
    return fail(Code::invalid_topology, "is larger than {} bytes, which no topology file is", max_file_bytes);
  return text;
}

bool is_array_of_tables(const Value& value) {
  return value.kind == Value::Kind::array && std::all_of(value.items.begin(), value.items.end(), [](const Value& item) {
           return item.kind == Value::Kind::table;
         });
}

/// Adds the members of `from` to those of `into`. `path` is the key of both, for messages.
void merge(Value& into, Value&& from, const std::string& path, ErrorList& errors) {
  for (std::size_t i = 0; i < from.keys.size(); ++i) {
    const std::string key = path.empty() ? from.keys[i] : path + "." + from.keys[i];
    Value& theirs = from.items[i];
    Value* ours = into.find(from.keys[i]);
    if (ours == nullptr) {
      into.keys.push_back(std::move(from.keys[i]));
      into.items.push_back(std::move(theirs));
    } else if (ours->kind == Value::Kind::table && theirs.kind == Value::Kind::table) {
      merge(*ours, std::move(theirs), key, errors);
    } else if (is_array_of_tables(*ours) && is_array_of_tables(theirs) &&
               ours->items.size() + theirs.items.size() > 0) {
      for (Value& item : theirs.items)
        ours->items.push_back(std::move(item));
    } else {
      errors.add(Code::invalid_topology, theirs.place, key,
                 fmt::format("already set at {}; a key may be set in one file only", ours->place.text()));
    }
  }
}

/// Reads a file and, depth first, what it includes.
class Reader {
public:
  explicit Reader(ErrorList& errors) : errors_(errors) {}

  /// `from` is the place that names the file; the main file has none (line 0).
  Value read(const std::string& path, const Place& from) {
    const bool is_main = from.line == 0;
    const auto refuse = [&](std::string_view message) {
      if (is_main)
        errors_.add(Code::invalid_topology, Place{0, 0, path}, "", message);
      else
        errors_.add(Code::invalid_topology, from, "include", fmt::format("\"{}\" {}", path, message));
      return Value{};
    };

    std::error_code error;
    std::filesystem::path identity = std::filesystem::canonical(path, error);
    if (error)
      return refuse(fmt::format("cannot be read: {}", error.message()));
    if (std::find(open_.begin(), open_.end(), identity) != open_.end())
      return refuse("includes itself, directly or through another file");
    if (std::find(seen_.begin(), seen_.end(), identity) != seen_.end())
      return Value{}; // reached by two ways: counts once
    if (seen_.size() == max_files)
      return refuse(fmt::format("is one file too many: at most {} may be included", max_files - 1));
    auto text = read_text(path);
    if (!text)
      return refuse(text.error().message);

    const Place whole{static_cast<std::uint32_t>(seen_.size()), 1, path};
    seen_.push_back(identity);
    open_.push_back(std::move(identity));
    Value root = parse(*text, whole);
    follow_includes(root, path);
    open_.pop_back();
    return root;
  }

private:
  static constexpr std::size_t max_files = 64;

  Value parse(const std::string& text, const Place& whole) {
    if (const Unfit unfit = find_unfit(text); unfit.line != 0) {
      errors_.add(Code::invalid_topology, Place{whole.source, unfit.line, whole.file}, "", unfit.what);
      return Value{};
    }
    toml::parse_result result = toml::parse(text);
    if (!result) {
      errors_.add(Code::invalid_topology, Place{whole.source, result.error().source().begin.line, whole.file}, "",
                  fmt::format("not valid TOML: {}", result.error().description()));
      return Value{};
    }
    return convert(result.table(), whole);
  }

  void follow_includes(Value& root, const std::string& path) {
    const auto found = std::find(root.keys.begin(), root.keys.end(), "include");
    if (found == root.keys.end())
      return;
    const auto index = found - root.keys.begin();
    const Value list = std::move(root.items[static_cast<std::size_t>(index)]);
    root.keys.erase(found);
    root.items.erase(root.items.begin() + index);
    const auto is_text = [](const Value& item) { return item.kind == Value::Kind::text && !item.text.empty(); };
    if (list.kind != Value::Kind::array || !std::all_of(list.items.begin(), list.items.end(), is_text)) {
      errors_.add(Code::invalid_topology, list.place, "include",
                  "must be an array of file names, e.g. [\"maps/qwen3-moe.toml\"]");
      return;
    }
    for (const Value& item : list.items) {
      const auto included = std::filesystem::path{path}.parent_path() / item.text;
      merge(root, read(included.lexically_normal().string(), item.place), "", errors_);
    }
  }

  ErrorList& errors_;
  std::vector<std::filesystem::path> seen_; ///< every file read
  std::vector<std::filesystem::path> open_; ///< the files whose includes are being read: a repeat is a cycle
};

/// The value of an override: TOML where the text is exactly one TOML value, otherwise the text itself.
Value override_value(const std::string& text, const Place& place) {
  const std::string document = "value = " + text;
  if (find_unfit(document).line == 0) {
    const toml::parse_result result = toml::parse(document);
    if (result && result.table().size() == 1)
      if (const toml::node* node = result.table().get("value"))
        return convert(*node, place);
  }
  Value value;
  value.kind = Value::Kind::text;
  value.text = text;
  value.place = place;
  return value;
}

} // namespace

const Value* Value::find(std::string_view key) const noexcept {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key)
      return &items[i];
  return nullptr;
}

Value* Value::find(std::string_view key) noexcept {
  return const_cast<Value*>(static_cast<const Value*>(this)->find(key));
}

std::string_view kind_name(Value::Kind kind) noexcept {
  switch (kind) {
  case Value::Kind::text:
    return "a string";
  case Value::Kind::integer:
    return "an integer";
  case Value::Kind::real:
    return "a number with a fraction";
  case Value::Kind::boolean:
    return "true or false";
  case Value::Kind::array:
    return "an array";
  case Value::Kind::table:
    return "a table";
  case Value::Kind::other:
    return "a date or time";
  }
  return "a value";
}

Value read_document(const std::string& path, ErrorList& errors) {
  return Reader{errors}.read(path, Place{});
}

Result<void> apply_override(Value& root, const std::string& override_text, std::uint32_t order, ErrorList& errors) {
  const auto equals = override_text.find('=');
  std::vector<std::string> parts;
  if (equals != std::string::npos) {
    std::size_t start = 0;
    for (std::size_t at = 0; at <= equals; ++at) {
      if (at != equals && override_text[at] != '.')
        continue;
      parts.push_back(override_text.substr(start, at - start));
      start = at + 1;
    }
  }
  if (parts.empty() || parts.size() > max_dots_a_line ||
      std::any_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); }))
    return fail(Code::invalid_argument, "--set {}: must be KEY=VALUE, e.g. actors.flush_bucket.cap=64MiB",
                override_text);

  const Place place{order, 0, "--set " + override_text};
  const std::string key = override_text.substr(0, equals);
  if (parts.front() == "include") {
    errors.add(Code::invalid_topology, place, key, "only a file can include files");
    return {};
  }
  Value* at = &root;
  std::string path;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (at->kind != Value::Kind::table) {
      errors.add(
        Code::invalid_topology, place, key,
        fmt::format("{} is {}, and only tables have keys to set; set {} as a whole", path, kind_name(at->kind), path));
      return {};
    }
    Value* next = at->find(parts[i]);
    if (next == nullptr) {
      at->keys.push_back(parts[i]);
      at->items.emplace_back();
      next = &at->items.back();
      next->place = place;
    }
    path += (path.empty() ? "" : ".") + parts[i];
    at = next;
  }
  *at = override_value(override_text.substr(equals + 1), place);
  return {};
}

} // namespace deltawire::config
