// A whole-pipeline case as data: a topology, the values of each version, and where every single element lies on both
// sides. Places are lists of numbers, written by hand or made by loops: nothing here knows the product's layout code.
#pragma once

#include "deltawire/deltawire.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::test {

/// Values of a tensor, by flat index, as bits (zero-extended).
struct Values {
  std::string name;
  DType dtype = DType::bf16;
  std::vector<std::uint64_t> bits;
};

/// Where an element of a local buffer comes from.
struct Place {
  static constexpr std::uint32_t padding = ~0u;
  std::uint32_t tensor = padding; ///< index into Scenario::tensors
  std::uint64_t flat = 0;
};

/// A parameter as one rank or worker holds it.
struct Held {
  std::string parameter;
  DType dtype = DType::bf16;
  std::vector<std::int64_t> full_shape; ///< trainer only
  std::vector<std::int64_t> local_shape;
  std::vector<std::int64_t> strides; ///< empty: row-major
  std::int64_t offset = 0;           ///< of the first element in its memory, elements
  std::vector<Place> elements;       ///< row-major over the local shape
  /// Trainer only: the flat interval that the rank declares, begin and end.
  std::optional<std::pair<std::int64_t, std::int64_t>> flat{};
};

struct Edit {
  std::uint32_t tensor = 0;
  std::vector<std::uint64_t> at;   ///< flat indices
  std::vector<std::uint64_t> bits; ///< as many
};

struct ScenarioUpdate {
  std::vector<Edit> edits;
  std::int64_t changed = -1;  ///< expected Outcome::changed; -1: not told
  std::int64_t gathered = -1; ///< the most that Outcome::gather_bytes may be; -1: not told
  bool fresh_session = false; ///< everyone restarts before this update
};

struct Scenario {
  std::string title;
  std::string topology;                                   ///< TOML
  std::vector<std::pair<std::string, std::string>> files; ///< name and text of what the topology includes
  std::vector<Values> tensors;
  std::vector<std::vector<Held>> ranks;
  std::vector<std::vector<Held>> workers;
  std::vector<ScenarioUpdate> updates;
  std::vector<std::string> refused;                      ///< parts of the message when the agreement must be refused
  std::vector<std::vector<std::string>> rank_settings{}; ///< overrides of one rank, where there are any
};

/// Reads a file of tests/scenarios (format: README.md there). Throws std::runtime_error with the file's name.
[[nodiscard]] Scenario read_scenario(const std::string& path);

} // namespace deltawire::test
