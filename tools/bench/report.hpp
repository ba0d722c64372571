// What a benchmark found: throughputs, and how they relate to limits of the same machine measured in the same run.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::bench {

/// Something the machine can do at best, measured between the turns of the work that it limits.
struct Limit {
  std::string name;
  double bytes_per_second = 0; ///< of the same bytes as the work's
  double ratio = 0;            ///< the work's speed as a share of this one, median over the rounds
};

/// Something else that was measured: the median over the rounds.
struct Figure {
  std::string group; ///< those of a group are shown together
  std::string name;
  std::string unit; ///< "ms", "MB"; "x" for a ratio
  double value = 0;
  bool in_table = false; ///< a column of the Markdown table
};

struct Row {
  std::string work;
  std::string input;
  std::size_t threads = 1;
  double bytes_per_second = 0; ///< weights covered, whatever the work reads and writes for them
  std::vector<Limit> limits;
  std::vector<Figure> figures{};
  std::string remark{}; ///< what the figures come from, in a few words; a column of the table where it is not empty
};

struct Report {
  std::string bench;
  std::vector<Row> rows;
};

using Description = std::vector<std::pair<std::string, std::string>>;

/// A table for people, one line a row, and one a group of figures.
[[nodiscard]] std::string to_text(const Report& report);

/// A Markdown table, one line a row.
[[nodiscard]] std::string to_markdown(const Report& report);

/// {"instruction_set": ..., "machine": {...}, "benches": [{"bench": ..., "rows": [...]}]}. Figures are
/// "group": {"name_unit": value}.
[[nodiscard]] std::string to_json(const std::vector<Report>& reports, const std::string& instruction_set,
                                  const Description& machine);

} // namespace deltawire::bench
