// Prometheus's text format, read: as much of it as any exporter writes (version 0.0.4). Pure.
#pragma once

#include "result.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::top {

struct Series {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;

  /// The label's value; empty where there is none.
  [[nodiscard]] const std::string& label(const std::string& key) const;
};

/// All series of a text, in its order. Comments and timestamps are skipped. Fails with Code::invalid_input, naming the
/// line that makes no sense.
[[nodiscard]] Result<std::vector<Series>> parse_metrics(std::string_view text);

} // namespace deltawire::top
