#include "keys_command.hpp"

#include "config/schema.hpp"
#include "replay/message.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

namespace deltawire::keys {

namespace {

using Json = nlohmann::ordered_json;

/// "actors.differ" has actors.differ.count, and "trainer.map" has *.map.slot; "actors.diff" has nothing.
bool is_under(const config::Key& key, std::string_view under) {
  const auto covers = [&](std::string_view name) {
    return name == under || (name.starts_with(under) && name.substr(under.size()).starts_with('.'));
  };
  const std::string name = config::full_name(key);
  if (under.empty() || covers(name))
    return true;
  return name.starts_with('*') && (covers("trainer" + name.substr(1)) || covers("worker" + name.substr(1)));
}

std::vector<const config::Key*> keys_under(std::string_view under) {
  std::vector<const config::Key*> found;
  for (const config::Key& key : config::all_keys())
    if (is_under(key, under))
      found.push_back(&key);
  return found;
}

/// Markdown's marks for code say nothing in a terminal.
std::string plain(std::string text) {
  std::erase(text, '`');
  return text;
}

std::string as_text(const std::vector<const config::Key*>& keys) {
  std::string text;
  std::size_t width = 0;
  for (const config::Key* key : keys)
    width = std::max(width, key->key.size());
  const std::string indent(width + 4, ' ');
  std::string_view table = "none yet";
  for (const config::Key* key : keys) {
    if (table != key->table)
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", key->table.empty() ? "top level" : key->table);
    table = key->table;
    if (key->refusal != nullptr) {
      text += fmt::format("  {:<{}}  refused: {}\n", key->key, width, plain(std::string(key->refusal->message)));
      continue;
    }
    const std::string fallback = key->required           ? "; required"
                                 : key->fallback.empty() ? ""
                                                         : fmt::format("; default {}", key->fallback);
    text += fmt::format("  {:<{}}  {}{}; for: {}\n{}{}\n", key->key, width, plain(config::value_text(*key)), fallback,
                        to_string(key->reader), indent, plain(std::string(key->meaning)));
    for (const config::Later& later : key->later)
      text += fmt::format("{}refused: \"{}\" ({})\n", indent, later.value, later.why);
  }
  return text + "\n* is trainer or worker. `--set TABLE.KEY=VALUE` overrides a key of a table that is no array.\n";
}

Json value_or_null(std::string_view text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

std::string as_json(const std::vector<const config::Key*>& keys) {
  Json list = Json::array();
  for (const config::Key* key : keys) {
    Json later = Json::array();
    for (const config::Later& one : key->later)
      later.push_back({{"value", one.value}, {"why", one.why}, {"since", one.since}});
    Json entry{{"key", config::full_name(*key)}};
    if (key->refusal != nullptr) {
      entry["refused"] = key->refusal->message;
      entry["since"] = value_or_null(key->refusal->since);
    } else {
      entry["value"] = plain(config::value_text(*key));
      entry["default"] = value_or_null(key->fallback);
      entry["required"] = key->required;
      entry["for"] = to_string(key->reader);
      entry["must_agree"] = !key->own;
      entry["what"] = plain(std::string(key->meaning));
      entry["refused_values"] = std::move(later);
    }
    list.push_back(std::move(entry));
  }
  return Json{{"keys", std::move(list)}}.dump(2) + "\n";
}

} // namespace

replay::ExitStatus keys_command(const KeysOptions& options) {
  const auto keys = keys_under(options.under);
  if (keys.empty())
    return replay::report_failure(
      {Code::invalid_argument, fmt::format("no key of the topology file starts with \"{}\"; without it, all are "
                                           "listed",
                                           options.under)});
  const std::string text = options.markdown ? config::keys_markdown() : options.json ? as_json(keys) : as_text(keys);
  if (const auto shown = replay::print_out(text, options.json ? "--json" : ""); !shown)
    return replay::report_failure(shown.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::keys
