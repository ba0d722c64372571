// A whole job in one thread: sessions of a trainer one after the other, replicas of workers, the network between them,
// and what goes wrong, all drawn from one number. After the faults everything that is left to itself must heal.
#pragma once

#include "trainer.hpp"

#include <string>

namespace deltawire::simulation {

struct Verdict {
  std::optional<Clause> broken; ///< nothing: every promise was kept
  std::string message;
};

/// Runs one schedule. `counts` adds up; `told`: what happens is printed.
[[nodiscard]] Verdict run_schedule(std::uint64_t schedule, Counts& counts, Planted planted = Planted::none,
                                   bool told = false);

} // namespace deltawire::simulation
