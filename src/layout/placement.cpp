#include "layout/placement.hpp"

#include <algorithm>
#include <charconv>

namespace deltawire::layout {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos)
    return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

Result<Cut> parse_cut(std::string_view text, const Mesh& mesh) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return fail(Code::invalid_topology, "cut '{}': expected \"axis:dim\" or \"axis:dim by slice\"", text);
  const std::string_view axis = trimmed(text.substr(0, colon));
  std::string_view rest = trimmed(text.substr(colon + 1));
  Cut cut;
  if (const auto found = mesh.find(axis)) {
    cut.axis = *found;
  } else {
    std::string known;
    for (const Axis& a : mesh.axes())
      known += (known.empty() ? "" : ", ") + a.name;
    return fail(Code::invalid_topology, "cut '{}': the mesh has no axis '{}' (it has: {})", text, axis,
                known.empty() ? "none" : known);
  }
  if (rest == "flat" || rest.substr(0, 5) == "flat ")
    return fail(Code::unsupported, "cut '{}' of axis '{}': 'flat' is not supported yet", text, axis);
  const char* end = rest.data() + rest.size();
  const auto [after, error] = std::from_chars(rest.data(), end, cut.dim);
  if (error != std::errc{} || cut.dim < 0 || (after != end && *after != ' '))
    return fail(Code::invalid_topology, "cut '{}' of axis '{}': the dim is no whole number from 0", text, axis);
  rest = trimmed(rest.substr(static_cast<std::size_t>(after - rest.data())));
  if (rest.empty())
    return cut;
  if (rest == "cyclic")
    return fail(Code::unsupported, "cut '{}' of axis '{}': 'cyclic' is not supported yet", text, axis);
  if (rest.substr(0, 2) == "by" && rest.size() > 2 && (rest[2] == ' ' || rest[2] == '[')) {
    const std::string_view what = trimmed(rest.substr(2));
    if (what == "slice") {
      cut.by_slice = true;
      return cut;
    }
    if (!what.empty() && what.front() == '[')
      return fail(Code::unsupported, "cut '{}' of axis '{}': named segments ('by [..]') are not supported yet", text,
                  axis);
  }
  return fail(Code::invalid_topology, "cut '{}' of axis '{}': '{}' is not known; only 'by slice' may follow the dim",
              text, axis, rest);
}

/// The piece of `length` positions that `coordinate` of `world` holds: begin and end.
Span ceil_piece(Index length, Index world, Index coordinate) {
  const Index piece = length / world + (length % world != 0 ? 1 : 0);
  // clamped before multiplying past the end, so that ranks behind the last piece are empty
  const Index begin = piece == 0 || coordinate > length / piece ? length : std::min(length, coordinate * piece);
  return {begin, std::min(length, begin + piece)};
}

/// Takes global..: keeps [begin, end) of the packed local positions.
std::vector<Interval> take_local(const std::vector<Interval>& held, Span range) {
  std::vector<Interval> result;
  Index local = 0;
  for (const Interval& interval : held) {
    const Index begin = std::max(interval.local, range.begin);
    const Index end = std::min(interval.local + interval.length, range.end);
    if (begin >= end)
      continue;
    result.push_back({interval.global + (begin - interval.local), local, end - begin});
    local += end - begin;
  }
  return result;
}

std::vector<Interval> take_each(const std::vector<Interval>& held, Index world, Index coordinate) {
  std::vector<Interval> result;
  Index local = 0;
  for (const Interval& interval : held) {
    const Span piece = ceil_piece(interval.length, world, coordinate);
    if (piece.begin == piece.end)
      continue;
    result.push_back({interval.global + piece.begin, local, piece.end - piece.begin});
    local += piece.end - piece.begin;
  }
  return result;
}

std::vector<Interval> joined(const std::vector<Interval>& held) {
  std::vector<Interval> result;
  for (const Interval& interval : held) {
    if (!result.empty() && result.back().global + result.back().length == interval.global)
      result.back().length += interval.length;
    else
      result.push_back(interval);
  }
  return result;
}

Index total(const std::vector<Interval>& held) {
  return held.empty() ? 0 : held.back().local + held.back().length;
}

} // namespace

Result<Placement> Placement::compile(const PlacementRule& rule, const Mesh& mesh) {
  Placement placement;
  placement.where = rule.where;
  auto pattern = Pattern::parse(rule.parameter);
  if (!pattern)
    return fail(pattern.error().code, "{}: {}", rule.where, pattern.error().message);
  placement.parameter = std::move(*pattern);
  for (const std::string& text : rule.shard) {
    auto cut = parse_cut(text, mesh);
    if (!cut)
      return fail(cut.error().code, "{}: placement of '{}': {}", rule.where, rule.parameter, cut.error().message);
    for (const Cut& before : placement.cuts) {
      if (before.axis == cut->axis)
        return fail(Code::invalid_topology, "{}: placement of '{}': axis '{}' cuts twice", rule.where, rule.parameter,
                    mesh.axes()[cut->axis].name);
      if (before.dim == cut->dim && cut->by_slice && !before.by_slice)
        return fail(Code::invalid_topology,
                    "{}: placement of '{}': axis '{}' cuts dim {} by slice after axis '{}' cut it whole; put by-slice "
                    "cuts first",
                    rule.where, rule.parameter, mesh.axes()[cut->axis].name, cut->dim, mesh.axes()[before.axis].name);
    }
    placement.cuts.push_back(*cut);
  }
  return placement;
}

Result<Shard> shard_by(const Placement* placement, const Mesh& mesh, const std::string& name, const Shape& full_shape,
                       Index rank, const SegmentsOfDim& segments) {
  const std::vector<Index> coordinates = mesh.coordinates(rank);
  std::vector<bool> replicates(coordinates.size(), true);
  Shard shard;
  shard.full_shape = full_shape;
  for (Index extent : full_shape)
    shard.dims.push_back(extent > 0 ? std::vector<Interval>{{0, 0, extent}} : std::vector<Interval>{});
  if (placement != nullptr && !full_shape.empty()) { // a scalar is never cut
    std::vector<bool> segmented(full_shape.size(), false);
    for (const Cut& cut : placement->cuts) {
      const Axis& axis = mesh.axes()[cut.axis];
      if (cut.dim >= static_cast<Index>(full_shape.size()))
        return fail(Code::invalid_topology, "{}: axis '{}' cuts dim {} of parameter '{}', which has shape {}",
                    placement->where, axis.name, cut.dim, name, to_string(full_shape));
      const auto d = static_cast<std::size_t>(cut.dim);
      replicates[cut.axis] = false;
      const Index coordinate = coordinates[cut.axis];
      if (!cut.by_slice) {
        shard.dims[d] = take_local(shard.dims[d], ceil_piece(total(shard.dims[d]), axis.size, coordinate));
        continue;
      }
      if (!segmented[d]) {
        auto spans = segments(d);
        if (!spans)
          return fail(spans.error().code, "{}: axis '{}' cuts dim {} of parameter '{}' {} by slice: {}",
                      placement->where, axis.name, cut.dim, name, to_string(full_shape), spans.error().message);
        shard.dims[d].clear();
        for (const Span& span : *spans)
          shard.dims[d].push_back({span.begin, span.begin, span.end - span.begin});
        segmented[d] = true;
      }
      shard.dims[d] = take_each(shard.dims[d], axis.size, coordinate);
    }
  }
  for (auto& held : shard.dims) {
    held = joined(held);
    shard.local_shape.push_back(total(held));
  }
  for (std::size_t a = 0; a < coordinates.size(); ++a)
    shard.owner = shard.owner && (!replicates[a] || coordinates[a] == 0);
  return shard;
}

} // namespace deltawire::layout
