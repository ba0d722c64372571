#include "metrics_text.hpp"

#include <charconv>
#include <limits>

namespace deltawire::top {

namespace {

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

/// Reads one line from its start; each step says whether it fitted.
class Line {
public:
  explicit Line(std::string_view text) : rest_(text) {}

  bool read(Series& out) {
    out.name = name();
    if (out.name.empty() || (take('{') && !labels(out.labels)))
      return false;
    blanks();
    return number(out.value);
  }

private:
  void blanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t'))
      rest_.remove_prefix(1);
  }

  bool take(char c) {
    if (rest_.empty() || rest_.front() != c)
      return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string name() {
    std::size_t length = 0;
    while (length < rest_.size() && is_name(rest_[length]))
      ++length;
    std::string out(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return out;
  }

  bool labels(std::map<std::string, std::string>& out) {
    for (;;) {
      blanks();
      if (take('}'))
        return true;
      const std::string key = name();
      if (key.empty() || !take('=') || !take('"') || !quoted(out[key]))
        return false;
      blanks();
      take(',');
    }
  }

  bool quoted(std::string& out) {
    while (!rest_.empty()) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      if (c == '"')
        return true;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (rest_.empty())
        return false;
      out += rest_.front() == 'n' ? '\n' : rest_.front();
      rest_.remove_prefix(1);
    }
    return false;
  }

  bool number(double& out) {
    const std::string_view text = rest_.substr(0, rest_.find_first_of(" \t"));
    if (text == "NaN" || text == "+Inf" || text == "-Inf") {
      out = text == "NaN"    ? std::numeric_limits<double>::quiet_NaN()
            : text == "+Inf" ? std::numeric_limits<double>::infinity()
                             : -std::numeric_limits<double>::infinity();
      return true;
    }
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size();
  }

  std::string_view rest_;
};

} // namespace

const std::string& Series::label(const std::string& key) const {
  static const std::string none;
  const auto found = labels.find(key);
  return found == labels.end() ? none : found->second;
}

Result<std::vector<Series>> parse_metrics(std::string_view text) {
  std::vector<Series> out;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r'))
      line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos || line.starts_with('#'))
      continue;
    Series series;
    if (!Line(line).read(series))
      return fail(Code::invalid_input, "line {} is no metric: \"{}\"", number, line.substr(0, 80));
    out.push_back(std::move(series));
  }
  return out;
}

} // namespace deltawire::top
