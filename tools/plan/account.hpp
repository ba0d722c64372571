// Everything that `deltawire plan` says, before it is text, and the three ways to say it. Pure.
#pragma once

#include "coverage.hpp"
#include "graph.hpp"
#include "memory.hpp"

#include <optional>
#include <string>
#include <vector>

namespace deltawire::plan {

struct Account {
  config::Topology topology;
  Graph graph;
  std::optional<Coverage> coverage; ///< with a checkpoint
  Memory memory;
  std::vector<std::string> remarks;
  std::vector<std::string> trusted_planes;
};

/// Requires caps that sync::piece_limit() accepts.
[[nodiscard]] Account account_of(config::Topology topology, std::optional<Coverage> coverage);

/// For people: plain ASCII, at most 120 columns but for long names. Ends with a newline.
[[nodiscard]] std::string text_of(const Account& account);

/// The actor graph for Graphviz.
[[nodiscard]] std::string dot_of(const Account& account);

/// The same facts as JSON; a cap that is unlimited is null.
[[nodiscard]] std::string json_of(const Account& account);

} // namespace deltawire::plan
