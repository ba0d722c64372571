// The fingerprint of a topology: XXH3 over a canonical text in which every setting has a name and every string its
// length, so that two topologies have the same text only if they agree.
#include "config/topology.hpp"

#include <xxhash.h>

namespace deltawire::config {

namespace {

class CanonicalText {
public:
  void add(std::string_view name, std::string_view value) {
    text_ += fmt::format("{}={}:{}\n", name, value.size(), value);
  }

  void add(std::string_view name, std::uint64_t value) { text_ += fmt::format("{}={}\n", name, value); }

  void add(std::string_view name, Duration value) { text_ += fmt::format("{}={}ns\n", name, value.count()); }

  void add(std::string_view name, const std::vector<std::string>& values) {
    add(name, values.size());
    for (const std::string& value : values)
      add("-", value);
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
  std::string text_;
};

void add_axes(CanonicalText& canonical, const std::vector<layout::JoinedAxis>& axes) {
  canonical.add("axes", axes.size());
  for (const layout::JoinedAxis& joined : axes) {
    canonical.add("axis", joined.name);
    canonical.add("joins", joined.axes);
  }
}

void add_numbers(CanonicalText& canonical, std::string_view name, const std::vector<layout::AxisNumbers>& numbers) {
  canonical.add(name, numbers.size());
  for (const layout::AxisNumbers& one : numbers) {
    canonical.add("axis", one.axis);
    canonical.add("numbers", layout::to_string(one.numbers));
  }
}

void add_options(CanonicalText& canonical, const layout::CutOptions& options) {
  add_numbers(canonical, "sizes", options.sizes);
  add_axes(canonical, options.axes);
  add_numbers(canonical, "on", options.on);
}

void add_side(CanonicalText& canonical, std::string_view name, const layout::SideRules& side) {
  canonical.add("side", name);
  canonical.add("mesh", side.mesh.axes().size());
  for (const layout::Axis& axis : side.mesh.axes()) {
    canonical.add("axis", axis.name);
    canonical.add("size", static_cast<std::uint64_t>(axis.size));
  }
  add_axes(canonical, side.axes);
  canonical.add("placements", side.placements.size());
  for (const layout::PlacementRule& rule : side.placements) {
    canonical.add("parameter", rule.parameter);
    canonical.add("shard", rule.shard);
    add_options(canonical, rule.options);
    canonical.add("wire_dtype", rule.wire_dtype ? to_string(*rule.wire_dtype) : "the side's");
  }
  canonical.add("maps", side.maps.size());
  for (const layout::MapRule& rule : side.maps) {
    canonical.add("parameter", rule.parameter);
    canonical.add("slot", rule.slot);
    canonical.add("view", rule.view);
    canonical.add("slice", rule.slice);
    canonical.add("transpose", rule.transpose ? 1u : 0u);
    canonical.add("permute", layout::to_string(rule.permute));
    canonical.add("slot_view", rule.slot_view);
    canonical.add("slot_slice", rule.slot_slice);
    canonical.add("own shard", rule.shard ? 1u : 0u);
    if (rule.shard)
      canonical.add("shard", *rule.shard);
    add_options(canonical, rule.options);
  }
  canonical.add("parameters", side.parameters.size());
  for (const layout::ParameterRule& rule : side.parameters) {
    canonical.add("name", rule.name);
    canonical.add("shape", rule.shape ? layout::to_string(*rule.shape) : std::string{"none"});
    canonical.add("padding", rule.padding ? 1u : 0u);
  }
  canonical.add("unused", side.unused);
  canonical.add("wire_dtype", to_string(side.wire_dtype));
}

} // namespace

std::uint64_t fingerprint(const Topology& topology) {
  CanonicalText canonical;
  canonical.add("format", "deltawire topology 1");
  add_side(canonical, "trainer", topology.trainer);
  add_side(canonical, "worker", topology.worker);

  const Update& update = topology.update;
  canonical.add("connect", update.connect); // not `reconnect`: each worker's own patience
  canonical.add("stall", update.stall);
  canonical.add("engine", update.engine);
  canonical.add("timeout", update.timeout);
  canonical.add("busy", static_cast<std::uint64_t>(update.busy));
  canonical.add("quorum", std::uint64_t{update.quorum});
  canonical.add("seed", static_cast<std::uint64_t>(update.seed));
  canonical.add("verify", static_cast<std::uint64_t>(update.verify));
  canonical.add("audit_every", update.audit_every);

  const Actors& actors = topology.actors;
  canonical.add("snapshotter.tier", static_cast<std::uint64_t>(actors.snapshotter.tier));
  canonical.add("snapshotter.log", actors.snapshotter.log);
  canonical.add("differ.count", std::uint64_t{actors.differ.count});
  canonical.add("differ.chunk", actors.differ.chunk);
  canonical.add("differ.inflight", actors.differ.inflight);
  canonical.add("differ.thread", static_cast<std::uint64_t>(actors.differ.thread));
  canonical.add("gather_queue.transport", static_cast<std::uint64_t>(actors.gather_queue.transport));
  canonical.add("gather_queue.window", actors.gather_queue.window);
  canonical.add("gather_queue.max_round", actors.gather_queue.max_round);
  canonical.add("flush_bucket.cap", actors.flush_bucket.cap);
  canonical.add("flush_bucket.positions", static_cast<std::uint64_t>(actors.flush_bucket.positions));
  canonical.add("flush_bucket.values", static_cast<std::uint64_t>(actors.flush_bucket.values));
  canonical.add("flush_bucket.compression", static_cast<std::uint64_t>(actors.flush_bucket.compression));
  canonical.add("sender.transport", static_cast<std::uint64_t>(actors.sender.transport));
  canonical.add("sender.route", static_cast<std::uint64_t>(actors.sender.route));
  canonical.add("applier.stage", actors.applier.stage);

  return XXH3_64bits(canonical.text().data(), canonical.text().size());
}

} // namespace deltawire::config
