#include "account.hpp"

#include "encodings.hpp"
#include "replay/numbers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace deltawire::diff {

namespace {

using replay::percent;
using replay::short_bytes;
using replay::short_count;
using replay::three_digits;

constexpr std::size_t most_columns = 120;
constexpr std::size_t least_name = 16;

using Row = std::vector<std::string>;

/// A name from a file, in ASCII. Where it is too long, its end tells it from others better than its start.
std::string shown_name(std::string name, std::size_t width) {
  for (char& c : name)
    c = c < 0x20 || c > 0x7e ? '?' : c;
  return name.size() <= width ? name : "..." + name.substr(name.size() - (width - 3));
}

/// Aligns the rows and sets off the first `headers` and the last `totals` of them. First column: names.
std::string aligned(const std::vector<Row>& rows, std::size_t headers, std::size_t totals) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  std::size_t others = 0;
  for (std::size_t column = 1; column < widths.size(); ++column)
    others += 1 + widths[column];
  widths[0] = std::min(widths[0], std::max(least_name, most_columns - std::min(most_columns, others)));

  const std::string rule = std::string(widths[0] + others, '-') + "\n";
  std::string text;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (row == headers || row + totals == rows.size())
      text += rule;
    std::string line = fmt::format("{:<{}}", shown_name(rows[row][0], widths[0]), widths[0]);
    for (std::size_t column = 1; column < widths.size(); ++column)
      line += fmt::format(" {:>{}}", rows[row][column], widths[column]);
    text.append(line, 0, line.find_last_not_of(' ') + 1) += '\n';
  }
  return text;
}

Row change_row(std::string name, std::string dtype, const Figures& figures) {
  Row row{std::move(name), std::move(dtype), short_count(figures.elements), short_count(figures.changed),
          percent(static_cast<double>(figures.changed), static_cast<double>(figures.elements))};
  if (!figures.gaps || !figures.differences) {
    row.resize(row.size() + 8, "-");
    return row;
  }
  const GapFigures& gaps = *figures.gaps;
  for (const std::uint64_t gap : {gaps.median, gaps.p90, gaps.p99, gaps.largest})
    row.push_back(short_count(gap));
  row.push_back(percent(gaps.u8_share, 1));
  row.push_back(percent(figures.differences->one_share, 1));
  row.push_back(three_digits(gaps.entropy_bytes));
  row.push_back(three_digits(figures.differences->entropy_bytes));
  return row;
}

Row byte_row(std::string name, const Figures& figures) {
  Row row{std::move(name)};
  for (const std::uint64_t bytes : figures.bytes)
    row.push_back(short_bytes(bytes));
  return row;
}

Row bytes_a_change_row(const Figures& figures) {
  Row row{"bytes a changed element"};
  for (const std::uint64_t bytes : figures.bytes)
    row.push_back(
      figures.changed == 0 ? "-" : three_digits(static_cast<double>(bytes) / static_cast<double>(figures.changed)));
  return row;
}

constexpr const char* legend = "gap: unchanged elements between two changes; in u8: gaps that one byte holds; +-1 ulp: "
                               "moved to the next value of the\n"
                               "dtype, up or down; entropy: bytes a change, coded by frequency; a tensor without a "
                               "change takes bytes in dense only\n";

std::string others_text(const Comparison& comparison, std::size_t shown) {
  std::size_t changed = 0;
  std::uint64_t changes = 0;
  for (std::size_t i = shown; i < comparison.tensors.size(); ++i) {
    changed += comparison.tensors[i].figures.changed > 0 ? 1 : 0;
    changes += comparison.tensors[i].figures.changed;
  }
  const std::size_t unchanged = comparison.tensors.size() - shown - changed;
  std::string text;
  if (changed > 0)
    text += fmt::format("not shown: {} tensors with {} changes (--top N shows more, --json all)\n", changed, changes);
  if (unchanged > 0)
    text += fmt::format("without a change: {} of {} tensors\n", unchanged, comparison.tensors.size());
  return text;
}

using Json = nlohmann::ordered_json; // keys in the order of the table

Json figures_json(const Figures& figures) {
  Json bytes = Json::object();
  for (std::size_t i = 0; i < figures.bytes.size(); ++i)
    bytes[std::string(encodings()[i].key)] = figures.bytes[i];
  Json value = {{"elements", figures.elements},
                {"changed", figures.changed},
                {"density", figures.elements == 0
                              ? 0.0
                              : static_cast<double>(figures.changed) / static_cast<double>(figures.elements)},
                {"gaps", nullptr},
                {"differences", nullptr},
                {"bytes", std::move(bytes)}};
  if (figures.gaps)
    value["gaps"] = {{"median", figures.gaps->median},     {"p90", figures.gaps->p90},
                     {"p99", figures.gaps->p99},           {"largest", figures.gaps->largest},
                     {"u8_share", figures.gaps->u8_share}, {"entropy_bytes", figures.gaps->entropy_bytes}};
  if (figures.differences)
    value["differences"] = {{"one_ulp_share", figures.differences->one_share},
                            {"entropy_bytes", figures.differences->entropy_bytes}};
  return value;
}

} // namespace

std::string table_text(const Comparison& comparison, std::size_t top) {
  std::vector<Row> changes{{"", "", "", "", "", "gap:", "", "", "", "in", "+-1", "entropy", "entropy"},
                           {"tensor", "dtype", "elements", "changed", "density", "median", "p90", "p99", "largest",
                            "u8", "ulp", "gap", "ulp"}};
  std::vector<Row> bytes{{"bytes of"}};
  for (const Encoding& encoding : encodings())
    bytes.front().emplace_back(encoding.title);
  std::size_t shown = 0;
  for (; shown < std::min(top, comparison.tensors.size()); ++shown) {
    const TensorFigures& tensor = comparison.tensors[shown];
    if (tensor.figures.changed == 0)
      break; // they come last
    changes.push_back(change_row(tensor.name, std::string(safetensors_name(tensor.dtype)), tensor.figures));
    bytes.push_back(byte_row(tensor.name, tensor.figures));
  }
  changes.push_back(change_row("all tensors", "", comparison.total));
  bytes.push_back(byte_row("all tensors", comparison.total));
  bytes.push_back(bytes_a_change_row(comparison.total));
  return aligned(changes, 2, 1) + others_text(comparison, shown) + legend + "\n" + aligned(bytes, 1, 2);
}

std::string json_text(const Comparison& comparison, const std::string& before, const std::string& after) {
  Json tensors = Json::array();
  for (const TensorFigures& tensor : comparison.tensors) {
    Json value = {{"name", tensor.name}, {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}};
    value.update(figures_json(tensor.figures));
    tensors.push_back(std::move(value));
  }
  const Json report = {
    {"before", before}, {"after", after}, {"tensors", std::move(tensors)}, {"total", figures_json(comparison.total)}};
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace deltawire::diff
