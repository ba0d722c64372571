#include "actors/opening.hpp"

#include "kernels/cuda/pointer.hpp"

#include <atomic>
#include <cstdlib>
#include <unistd.h>

namespace deltawire::actors {

config::Environment environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string master_address(const config::Topology& topology) {
  // A given master is used as written: between objects of one process it is a name.
  if (!topology.transport.master.empty())
    return topology.transport.master;
  return to_string(value_or_throw(config::master_from_environment(topology, environment())));
}

void require_port(const std::string& master, config::TransportKind kind, bool adopted) {
  if (kind != config::TransportKind::inproc && !adopted && master.ends_with(":0"))
    throw Error(
      Code::invalid_topology,
      fmt::format("transport.master: {}: port 0 is for one command that starts all processes: give a port that every "
                  "process knows",
                  master));
}

void require_host_memory(const std::string& call, const void* memory) {
  if (const auto device = kernels::cuda::device_of(memory))
    throw Error(
      Code::unsupported,
      fmt::format("{}: its memory is of GPU {}, and sessions read and write memory of the host only: hand over "
                  "a copy there",
                  call, *device));
}

std::shared_ptr<telemetry::Recorder> make_recorder(const config::Topology& topology, const std::string& process) {
  if (topology.telemetry.trace.empty())
    return std::make_shared<telemetry::Recorder>();
  // Ranks and workers of one process are processes of the view, too: numbers past those that the system gives.
  static std::atomic<std::int64_t> recorders{0};
  throw_failure(telemetry::check_trace_path(topology.telemetry.trace, process));
  constexpr std::int64_t most_pids = 1 << 22;
  return std::make_shared<telemetry::Recorder>(process, ::getpid() + most_pids * recorders++);
}

} // namespace deltawire::actors
