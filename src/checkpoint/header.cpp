#include "checkpoint/header.hpp"

#include "checkpoint/shown.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_set>

namespace deltawire::checkpoint {
namespace {

constexpr std::string_view metadata_key = "__metadata__";

/// Receives the header token by token. Every value has a place where it is legal; anything else stops the parse at
/// once, so that depth and size of what is kept are bounded by the header itself.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
public:
  [[nodiscard]] const std::optional<Failure>& problem() const noexcept { return problem_; }
  [[nodiscard]] std::vector<HeaderEntry>& entries() noexcept { return entries_; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return unexpected(fmt::format("{}, which is no whole number below 2^64,", shown(text)));
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<layout::Index>::max()))
        return refuse("extent {} in the shape is past 2^63 - 1", value);
      entries_.back().shape.push_back(static_cast<layout::Index>(value));
      return true;
    }
    if (place_ == Place::offsets) {
      if (offsets_seen_ == 2)
        return refuse("data_offsets must be two numbers, and has more");
      (offsets_seen_ == 0 ? entries_.back().begin : entries_.back().end) = value;
      ++offsets_seen_;
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata)
      return true;
    if (place_ == Place::entry && key_ == "dtype") {
      const std::optional<DType> dtype = dtype_from_safetensors(value);
      if (!dtype)
        return refuse("dtype {} is not known; deltawire carries {}", shown(value), known_dtypes());
      entries_.back().dtype = *dtype;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
      return true;
    }
    if (place_ == Place::top) {
      keys_seen_.clear();
      if (key_ == metadata_key) {
        place_ = Place::metadata;
      } else {
        place_ = Place::entry;
        entries_.emplace_back().name = key_;
      }
      return true;
    }
    return unexpected("an object");
  }

  bool key(string_t& value) override {
    if (place_ == Place::top) {
      if (!names_seen_.insert(value).second)
        return refuse_plainly("{} appears twice", value == metadata_key ? value : "tensor " + shown(value));
    } else if (!keys_seen_.insert(value).second) {
      return refuse("key {} appears twice", shown(value));
    } else if (place_ == Place::entry && value != "dtype" && value != "shape" && value != "data_offsets") {
      return refuse("key {} is not known; a tensor has dtype, shape and data_offsets", shown(value));
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) {
      for (const char* needed : {"dtype", "shape", "data_offsets"})
        if (!keys_seen_.contains(needed))
          return refuse("{} is missing", needed);
    }
    place_ = place_ == Place::top ? Place::start : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::entry && key_ == "shape") {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::entry && key_ == "data_offsets") {
      place_ = Place::offsets;
      offsets_seen_ = 0;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_seen_ != 2)
      return refuse("data_offsets must be two numbers, and has {}", offsets_seen_);
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception&) override {
    return refuse_plainly("the header is no JSON: byte {} of it, near {}", position, shown(token));
  }

private:
  enum class Place { start, top, entry, shape, offsets, metadata };

  static std::string known_dtypes() {
    std::string text;
    for (std::size_t i = 0; i < dtype_count; ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", safetensors_name(static_cast<DType>(i)));
    return text;
  }

  template <class... Args>
  bool refuse_plainly(fmt::format_string<Args...> format, Args&&... args) {
    problem_ = Failure{Code::invalid_input, fmt::format(format, std::forward<Args>(args)...)};
    return false;
  }

  /// About the tensor (or the metadata) that is being read.
  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    if (place_ == Place::metadata)
      return refuse_plainly("{}: {}", metadata_key, what);
    return refuse_plainly("tensor {}: {}", shown(entries_.back().name), what);
  }

  bool unexpected(std::string_view what) {
    switch (place_) {
    case Place::start:
      return refuse_plainly("the header must be a JSON object, and is {}", what);
    case Place::top:
      return refuse_plainly("{} must be an object, and is {}", key_ == metadata_key ? key_ : "tensor " + shown(key_),
                            what);
    case Place::entry:
      return refuse("{} must be {}, and is {}", key_, key_ == "dtype" ? "a string" : "an array of whole numbers", what);
    case Place::shape:
      return refuse("shape must hold whole numbers, and holds {}", what);
    case Place::offsets:
      return refuse("data_offsets must hold two whole numbers, and holds {}", what);
    case Place::metadata:
      break;
    }
    return refuse("value of {} must be a string, and is {}", shown(key_), what);
  }

  Place place_ = Place::start;
  std::string key_; ///< last key, of the innermost open object
  std::size_t offsets_seen_ = 0;
  std::unordered_set<std::string> names_seen_;
  std::unordered_set<std::string> keys_seen_; ///< of the open tensor, or of the metadata
  std::vector<HeaderEntry> entries_;
  std::optional<Failure> problem_;
};

/// The bytes that dtype and shape say; fails where they do not fit the range.
Result<void> check_range(const HeaderEntry& entry, std::uint64_t data_start, std::uint64_t data_bytes) {
  if (entry.begin > entry.end)
    return fail(Code::invalid_input, "tensor {}: data_offsets [{}, {}] run backwards", shown(entry.name), entry.begin,
                entry.end);
  if (entry.end > data_bytes)
    return fail(Code::invalid_input, "tensor {}: data_offsets [{}, {}] pass the end of the data, which has {} bytes",
                shown(entry.name), entry.begin, entry.end, data_bytes);
  const std::uint64_t size = size_of(entry.dtype);
  const std::uint64_t held = entry.end - entry.begin;
  const Result<layout::Index> count = layout::element_count(entry.shape);
  // Division, not multiplication: the count is up to 2^62, so that count * size may not fit.
  if (!count || held % size != 0 || static_cast<std::uint64_t>(*count) != held / size)
    return fail(Code::invalid_input, "tensor {}: shape {} of {} does not make the {} bytes of data_offsets [{}, {}]",
                shown(entry.name), layout::to_string(entry.shape), safetensors_name(entry.dtype), held, entry.begin,
                entry.end);
  if ((data_start + entry.begin) % size != 0)
    return fail(Code::invalid_input,
                "tensor {}: data starts at byte {} of the file, which is no multiple of its element size {}; write the "
                "file again with a current safetensors library",
                shown(entry.name), data_start + entry.begin, size);
  return {};
}

} // namespace

Result<std::vector<HeaderEntry>> parse_header(std::string_view text, std::uint64_t data_start,
                                              std::uint64_t data_bytes) {
  // The format asks for '{' as the first byte; JSON alone would allow white space (and the parser a byte order mark).
  if (text.empty() || text.front() != '{')
    return fail(Code::invalid_input, "the header does not begin with '{{'");
  // The JSON parser takes a zero byte for the end of its input and would believe whatever follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos)
    return fail(Code::invalid_input, "the header is no JSON: byte {} of it is zero", zero);

  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader))
    return tl::make_unexpected(reader.problem().value_or(Failure{Code::invalid_input, "the header is no JSON"}));

  std::vector<HeaderEntry> entries = std::move(reader.entries());
  for (const HeaderEntry& entry : entries)
    if (Result<void> fits = check_range(entry, data_start, data_bytes); !fits)
      return pass_on(std::move(fits));

  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].begin < covered)
      return fail(Code::invalid_input, "tensor {}: data_offsets [{}, {}] overlap those of tensor {}, [{}, {}]",
                  shown(entries[i].name), entries[i].begin, entries[i].end, shown(entries[i - 1].name),
                  entries[i - 1].begin, entries[i - 1].end);
    if (entries[i].begin > covered)
      return fail(Code::invalid_input, "bytes {} to {} of the data belong to no tensor (before tensor {})", covered,
                  entries[i].begin, shown(entries[i].name));
    covered = entries[i].end;
  }
  if (covered != data_bytes)
    return fail(Code::invalid_input, "bytes {} to {} of the data belong to no tensor (at the end of the file)", covered,
                data_bytes);
  return entries;
}

Result<std::string> header_text(const std::vector<HeaderEntry>& entries) {
  // Loaders of the PyTorch world look for this entry.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  for (const HeaderEntry& entry : entries) {
    std::string name;
    try {
      name = nlohmann::json(entry.name).dump();
    } catch (const nlohmann::json::exception&) {
      return fail(Code::invalid_argument, "tensor {}: the name is no UTF-8", shown(entry.name));
    }
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name,
                        safetensors_name(entry.dtype), fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

} // namespace deltawire::checkpoint
