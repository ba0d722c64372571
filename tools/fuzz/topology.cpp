// A topology file: TOML, then typed configuration, then the compiled rules of both sides.
#include "config/topology.hpp"

#include "layout/side.hpp"
#include "scratch_file.hpp"
#include "target.hpp"
#include "topology_text.hpp"

#include <cstdio>

namespace deltawire::fuzz {
namespace {

/// Rules that do not compile are refused, and that is all that can be asked of them here.
void compile(const layout::SideRules& rules, layout::Side::Role role) {
  const auto side = layout::Side::compile(rules, role);
  require(side.has_value() || !side.error().message.empty(), "who refuses rules says why");
}

} // namespace

bool accepts(std::span<const std::byte> input) {
  const std::string path = scratch_file("topology.toml", input);
  Result<config::Topology> topology;
  {
    // Errors name their file and key, and each value may have one.
    const AllocationBound bound((std::size_t{1} << 20) + 4096 * input.size());
    topology = config::load(path);
  }
  if (!topology) {
    require(topology.error().code == Code::invalid_topology || topology.error().code == Code::unsupported,
            "a bad topology has a code of its own");
    require(topology.error().message.starts_with(path), "the error names the file");
    return false;
  }
  const std::string text = topology_text(*topology);
  const auto again = config::load(scratch_file("again.toml", std::as_bytes(std::span(text))));
  if (!again)
    std::fprintf(stderr, "%s\n%s\n", text.c_str(), again.error().message.c_str());
  require(again.has_value(), "a topology that was read can be written and read");
  require(config::fingerprint(*again) == config::fingerprint(*topology), "a topology comes back as it was");
  require(again->transport.master == topology->transport.master, "the master's address comes back");
  compile(topology->trainer, layout::Side::Role::trainer);
  compile(topology->worker, layout::Side::Role::worker);
  return true;
}

} // namespace deltawire::fuzz
