#include "report.hpp"

#include "replay/numbers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace deltawire::bench {
namespace {

/// The figures of a row, a line a group.
std::string figure_lines(const Row& row) {
  std::string text;
  std::string group;
  for (const Figure& figure : row.figures) {
    text += figure.group == group ? "   " : fmt::format("{}    {:<9}", text.empty() ? "" : "\n", figure.group + ":");
    group = figure.group;
    text += fmt::format("{} {} {}", figure.name, replay::three_digits(figure.value), figure.unit);
  }
  return text.empty() ? "" : text + "\n";
}

/// A name as JSON's keys are written.
std::string to_key(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

/// A ratio to a limit as the table shows it: how many times the limit's time the work takes.
std::string times_of(double ratio) {
  return ratio > 0 ? replay::three_digits(1 / ratio) : "-";
}

} // namespace

std::string to_text(const Report& report) {
  std::size_t work = 0;
  std::size_t input = 0;
  for (const Row& row : report.rows) {
    work = std::max(work, row.work.size());
    input = std::max(input, row.input.size());
  }
  std::string text;
  for (const Row& row : report.rows) {
    text += fmt::format("{:<{}}  {:<{}}  {} thread{}  {:7.2f} GB/s", row.work, work, row.input, input, row.threads,
                        row.threads == 1 ? " " : "s", row.bytes_per_second * 1e-9);
    for (const Limit& limit : row.limits)
      text += fmt::format("   {:.2f} of {} ({:.1f})", limit.ratio, limit.name, limit.bytes_per_second * 1e-9);
    text += '\n' + figure_lines(row);
    if (!row.remark.empty())
      text += fmt::format("    {}\n", row.remark);
  }
  return text;
}

std::string to_markdown(const Report& report) {
  // Columns are named as the rows have them: all rows of a benchmark that share a table have the same.
  std::string text;
  std::string head;
  for (const Row& row : report.rows) {
    std::string names = fmt::format("| {} | input | GB/s |", report.bench);
    std::string rule = "|---|---|---|";
    std::string values =
      fmt::format("| {} | {} | {} |", row.work, row.input, replay::three_digits(row.bytes_per_second * 1e-9));
    for (const Figure& figure : row.figures)
      if (figure.in_table) {
        names += fmt::format(" {}, {} |", figure.name, figure.unit);
        rule += "---|";
        values += fmt::format(" {} |", replay::three_digits(figure.value));
      }
    for (const Limit& limit : row.limits) {
      names += fmt::format(" × {} |", limit.name);
      rule += "---|";
      values += fmt::format(" {} |", times_of(limit.ratio));
    }
    if (!row.remark.empty()) {
      names += " of the time |";
      rule += "---|";
      values += fmt::format(" {} |", row.remark);
    }
    if (names != head)
      text += (head.empty() ? "" : "\n") + names + "\n" + rule + "\n";
    head = names;
    text += values + "\n";
  }
  return text;
}

std::string to_json(const std::vector<Report>& reports, const std::string& instruction_set,
                    const Description& machine) {
  using Json = nlohmann::ordered_json;
  Json benches = Json::array();
  for (const Report& report : reports) {
    Json rows = Json::array();
    for (const Row& row : report.rows) {
      Json limits = Json::array();
      for (const Limit& limit : row.limits)
        limits.push_back({{"name", limit.name}, {"bytes_per_second", limit.bytes_per_second}, {"ratio", limit.ratio}});
      Json shown{{"work", row.work},
                 {"input", row.input},
                 {"threads", row.threads},
                 {"bytes_per_second", row.bytes_per_second},
                 {"limits", std::move(limits)}};
      if (!row.remark.empty())
        shown["remark"] = row.remark;
      for (const Figure& figure : row.figures)
        shown[figure.group][to_key(figure.name + "_" + figure.unit)] = figure.value;
      rows.push_back(std::move(shown));
    }
    benches.push_back({{"bench", report.bench}, {"rows", std::move(rows)}});
  }
  Json about = Json::object();
  for (const auto& [name, value] : machine)
    about[to_key(name)] = value;
  return Json{{"instruction_set", instruction_set}, {"machine", std::move(about)}, {"benches", std::move(benches)}}
           .dump(2, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

} // namespace deltawire::bench
