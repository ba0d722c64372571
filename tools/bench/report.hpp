// What a benchmark found: throughputs, and how they relate to limits of the same machine measured in the same run.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace deltawire::bench {

/// Something the machine can do at best, measured between the turns of the work that it limits.
struct Limit {
  std::string name;
  double bytes_per_second = 0; ///< of the same bytes as the work's
  double ratio = 0;            ///< the work's speed as a share of this one, median over the rounds
};

struct Row {
  std::string work;
  std::string input;
  std::size_t threads = 1;
  double bytes_per_second = 0; ///< weights covered, whatever the work reads and writes for them
  std::vector<Limit> limits;
};

struct Report {
  std::string bench;
  std::vector<Row> rows;
};

/// A table for people, one line a row.
[[nodiscard]] std::string to_text(const Report& report);

/// {"instruction_set": ..., "benches": [{"bench": ..., "rows": [...]}]}
[[nodiscard]] std::string to_json(const std::vector<Report>& reports, const std::string& instruction_set);

} // namespace deltawire::bench
