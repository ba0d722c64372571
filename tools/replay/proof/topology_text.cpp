#include "topology_text.hpp"

namespace deltawire::replay::proof {
namespace {

PlacementText text_of(const layout::PlacementRule& rule) {
  PlacementText text;
  text.parameter = rule.parameter;
  text.cuts.shard = rule.shard;
  text.where = rule.where;
  return text;
}

MapText text_of(const layout::MapRule& rule) {
  MapText text;
  text.parameter = rule.parameter;
  text.slot = rule.slot;
  text.view = rule.view;
  text.slice = rule.slice;
  text.transpose = rule.transpose;
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
  return text;
}

} // namespace deltawire::replay::proof
