// Who am I, where is the root: read from the launcher's environment variables. Pure: the environment is a callable, so
// that tests need none, and nothing is looked up or cached.
#pragma once

#include "config/address.hpp"
#include "config/topology.hpp"

#include <functional>
#include <optional>
#include <string>

namespace deltawire::config {

/// The value of an environment variable, nothing where it is not set. A variable that is set but empty counts as not
/// set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// One process among those of its side.
struct Seat {
  std::uint32_t rank = 0;  ///< 0 <= rank < world
  std::uint32_t world = 1; ///< processes of this side

  friend bool operator==(const Seat&, const Seat&) = default;
};

struct Launch {
  Seat seat;
  Address master; ///< where the root listens

  friend bool operator==(const Launch&, const Launch&) = default;
};

/// The first pair that has a variable set: RANK and WORLD_SIZE, OMPI_COMM_WORLD_RANK and _SIZE, SLURM_PROCID and
/// SLURM_NTASKS. Fails where none is set, where one of a pair is missing or no number, and where rank >= world.
[[nodiscard]] Result<Seat> seat_from_environment(const Environment& environment);

/// transport.master, else DELTAWIRE_MASTER ("host:port"), else MASTER_ADDR (a host) with deltawire's own port:
/// MASTER_PORT belongs to torchrun's store. Fails where none is set, unless both transports are "inproc", which only
/// need a name to meet by; and as parse_master does.
[[nodiscard]] Result<Address> master_from_environment(const Topology& topology, const Environment& environment);

/// Both, for a process of the side whose mesh is given (topology.trainer.mesh or topology.worker.mesh). Fails as they
/// do, and where the launcher started another number of processes than the mesh has.
[[nodiscard]] Result<Launch> launch_from_environment(const Topology& topology, const layout::Mesh& mesh,
                                                     const Environment& environment);

} // namespace deltawire::config
