// What a run starts from, opened and checked before anything starts: the topology and the trainer's checkpoints.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "config/topology.hpp"
#include "layout/plan.hpp"
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

/// Opens the checkpoints, one a version, each a file, an index or a folder (see Checkpoint::open); a path given twice
/// is opened once. Requires at least one path. Fails, naming path and tensor, on what is no checkpoint, on one without
/// tensors, and on tensors whose names, dtypes or shapes differ from the first one's.
[[nodiscard]] Result<std::vector<checkpoint::Checkpoint>> open_checkpoints(std::span<const std::string> paths);

/// What ranks and workers agree on at start-up.
struct AgreedLayout {
  std::vector<layout::Declaration> ranks;   ///< what each rank provides
  std::vector<layout::Declaration> workers; ///< what each worker reads
  layout::Plan plan;
};

/// Compiles the trainer's tensors and the rules of both sides, as the agreement does: what every rank provides, what
/// every worker reads, and that the one covers the other. All errors at once, as far as one does not hide the next.
[[nodiscard]] Result<AgreedLayout> compile_layout(const Sides& sides, const checkpoint::Checkpoint& first);

/// compile_layout(), for its errors only.
[[nodiscard]] Result<void> check_layout(const Sides& sides, const checkpoint::Checkpoint& first);

} // namespace deltawire::replay
