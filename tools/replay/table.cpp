#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace deltawire::replay {

namespace {

/// Milliseconds, or seconds where those would be long.
std::string milliseconds(double seconds) {
  if (seconds <= 0)
    return "0";
  return seconds < 9.9995 ? three_digits(seconds * 1e3) : three_digits(seconds) + "s";
}

constexpr std::size_t columns = 17;
using Row = std::array<std::string, columns>;

Row row_of(const Outcome& update, std::uint64_t dense_bytes) {
  const PhaseSeconds& phases = update.phase_s;
  const auto changed = static_cast<double>(update.changed);
  const auto wire = static_cast<double>(update.wire_bytes);
  return {std::to_string(update.version),
          update.seed ? "seed" : "delta",
          percent(changed, static_cast<double>(update.elements)),
          short_count(update.changed),
          short_bytes(update.wire_bytes),
          update.changed > 0 ? three_digits(wire / changed) : "-",
          percent(wire, static_cast<double>(dense_bytes)),
          short_bytes(update.gather_bytes),
          milliseconds(update.captured_s),
          milliseconds(update.committed_s),
          milliseconds(phases.diff),
          milliseconds(phases.gather),
          milliseconds(phases.assemble),
          milliseconds(phases.send),
          milliseconds(phases.stage),
          milliseconds(phases.commit),
          milliseconds(update.pause_s)};
}

} // namespace

std::string table_text(std::span<const Outcome> updates) {
  std::vector<Row> rows{
    {"", "", "", "", "bytes", "bytes/", "of", "gather", "cap-", "com-", "", "", "assem-", "", "", "", ""},
    {"version", "kind", "density", "changed", "sent", "change", "dense", "bytes", "tured", "mitted", "diff", "gather",
     "ble", "send", "stage", "commit", "pause"}};
  std::uint64_t dense_bytes = 0;
  for (const Outcome& update : updates) {
    if (update.seed)
      dense_bytes = std::max(dense_bytes, update.wire_bytes);
    rows.push_back(row_of(update, dense_bytes));
  }

  std::array<std::size_t, columns> widths{};
  for (const Row& row : rows)
    for (std::size_t column = 0; column < columns; ++column)
      widths[column] = std::max(widths[column], row[column].size());

  std::string text;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::string line;
    for (std::size_t column = 0; column < columns; ++column)
      line += fmt::format("{}{:>{}}", column == 0 ? "" : " ", rows[row][column], widths[column]);
    text.append(line, 0, line.find_last_not_of(' ') + 1);
    text += '\n';
    if (row == 1)
      text.append(line.size(), '-') += '\n';
  }
  return text + "times in milliseconds; of dense: bytes sent against the seed, which carries every value\n";
}

} // namespace deltawire::replay
