#include "report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace deltawire::bench {

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
    text += '\n';
  }
  return text;
}

std::string to_json(const std::vector<Report>& reports, const std::string& instruction_set) {
  using Json = nlohmann::ordered_json;
  Json benches = Json::array();
  for (const Report& report : reports) {
    Json rows = Json::array();
    for (const Row& row : report.rows) {
      Json limits = Json::array();
      for (const Limit& limit : row.limits)
        limits.push_back({{"name", limit.name}, {"bytes_per_second", limit.bytes_per_second}, {"ratio", limit.ratio}});
      rows.push_back({{"work", row.work},
                      {"input", row.input},
                      {"threads", row.threads},
                      {"bytes_per_second", row.bytes_per_second},
                      {"limits", std::move(limits)}});
    }
    benches.push_back({{"bench", report.bench}, {"rows", std::move(rows)}});
  }
  return Json{{"instruction_set", instruction_set}, {"benches", std::move(benches)}}.dump(2) + "\n";
}

} // namespace deltawire::bench
