#include "topology_text.hpp"

namespace deltawire::replay::proof {
namespace {

AxesByName text_of(const std::vector<layout::JoinedAxis>& axes) {
  AxesByName text;
  for (const layout::JoinedAxis& axis : axes)
    text.emplace_back(axis.name, axis.axes);
  return text;
}

NumbersByAxis text_of(const std::vector<layout::AxisNumbers>& numbers) {
  NumbersByAxis text;
  for (const layout::AxisNumbers& of_axis : numbers)
    text.emplace_back(of_axis.axis, of_axis.numbers);
  return text;
}

CutsText text_of(const std::vector<std::string>& shard, const layout::CutOptions& options) {
  return {shard, text_of(options.sizes), text_of(options.on), text_of(options.axes)};
}

PlacementText text_of(const layout::PlacementRule& rule) {
  PlacementText text;
  text.parameter = rule.parameter;
  text.cuts = text_of(rule.shard, rule.options);
  text.where = rule.where;
  if (rule.wire_dtype)
    text.wire_dtype = layout::to_string(*rule.wire_dtype);
  return text;
}

MapText text_of(const layout::MapRule& rule) {
  MapText text;
  text.parameter = rule.parameter;
  text.slot = rule.slot;
  text.view = rule.view;
  text.slice = rule.slice;
  text.slot_view = rule.slot_view;
  text.slot_slice = rule.slot_slice;
  text.permute = rule.permute;
  text.transpose = rule.transpose;
  if (rule.shard)
    text.own = text_of(*rule.shard, rule.options);
  text.where = rule.where;
  return text;
}

} // namespace

SideText text_of(const layout::SideRules& side) {
  SideText text;
  for (const layout::Axis& axis : side.mesh.axes())
    text.mesh.emplace_back(axis.name, axis.size);
  for (const layout::PlacementRule& rule : side.placements)
    text.placements.push_back(text_of(rule));
  for (const layout::MapRule& rule : side.maps)
    text.maps.push_back(text_of(rule));
  for (const layout::ParameterRule& rule : side.parameters)
    text.parameters.push_back({rule.name, rule.shape, rule.padding});
  text.unused = side.unused;
  text.axes = text_of(side.axes);
  text.wire_dtype = layout::to_string(side.wire_dtype);
  return text;
}

} // namespace deltawire::replay::proof
