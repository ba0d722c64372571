#include "checkpoint/index.hpp"

#include "checkpoint/shown.hpp"
#include "layout/problems.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <map>
#include <unordered_set>

namespace deltawire::checkpoint {
namespace {

/// Receives the index token by token and keeps weight_map and total_size. Values that are for others are passed over at
/// any depth.
class IndexReader final : public nlohmann::json_sax<nlohmann::json> {
public:
  [[nodiscard]] const std::optional<Failure>& problem() const noexcept { return problem_; }
  [[nodiscard]] bool has_weight_map() const noexcept { return keys_seen_.contains("weight_map"); }
  [[nodiscard]] std::map<std::string, std::vector<std::string>>& files() noexcept { return files_; }
  [[nodiscard]] const std::optional<std::uint64_t>& total_size() const noexcept { return total_size_; }

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool binary(binary_t&) override { return value("binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (is_total_size()) {
      total_size_ = number;
      return true;
    }
    return value("a number");
  }

  bool number_float(number_float_t number, const string_t& text) override {
    // Some writers divide on the way and leave "4538376.0".
    if (is_total_size() && number >= 0 && number < 0x1p53 && std::trunc(number) == number) {
      total_size_ = static_cast<std::uint64_t>(number);
      return true;
    }
    return value(is_total_size() ? fmt::format("{}", shown(text)) : "a number");
  }

  bool string(string_t& text) override {
    if (place_ == Place::weight_map) {
      files_[text].push_back(key_);
      return true;
    }
    return value("a string");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
      return true;
    }
    if (place_ == Place::top && key_ == "weight_map") {
      place_ = Place::weight_map;
      return true;
    }
    if (place_ == Place::top && key_ == "metadata") {
      place_ = Place::metadata;
      return true;
    }
    return opens("an object");
  }

  bool key(string_t& text) override {
    if (place_ == Place::top && !keys_seen_.insert(text).second)
      return refuse("{} appears twice", shown(text));
    if (place_ == Place::weight_map && !tensors_seen_.insert(text).second)
      return refuse("weight_map: tensor {} appears twice", shown(text));
    if (place_ == Place::metadata && text == "total_size" && total_size_)
      return refuse("metadata: total_size appears twice");
    if (place_ != Place::other)
      key_ = text;
    return true;
  }

  bool end_object() override { return closes(); }

  bool start_array(std::size_t) override { return opens("an array"); }
  bool end_array() override { return closes(); }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
    return refuse("it is no JSON: byte {}, near {}", position, shown(token));
  }

private:
  enum class Place { start, top, weight_map, metadata, other };

  [[nodiscard]] bool is_total_size() const { return place_ == Place::metadata && key_ == "total_size"; }

  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    problem_ = Failure{Code::invalid_input, fmt::format(format, std::forward<Args>(args)...)};
    return false;
  }

  /// A value where one is not known to be right: passed over where it is for others.
  bool value(std::string_view what) {
    switch (place_) {
    case Place::start:
      return refuse("it must be a JSON object, and is {}", what);
    case Place::top:
      if (key_ == "weight_map" || key_ == "metadata")
        return refuse("{} must be an object, and is {}", key_, what);
      return true;
    case Place::weight_map:
      return refuse("weight_map: tensor {} must be given a file name, and has {}", shown(key_), what);
    case Place::metadata:
      if (key_ == "total_size")
        return refuse("metadata: total_size must be a whole number of bytes, and is {}", what);
      return true;
    case Place::other:
      return true;
    }
    return true;
  }

  /// An object or array that is not read: from here to its end everything is passed over.
  bool opens(std::string_view what) {
    if (!value(what))
      return false;
    if (depth_++ == 0) {
      around_ = place_;
      place_ = Place::other;
    }
    return true;
  }

  bool closes() {
    if (place_ == Place::other) {
      if (--depth_ == 0)
        place_ = around_;
    } else {
      place_ = place_ == Place::top ? Place::start : Place::top;
    }
    return true;
  }

  Place place_ = Place::start;
  Place around_ = Place::top; ///< what what is passed over stands in
  std::size_t depth_ = 0;     ///< open objects and arrays that are passed over
  std::string key_;           ///< last key of what is read
  std::unordered_set<std::string> keys_seen_;
  std::unordered_set<std::string> tensors_seen_;
  std::map<std::string, std::vector<std::string>> files_;
  std::optional<std::uint64_t> total_size_;
  std::optional<Failure> problem_;
};

/// Why a name cannot be that of a file in the index's folder; empty: it can.
std::string_view objection(std::string_view name) {
  if (name.empty())
    return "is empty";
  if (name.find('\0') != std::string_view::npos)
    return "holds a zero byte";
  if (name.front() == '/')
    return "is absolute; files of a checkpoint lie in its folder";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part == "..")
      return "leaves the folder; files of a checkpoint lie in it";
    if (part.empty() || part == ".")
      return "has an empty part or a '.', which makes it one of several names of a file";
    begin = end + 1;
  }
  return {};
}

} // namespace

Result<Index> parse_index(std::string_view text) {
  // The JSON parser takes a zero byte for the end of its input and would believe whatever follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return fail(Code::invalid_input, "it is no JSON: byte {} is zero", zero);
  IndexReader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader))
    return tl::make_unexpected(reader.problem().value_or(Failure{Code::invalid_input, "it is no JSON"}));
  if (!reader.has_weight_map())
    return fail(Code::invalid_input, "weight_map is missing: it must say which file holds which tensor");
  if (reader.files().empty())
    return fail(Code::invalid_input, "weight_map names no tensor");

  layout::Problems problems;
  Index index{{}, reader.total_size()};
  for (auto& [name, tensors] : reader.files()) {
    if (const std::string_view why = objection(name); !why.empty())
      problems.add(Code::invalid_input, "weight_map: file name {} (of tensor {}) {}", shown(name),
                   shown(tensors.front()), why);
    index.files.push_back({name, std::move(tensors)});
  }
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return index;
}

} // namespace deltawire::checkpoint
