#include "config/launch.hpp"

#include <array>
#include <charconv>

namespace deltawire::config {

namespace {

struct LauncherVariables {
  const char* rank;
  const char* world;
};

constexpr std::array<LauncherVariables, 3> launchers{{
  {"RANK", "WORLD_SIZE"},
  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
  {"SLURM_PROCID", "SLURM_NTASKS"},
}};

std::optional<std::string> lookup(const Environment& environment, const std::string& name) {
  auto value = environment(name);
  if (value && value->empty())
    return std::nullopt;
  return value;
}

Result<std::uint32_t> read_number(const std::string& name, const std::string& text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size())
    return fail(Code::invalid_argument, "environment: {}=\"{}\" is not a number of 0 to 4294967295", name, text);
  return number;
}

} // namespace

Result<Seat> seat_from_environment(const Environment& environment) {
  for (const auto& [rank_name, world_name] : launchers) {
    const auto rank_text = lookup(environment, rank_name);
    const auto world_text = lookup(environment, world_name);
    if (!rank_text && !world_text)
      continue;
    if (!rank_text || !world_text)
      return fail(Code::invalid_argument, "environment: {} is set but {} is not; set both, or pass the identity",
                  rank_text ? rank_name : world_name, rank_text ? world_name : rank_name);
    auto rank = read_number(rank_name, *rank_text);
    if (!rank)
      return pass_on(std::move(rank));
    auto world = read_number(world_name, *world_text);
    if (!world)
      return pass_on(std::move(world));
    if (*rank >= *world)
      return fail(Code::invalid_argument, "environment: {}={} must be below {}={}", rank_name, *rank, world_name,
                  *world);
    return Seat{*rank, *world};
  }
  return fail(
    Code::invalid_argument,
    "environment: no rank: set RANK and WORLD_SIZE (torchrun does), or start under mpirun "
    "(OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE) or srun (SLURM_PROCID, SLURM_NTASKS), or pass the identity");
}

Result<Address> master_from_environment(const Topology& topology, const Environment& environment) {
  const bool encrypted = !topology.transport.secret_file.empty();
  const auto named = [](std::string_view name, Result<Address> address) -> Result<Address> {
    if (!address)
      return fail(address.error().code, "{}: {}", name, address.error().message);
    return address;
  };
  if (!topology.transport.master.empty())
    return named(fmt::format("{}: transport.master", topology.file),
                 parse_master(topology.transport.master, encrypted));
  if (const auto master = lookup(environment, "DELTAWIRE_MASTER"))
    return named("environment: DELTAWIRE_MASTER", parse_master(*master, encrypted));
  if (const auto host = lookup(environment, "MASTER_ADDR")) {
    const bool needs_brackets = host->find(':') != std::string::npos && !host->starts_with('[');
    const std::string text = fmt::format(fmt::runtime(needs_brackets ? "[{}]:{}" : "{}:{}"), *host, default_port);
    return named("environment: MASTER_ADDR", parse_master(text, encrypted));
  }
  // Whoever shares a process needs no address, only the same name for the meeting.
  if (topology.actors.gather_queue.transport == TransportKind::inproc &&
      topology.actors.sender.transport == TransportKind::inproc)
    return Address{"127.0.0.1", default_port};
  return fail(Code::invalid_argument,
              "{}: transport.master: no address of the root: set it, or DELTAWIRE_MASTER=host:port in the environment, "
              "or MASTER_ADDR=host (port {})",
              topology.file, default_port);
}

Result<Launch> launch_from_environment(const Topology& topology, const layout::Mesh& mesh,
                                       const Environment& environment) {
  auto seat = seat_from_environment(environment);
  if (!seat)
    return pass_on(std::move(seat));
  if (static_cast<layout::Index>(seat->world) != mesh.size())
    return fail(Code::invalid_topology,
                "{}: the mesh has {} processes but the launcher started {}; make the mesh and the launch agree",
                topology.file, mesh.size(), seat->world);
  auto master = master_from_environment(topology, environment);
  if (!master)
    return pass_on(std::move(master));
  return Launch{*seat, std::move(*master)};
}

} // namespace deltawire::config
