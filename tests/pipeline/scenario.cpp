#include "scenario.hpp"

#include "random.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace deltawire::test {
namespace {

using Numbers = std::vector<std::uint64_t>;

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \n");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \n") - first + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (;;) {
    const auto end = text.find(separator, begin);
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    if (end == std::string::npos)
      return parts;
    begin = end + 1;
  }
}

/// "0-5, 7, 12-18" (both ends included) and "0-18:3" (every third).
Numbers read_numbers(const std::string& text) {
  Numbers numbers;
  if (trimmed(text).empty())
    return numbers;
  for (const std::string& part : split(text, ',')) {
    const auto colon = part.find(':');
    const std::uint64_t step = colon == std::string::npos ? 1 : std::stoull(part.substr(colon + 1));
    const std::string range = part.substr(0, colon);
    const auto dash = range.find('-');
    const std::uint64_t first = std::stoull(range.substr(0, dash));
    const std::uint64_t last = dash == std::string::npos ? first : std::stoull(range.substr(dash + 1));
    for (std::uint64_t n = first; n <= last; n += step)
      numbers.push_back(n);
  }
  return numbers;
}

std::uint64_t mask_of(DType dtype) {
  const std::size_t bits = 8 * size_of(dtype);
  return bits == 64 ? ~0ull : (1ull << bits) - 1;
}

class Reader {
public:
  explicit Reader(const std::string& path) : path_(path), root_(toml::parse_file(path)) {}

  Scenario read() {
    scenario_.title = text(root_, "title");
    scenario_.topology = text(root_, "topology");
    for (const toml::table* table : tables(root_, "maps"))
      read_map_file(*table);
    for (const std::string& part : texts(root_, "refused"))
      scenario_.refused.push_back(part);
    if (const toml::array* ranks = root_["rank_settings"].as_array())
      for (const toml::node& rank : *ranks) {
        scenario_.rank_settings.emplace_back();
        for (const toml::node& setting : *rank.as_array())
          scenario_.rank_settings.back().push_back(setting.value<std::string>().value());
      }
    for (const toml::table* table : tables(root_, "tensor"))
      read_tensor(*table);
    for (const toml::table* table : tables(root_, "trainer"))
      read_held(*table, "ranks", scenario_.ranks);
    for (const toml::table* table : tables(root_, "worker"))
      read_held(*table, "workers", scenario_.workers);
    for (const toml::table* table : tables(root_, "update"))
      read_update(*table);
    return std::move(scenario_);
  }

private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw std::runtime_error(fmt::format("{}: {}", path_, why));
  }

  std::string text(const toml::table& table, const char* key, const std::string& otherwise = "") const {
    return table[key].value<std::string>().value_or(otherwise);
  }

  static std::vector<std::string> texts(const toml::table& table, const char* key) {
    std::vector<std::string> out;
    if (const toml::array* array = table[key].as_array())
      for (const toml::node& item : *array)
        out.push_back(item.value<std::string>().value());
    return out;
  }

  static std::vector<std::int64_t> integers(const toml::table& table, const char* key) {
    std::vector<std::int64_t> out;
    if (const toml::array* array = table[key].as_array())
      for (const toml::node& item : *array)
        out.push_back(item.value<std::int64_t>().value());
    return out;
  }

  static std::vector<const toml::table*> tables(const toml::table& table, const char* key) {
    std::vector<const toml::table*> out;
    if (const toml::array* array = table[key].as_array())
      for (const toml::node& item : *array)
        out.push_back(item.as_table());
    return out;
  }

  std::uint32_t tensor_of(const std::string& name) const {
    for (std::uint32_t t = 0; t < scenario_.tensors.size(); ++t)
      if (scenario_.tensors[t].name == name)
        return t;
    refuse(fmt::format("no [[tensor]] '{}'", name));
  }

  DType dtype_of(const std::string& name) const {
    if (const auto dtype = dtype_from_name(name))
      return *dtype;
    refuse(fmt::format("no dtype '{}'", name));
  }

  /// `bits`: a list, one number for all, "index" (element i holds i) or "random".
  Numbers read_bits(const toml::table& table, std::size_t count, DType dtype) {
    Numbers bits;
    if (const toml::array* list = table["bits"].as_array()) {
      for (const toml::node& item : *list)
        bits.push_back(static_cast<std::uint64_t>(item.value<std::int64_t>().value()) & mask_of(dtype));
      if (bits.size() != count)
        refuse(fmt::format("{} bits for {} elements", bits.size(), count));
    } else if (const auto one = table["bits"].value<std::int64_t>()) {
      bits.assign(count, static_cast<std::uint64_t>(*one) & mask_of(dtype));
    } else if (text(table, "bits") == "index") {
      for (std::size_t i = 0; i < count; ++i)
        bits.push_back(i & mask_of(dtype));
    } else if (text(table, "bits") == "random") {
      for (std::size_t i = 0; i < count; ++i)
        bits.push_back(random_() & mask_of(dtype));
    } else {
      refuse("bits is missing");
    }
    return bits;
  }

  void read_tensor(const toml::table& table) {
    Values values;
    values.name = text(table, "name");
    values.dtype = dtype_of(text(table, "dtype", "bfloat16"));
    const auto count = table["count"].value<std::int64_t>();
    if (!count)
      refuse(fmt::format("tensor '{}': count is missing", values.name));
    values.bits = read_bits(table, static_cast<std::size_t>(*count), values.dtype);
    scenario_.tensors.push_back(std::move(values));
  }

  /// "0-3; other: 4-7; padding: 2": elements of the default tensor, of another one, and padding.
  std::vector<Place> read_places(const std::string& list, const std::string& default_tensor) const {
    std::vector<Place> places;
    if (trimmed(list).empty())
      return places;
    for (const std::string& part : split(list, ';')) {
      const auto blank = part.find(": ");
      const std::string name = blank == std::string::npos ? default_tensor : part.substr(0, blank);
      const Numbers numbers = read_numbers(blank == std::string::npos ? part : part.substr(blank + 2));
      if (name == "padding") {
        places.insert(places.end(), numbers.at(0), Place{});
        continue;
      }
      const std::uint32_t tensor = tensor_of(name);
      for (const std::uint64_t flat : numbers) {
        if (flat >= scenario_.tensors[tensor].bits.size())
          refuse(fmt::format("'{}' has no element {}", name, flat));
        places.push_back({tensor, flat});
      }
    }
    return places;
  }

  void read_held(const toml::table& table, const char* members, std::vector<std::vector<Held>>& side) const {
    Held held;
    held.parameter = text(table, "parameter");
    const std::string tensor = text(table, "tensor", held.parameter);
    held.full_shape = integers(table, "shape");
    held.strides = integers(table, "strides");
    held.offset = table["offset"].value<std::int64_t>().value_or(0);
    held.local_shape = integers(table, "local");
    const std::vector<std::string> lists = texts(table, members);
    side.resize(std::max(side.size(), lists.size()));
    const toml::array* flat = table["flat"].as_array();
    for (std::size_t m = 0; m < lists.size(); ++m) {
      if (lists[m] == "-") // it has no such parameter
        continue;
      if (flat != nullptr) {
        const toml::array& interval = *flat->get(m)->as_array();
        held.flat = {interval.get(0)->value<std::int64_t>().value(), interval.get(1)->value<std::int64_t>().value()};
      }
      held.elements = read_places(lists[m], tensor);
      held.dtype = dtype_of(text(table, "dtype", default_dtype(held, tensor)));
      side[m].push_back(held);
    }
  }

  std::string default_dtype(const Held& held, const std::string& tensor) const {
    for (const Place& place : held.elements)
      if (place.tensor != Place::padding)
        return std::string(to_string(scenario_.tensors[place.tensor].dtype));
    for (const Values& values : scenario_.tensors)
      if (values.name == tensor)
        return std::string(to_string(values.dtype));
    return "bfloat16";
  }

  std::vector<Edit> read_edits(const toml::table& table, const char* key) {
    std::vector<Edit> edits;
    for (const toml::table* one : tables(table, key)) {
      Edit edit;
      edit.tensor = tensor_of(text(*one, "tensor"));
      edit.at = read_numbers(text(*one, "at"));
      edit.bits = read_bits(*one, edit.at.size(), scenario_.tensors[edit.tensor].dtype);
      edits.push_back(std::move(edit));
    }
    return edits;
  }

  /// A file of tools/maps, adapted: pairs of what stands there, at least once, and what is put instead.
  void read_map_file(const toml::table& table) {
    const std::string name = text(table, "file");
    std::ifstream file(std::string(DELTAWIRE_MAPS) + "/" + name);
    if (!file)
      refuse(fmt::format("no file '{}' in tools/maps", name));
    std::string content{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::string> replace = texts(table, "replace");
    for (std::size_t i = 0; i + 1 < replace.size(); i += 2) {
      std::size_t at = content.find(replace[i]);
      if (at == std::string::npos)
        refuse(fmt::format("'{}' does not contain '{}'", name, replace[i]));
      for (; at != std::string::npos; at = content.find(replace[i], at + replace[i + 1].size()))
        content.replace(at, replace[i].size(), replace[i + 1]);
    }
    scenario_.files.emplace_back(name, std::move(content));
  }

  void read_update(const toml::table& table) {
    ScenarioUpdate update;
    update.edits = read_edits(table, "edit");
    update.changed = table["changed"].value<std::int64_t>().value_or(-1);
    update.gathered = table["gathered"].value<std::int64_t>().value_or(-1);
    update.fresh_session = table["fresh_session"].value<bool>().value_or(false);
    scenario_.updates.push_back(std::move(update));
  }

  std::string path_;
  toml::table root_;
  Scenario scenario_;
  std::mt19937_64 random_ = generator(7);
};

} // namespace

Scenario read_scenario(const std::string& path) {
  try {
    return Reader(path).read();
  } catch (const std::runtime_error&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", path, error.what()));
  }
}

} // namespace deltawire::test
