// What a run starts from, opened and checked before anything starts: the topology and the trainer's checkpoints.
#pragma once

#include "checkpoint/safetensors.hpp"
#include "config/topology.hpp"
#include "layout/side.hpp"

#include <span>
#include <string>
#include <vector>

namespace deltawire::replay {

/// The topology file with both sides compiled.
struct Sides {
  config::Topology topology;
  layout::Side trainer;
  layout::Side worker;

  [[nodiscard]] std::uint32_t ranks() const noexcept { return static_cast<std::uint32_t>(trainer.mesh().size()); }
  [[nodiscard]] std::uint32_t workers() const noexcept { return static_cast<std::uint32_t>(worker.mesh().size()); }
};

/// Fails with every error of the file and of both sides' rules.
[[nodiscard]] Result<Sides> open_sides(const std::string& topology, std::span<const std::string> overrides);

/// Opens the files, one a version; a path given twice is opened once. Requires at least one path. Fails, naming file
/// and tensor, on a file that is none and on tensors whose names, dtypes or shapes differ from the first file's.
[[nodiscard]] Result<std::vector<checkpoint::File>> open_checkpoints(std::span<const std::string> paths);

/// Checks that the trainer's tensors and the rules of both sides fit together: what every rank provides, what every
/// worker reads, and that the one covers the other. All errors at once.
[[nodiscard]] Result<void> check_layout(const Sides& sides, const checkpoint::File& first);

} // namespace deltawire::replay
