#include "layout/placement.hpp"

#include "layout/linear.hpp"

#include <algorithm>
#include <charconv>

namespace deltawire::layout {
namespace {

/// What a cyclic cut may deal to one rank: each position is a stretch of its own.
constexpr Index most_dealt = Index{1} << 18;

/// A whole number at the front of `text`, which loses it.
std::optional<Index> take_number(std::string_view& text) {
  Index value = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || value < 0)
    return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(after - text.data()));
  return value;
}

/// "[2048, 1024]": whole numbers from 1.
std::optional<std::vector<Index>> parse_lengths(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']')
    return std::nullopt;
  std::string_view rest = text.substr(1, text.size() - 2);
  std::vector<Index> lengths;
  for (;;) {
    rest = trimmed(rest);
    const auto length = take_number(rest);
    if (!length || *length < 1 || *length > Index{1} << 61)
      return std::nullopt;
    lengths.push_back(*length);
    rest = trimmed(rest);
    if (rest.empty())
      return lengths;
    if (rest.front() != ',')
      return std::nullopt;
    rest.remove_prefix(1);
  }
}

Result<AxisGroup> find_axis(std::string_view name, const Mesh& mesh, std::span<const AxisGroup> joined) {
  if (const auto found = mesh.find(name))
    return AxisGroup{std::string{name}, {*found}, mesh.axes()[*found].size};
  const auto group =
    std::find_if(joined.begin(), joined.end(), [&](const AxisGroup& known) { return known.name == name; });
  if (group != joined.end())
    return *group;
  std::string known;
  for (const Axis& axis : mesh.axes())
    known += (known.empty() ? "" : ", ") + axis.name;
  for (const AxisGroup& one : joined)
    known += (known.empty() ? "" : ", ") + one.name;
  return fail(Code::invalid_topology, "the mesh has no axis '{}' (it has: {})", name, known.empty() ? "none" : known);
}

Result<void> join_into(std::vector<AxisGroup>& joined, std::span<const JoinedAxis> axes, const Mesh& mesh) {
  for (const JoinedAxis& axis : axes) {
    if (axis.name.empty() || axis.axes.empty())
      return fail(Code::invalid_topology, "axes: '{}' joins nothing; give it a name and at least one axis of the mesh",
                  axis.name);
    if (mesh.find(axis.name) ||
        std::any_of(joined.begin(), joined.end(), [&](const AxisGroup& known) { return known.name == axis.name; }))
      return fail(Code::invalid_topology, "axes: '{}' is the name of another axis; names must differ", axis.name);
    AxisGroup group{axis.name, {}, 1};
    for (const std::string& name : axis.axes) {
      auto part = find_axis(name, mesh, {}); // only axes of the mesh: a list of lists says nothing more
      if (!part)
        return fail(part.error().code, "axes: '{}': {}", axis.name, part.error().message);
      if (std::find(group.axes.begin(), group.axes.end(), part->axes.front()) != group.axes.end())
        return fail(Code::invalid_topology, "axes: '{}' joins axis '{}' twice", axis.name, name);
      group.axes.push_back(part->axes.front());
      group.size *= part->size;
    }
    joined.push_back(std::move(group));
  }
  return {};
}

Result<Cut> parse_cut(std::string_view text, const Mesh& mesh, std::span<const AxisGroup> joined) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return fail(Code::invalid_topology, "cut '{}': expected \"axis:dim\" or \"axis:dim by slice\"", text);
  const std::string_view axis = trimmed(text.substr(0, colon));
  std::string_view rest = trimmed(text.substr(colon + 1));
  Cut cut;
  auto group = find_axis(axis, mesh, joined);
  if (!group)
    return fail(group.error().code, "cut '{}': {}", text, group.error().message);
  cut.axis = std::move(*group);
  if (rest == "flat") {
    cut.kind = Cut::Kind::flat;
    return cut;
  }
  const auto dim = take_number(rest);
  if (!dim || (!rest.empty() && rest.front() != ' '))
    return fail(Code::invalid_topology, "cut '{}' of axis '{}': the dim is neither a whole number from 0 nor 'flat'",
                text, axis);
  cut.dim = *dim;
  rest = trimmed(rest);
  if (rest.empty())
    return cut;
  if (rest == "cyclic") {
    cut.kind = Cut::Kind::cyclic;
    return cut;
  }
  if (rest.starts_with("by ") || rest.starts_with("by[")) {
    const std::string_view what = trimmed(rest.substr(2));
    if (what == "slice") {
      cut.kind = Cut::Kind::by_slice;
      return cut;
    }
    if (what.starts_with("[")) {
      auto lengths = parse_lengths(what);
      if (!lengths)
        return fail(Code::invalid_topology,
                    "cut '{}' of axis '{}': '{}' is no list of segments; use whole numbers from 1, as in "
                    "\"by [2048, 1024]\"",
                    text, axis, what);
      cut.kind = Cut::Kind::by_segments;
      cut.segments = std::move(*lengths);
      return cut;
    }
  }
  return fail(Code::invalid_topology,
              "cut '{}' of axis '{}': '{}' is not known; 'by slice', 'by [..]' or 'cyclic' may follow the dim", text,
              axis, rest);
}

/// The first axis of the mesh that both groups have; null where there is none.
const Axis* shared_axis(const AxisGroup& a, const AxisGroup& b, const Mesh& mesh) {
  for (const std::size_t axis : a.axes)
    if (std::find(b.axes.begin(), b.axes.end(), axis) != b.axes.end())
      return &mesh.axes()[axis];
  return nullptr;
}

/// "axis 'tp'", or "axis 'dp' (in 'ep')" where the group has another name.
std::string describe(const Axis& axis, const AxisGroup& group) {
  return group.name == axis.name ? fmt::format("axis '{}'", axis.name)
                                 : fmt::format("axis '{}' (in '{}')", axis.name, group.name);
}

Result<void> check_order(const Cut& cut, std::span<const Cut> before, const Mesh& mesh) {
  for (const Cut& earlier : before) {
    if (const Axis* axis = shared_axis(cut.axis, earlier.axis, mesh))
      return fail(Code::invalid_topology, "{} cuts twice", describe(*axis, cut.axis));
    if (earlier.kind == Cut::Kind::flat) {
      if (cut.kind != Cut::Kind::flat)
        return fail(Code::invalid_topology, "axis '{}' cuts dim {} after axis '{}' cut flat; put flat cuts last",
                    cut.axis.name, cut.dim, earlier.axis.name);
      continue;
    }
    if (cut.kind == Cut::Kind::flat || earlier.dim != cut.dim)
      continue;
    if (cut.segmented() && !earlier.segmented())
      return fail(Code::invalid_topology,
                  "axis '{}' cuts dim {} by slice after axis '{}' cut it whole; put by-slice cuts first", cut.axis.name,
                  cut.dim, earlier.axis.name);
    if (cut.segmented() && (cut.kind != earlier.kind || cut.segments != earlier.segments))
      return fail(Code::invalid_topology, "axis '{}' cuts dim {} by other segments than axis '{}'; name the same ones",
                  cut.axis.name, cut.dim, earlier.axis.name);
  }
  return {};
}

Result<void> read_sizes(Cuts& cuts, std::span<const AxisNumbers> sizes) {
  for (const AxisNumbers& declared : sizes) {
    const auto cut = std::find_if(cuts.cuts.begin(), cuts.cuts.end(),
                                  [&](const Cut& known) { return known.axis.name == declared.axis; });
    if (cut == cuts.cuts.end())
      return fail(Code::invalid_topology, "sizes: no cut is of axis '{}'", declared.axis);
    if (cut->kind == Cut::Kind::cyclic)
      return fail(Code::invalid_topology, "sizes: axis '{}' deals positions one by one; sizes are for pieces",
                  declared.axis);
    if (static_cast<Index>(declared.numbers.size()) != cut->axis.size)
      return fail(Code::invalid_topology, "sizes: {} for axis '{}', which has {} coordinates", declared.numbers.size(),
                  declared.axis, cut->axis.size);
    if (std::any_of(declared.numbers.begin(), declared.numbers.end(), [](Index size) { return size < 0; }))
      return fail(Code::invalid_topology, "sizes: axis '{}' has a negative one in {}", declared.axis,
                  to_string(declared.numbers));
    cut->sizes = declared.numbers;
  }
  return {};
}

Result<void> read_on(Cuts& cuts, std::span<const AxisNumbers> on, const Mesh& mesh, std::span<const AxisGroup> joined) {
  for (const AxisNumbers& named : on) {
    auto group = find_axis(named.axis, mesh, joined);
    if (!group)
      return fail(group.error().code, "on: {}", group.error().message);
    HoldingCoordinates holding{std::move(*group), named.numbers};
    for (const Cut& cut : cuts.cuts)
      if (const Axis* axis = shared_axis(holding.axis, cut.axis, mesh))
        return fail(Code::invalid_topology, "on: {} cuts; sizes of 0 leave a coordinate out of a cut",
                    describe(*axis, holding.axis));
    for (const HoldingCoordinates& other : cuts.on)
      if (const Axis* axis = shared_axis(holding.axis, other.axis, mesh))
        return fail(Code::invalid_topology, "on: {} is named twice", describe(*axis, holding.axis));
    std::sort(holding.coordinates.begin(), holding.coordinates.end());
    if (holding.coordinates.empty())
      return fail(Code::invalid_topology, "on: axis '{}' has no coordinate, so that nobody would hold it", named.axis);
    if (std::adjacent_find(holding.coordinates.begin(), holding.coordinates.end()) != holding.coordinates.end())
      return fail(Code::invalid_topology, "on: a coordinate of axis '{}' is named twice", named.axis);
    if (holding.coordinates.front() < 0 || holding.coordinates.back() >= holding.axis.size)
      return fail(Code::invalid_topology, "on: axis '{}' has the coordinates 0 to {}", named.axis,
                  holding.axis.size - 1);
    cuts.on.push_back(std::move(holding));
  }
  return {};
}

/// The piece of `length` positions that `coordinate` of `world` holds: begin and end.
Span ceil_piece(Index length, Index world, Index coordinate) {
  const Index piece = length / world + (length % world != 0 ? 1 : 0);
  // clamped before multiplying past the end, so that ranks behind the last piece are empty
  const Index begin = piece == 0 || coordinate > length / piece ? length : std::min(length, coordinate * piece);
  return {begin, std::min(length, begin + piece)};
}

/// The same by declared sizes where the cut has them; the failure tells their sum.
Result<Span> piece_of(const Cut& cut, Index length, Index coordinate) {
  if (cut.sizes.empty())
    return ceil_piece(length, cut.axis.size, coordinate);
  Span piece;
  Index sum = 0;
  for (std::size_t c = 0; c < cut.sizes.size(); ++c) {
    if (static_cast<Index>(c) == coordinate)
      piece = {sum, sum + cut.sizes[c]};
    if (cut.sizes[c] > length - sum)
      return fail(Code::invalid_topology, "its sizes {} pass the {} that it cuts", to_string(cut.sizes), length);
    sum += cut.sizes[c];
  }
  if (sum != length)
    return fail(Code::invalid_topology, "its sizes {} sum to {}, and it cuts {}", to_string(cut.sizes), sum, length);
  return piece;
}

using Held = std::vector<Interval>;

Index total(const Held& held) {
  return held.empty() ? 0 : held.back().local + held.back().length;
}

void append(Held& held, Index global, Index length, Index step) {
  if (length > 0)
    held.push_back({global, total(held), length, length == 1 ? 1 : step});
}

/// Keeps [begin, end) of the packed local positions.
Held take_local(const Held& held, Span range) {
  Held result;
  for (const Interval& interval : held) {
    const Index begin = std::max(interval.local, range.begin);
    const Index end = std::min(interval.local + interval.length, range.end);
    append(result, interval.global + (begin - interval.local) * interval.step, end - begin, interval.step);
  }
  return result;
}

/// Keeps the packed local positions that leave `coordinate` over `world`.
Held take_dealt(const Held& held, Index world, Index coordinate) {
  Held result;
  for (const Interval& interval : held) {
    const Index first = (coordinate + world - interval.local % world) % world;
    if (first < interval.length)
      append(result, interval.global + first * interval.step, (interval.length - 1 - first) / world + 1,
             interval.step * world);
  }
  return result;
}

Held joined(const Held& held) {
  Held result;
  for (const Interval& interval : held) {
    if (!result.empty()) {
      Interval& last = result.back();
      if (last.step == 1 && interval.step == 1 && last.global + last.length == interval.global) {
        last.length += interval.length;
        continue;
      }
    }
    result.push_back(interval);
  }
  return result;
}

std::vector<const Cut*> cuts_of_dim(const Cuts& cuts, std::size_t dim) {
  std::vector<const Cut*> result;
  for (const Cut& cut : cuts.cuts)
    if (cut.kind != Cut::Kind::flat && cut.dim == static_cast<Index>(dim))
      result.push_back(&cut);
  return result;
}

bool same_cuts(const std::vector<const Cut*>& a, const std::vector<const Cut*>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Cut* x, const Cut* y) {
    return x->axis.axes == y->axis.axes && x->kind == y->kind && x->sizes == y->sizes;
  });
}

/// Works out one rank's shard.
class Placer {
public:
  Placer(const PlacedParameter& parameter, const Mesh& mesh, Index rank)
    : parameter_(parameter), mesh_(mesh), coordinates_(mesh.coordinates(rank)) {
    if (parameter.placement != nullptr)
      cuts_ = &parameter.placement->cuts;
  }

  Result<Shard> run() {
    shard_.full_shape = parameter_.full_shape;
    shard_.held = holds();
    if (!shard_.held) {
      shard_.owner = false;
      shard_.dims.resize(shard_.full_shape.size());
      shard_.local_shape.assign(shard_.full_shape.size(), 0);
      return std::move(shard_);
    }
    if (auto valid = check_dims(); !valid)
      return pass_on(std::move(valid));
    for (std::size_t d = 0; d < shard_.full_shape.size(); ++d) {
      auto held = cut_dim(d);
      if (!held)
        return pass_on(std::move(held));
      Index dealt = 0;
      for (const Interval& interval : *held)
        dealt += interval.step != 1 ? interval.length : 0;
      if (dealt > most_dealt)
        return fail(Code::limit_exceeded,
                    "parameter '{}' {}: a cyclic cut deals {} positions of dim {} to one rank; the most is {}",
                    parameter_.name, to_string(parameter_.full_shape), dealt, d, most_dealt);
      shard_.local_shape.push_back(total(*held));
      shard_.dims.push_back(joined(*held));
    }
    if (auto flat = cut_flat(); !flat)
      return pass_on(std::move(flat));
    return std::move(shard_);
  }

  [[nodiscard]] bool holds() const {
    return std::all_of(cuts_->on.begin(), cuts_->on.end(), [&](const HoldingCoordinates& on) {
      return std::binary_search(on.coordinates.begin(), on.coordinates.end(), on.axis.coordinate(mesh_, coordinates_));
    });
  }

  [[nodiscard]] bool owns(const Cuts* own, std::span<const std::size_t> counted = {}) const {
    if (!holds())
      return false;
    std::vector<bool> settled(coordinates_.size(), false); // cut, or judged by `on`
    const auto settle = [&](const AxisGroup& group) {
      for (const std::size_t axis : group.axes)
        settled[axis] = true;
    };
    for (const std::size_t axis : counted)
      settled[axis] = true;
    const bool scalar = parameter_.full_shape.empty();
    for (const Cut& cut : cuts_->cuts) // a scalar is never cut, unless its process says so
      if (scalar ? cut.kind == Cut::Kind::flat && parameter_.flat : own == nullptr || !cut.segmented())
        settle(cut.axis);
    if (own != nullptr && !scalar)
      for (const Cut& cut : own->cuts)
        settle(cut.axis);
    for (const HoldingCoordinates& on : cuts_->on) {
      const bool each_has_its_own = std::any_of(on.axis.axes.begin(), on.axis.axes.end(), [&](std::size_t axis) {
        return std::find(counted.begin(), counted.end(), axis) != counted.end();
      });
      if (!each_has_its_own && on.axis.coordinate(mesh_, coordinates_) != on.coordinates.front())
        return false;
      settle(on.axis);
    }
    for (std::size_t a = 0; a < coordinates_.size(); ++a)
      if (!settled[a] && coordinates_[a] != 0)
        return false;
    return true;
  }

private:
  /// "f.toml:9: axis 'tp' cuts dim 0 of parameter 'p' [8, 4]".
  [[nodiscard]] std::string describe_cut(const Cuts& cuts, const Cut& cut) const {
    return fmt::format("{}: axis '{}' cuts {} of parameter '{}' {}", cuts.where, cut.axis.name,
                       cut.kind == Cut::Kind::flat ? "the elements" : fmt::format("dim {}", cut.dim), parameter_.name,
                       to_string(parameter_.full_shape));
  }

  Result<void> check_dims() const {
    if (parameter_.full_shape.empty())
      return {};
    std::vector<const Cuts*> lists{cuts_};
    lists.insert(lists.end(), parameter_.own.begin(), parameter_.own.end());
    for (const Cuts* list : lists)
      for (const Cut& cut : list->cuts)
        if (cut.kind != Cut::Kind::flat && cut.dim >= static_cast<Index>(parameter_.full_shape.size()))
          return fail(Code::invalid_topology, "{}: axis '{}' cuts dim {} of parameter '{}', which has shape {}",
                      list->where, cut.axis.name, cut.dim, parameter_.name, to_string(parameter_.full_shape));
    for (const Cuts* own : parameter_.own)
      for (const Cut& cut : own->cuts) {
        for (const Cut& other : cuts_->cuts)
          if (const Axis* axis = shared_axis(cut.axis, other.axis, mesh_); axis != nullptr && !other.segmented()) {
            const bool restates = cut.dim == other.dim && other.kind != Cut::Kind::flat &&
                                  same_cuts(cuts_of_dim(*own, static_cast<std::size_t>(cut.dim)),
                                            cuts_of_dim(*cuts_, static_cast<std::size_t>(cut.dim)));
            if (!restates)
              return fail(Code::invalid_topology,
                          "{}: {} cuts twice: for the slice, and in {} for all that the slices of parameter '{}' left; "
                          "leave it out of one",
                          own->where, describe(*axis, cut.axis), cuts_->where, parameter_.name);
          }
        for (const HoldingCoordinates& on : cuts_->on)
          if (const Axis* axis = shared_axis(cut.axis, on.axis, mesh_))
            return fail(Code::invalid_topology, "{}: {} cuts, but `on` of {} names it", own->where,
                        describe(*axis, cut.axis), cuts_->where);
      }
    return {};
  }

  Result<Held> apply(const Cuts& cuts, const Cut& cut, const Held& held) const {
    const Index coordinate = cut.axis.coordinate(mesh_, coordinates_);
    if (cut.kind == Cut::Kind::cyclic)
      return take_dealt(held, cut.axis.size, coordinate);
    auto piece = piece_of(cut, total(held), coordinate);
    if (!piece)
      return fail(piece.error().code, "{}: {}", describe_cut(cuts, cut), piece.error().message);
    return take_local(held, *piece);
  }

  Result<Held> cut_dim(std::size_t d) const {
    const Index extent = parameter_.full_shape[d];
    const std::vector<const Cut*> mine = cuts_of_dim(*cuts_, d);
    const auto whole = std::find_if(mine.begin(), mine.end(), [](const Cut* cut) { return !cut->segmented(); });
    const std::vector<const Cut*> by_slice(mine.begin(), whole);
    const Cuts* own = nullptr; // a map that cuts this dim on its own
    for (const Cuts* candidate : parameter_.own) {
      const std::vector<const Cut*> theirs = cuts_of_dim(*candidate, d);
      if (!theirs.empty() && !same_cuts(theirs, mine))
        own = candidate;
    }
    Held held;
    append(held, 0, extent, 1);
    if (!by_slice.empty() || own != nullptr) {
      auto packed = cut_segments(d, by_slice, whole == mine.end() ? nullptr : *whole, own);
      if (!packed)
        return packed;
      held = std::move(*packed);
    }
    for (auto cut = whole; cut != mine.end(); ++cut) {
      auto left = apply(*cuts_, **cut, held);
      if (!left)
        return left;
      held = std::move(*left);
    }
    return held;
  }

  Result<Held> cut_segments(std::size_t d, const std::vector<const Cut*>& by_slice, const Cut* whole,
                            const Cuts* own) const {
    if (by_slice.empty() && whole != nullptr)
      return fail(Code::invalid_topology,
                  "{} whole, but the map of {} cuts its slice of it on its own; write \"{}:{} by slice\" or leave the "
                  "cut to the maps",
                  describe_cut(*cuts_, *whole), own->where, whole->axis.name, whole->dim);
    auto segments = segments_of(d, by_slice, own);
    if (!segments)
      return pass_on(std::move(segments));
    Held packed;
    for (const DimSegment& segment : *segments) {
      Held piece;
      append(piece, segment.span.begin, segment.span.end - segment.span.begin, 1);
      const Cuts& list = segment.own != nullptr ? *segment.own : *cuts_;
      for (const Cut* cut : segment.own != nullptr ? cuts_of_dim(list, d) : by_slice) {
        auto left = apply(list, *cut, piece);
        if (!left)
          return left;
        piece = std::move(*left);
      }
      for (const Interval& interval : piece)
        append(packed, interval.global, interval.length, interval.step);
    }
    return packed;
  }

  Result<std::vector<DimSegment>> segments_of(std::size_t d, const std::vector<const Cut*>& by_slice,
                                              const Cuts* own) const {
    const Index extent = parameter_.full_shape[d];
    if (!by_slice.empty() && by_slice.front()->kind == Cut::Kind::by_segments) {
      const Cut& cut = *by_slice.front();
      if (own != nullptr)
        return fail(Code::invalid_topology,
                    "{} by named segments, but the map of {} cuts its slice on its own; write \"by slice\"",
                    describe_cut(*cuts_, cut), own->where);
      std::vector<DimSegment> segments;
      Index at = 0;
      for (const Index length : cut.segments) {
        if (length > extent - at)
          return fail(Code::invalid_topology, "{}: its segments {} pass the dim", describe_cut(*cuts_, cut),
                      to_string(cut.segments));
        segments.push_back({{at, at + length}, nullptr});
        at += length;
      }
      if (at != extent)
        return fail(Code::invalid_topology, "{}: its segments {} sum to {}", describe_cut(*cuts_, cut),
                    to_string(cut.segments), at);
      return segments;
    }
    auto segments = parameter_.segments(d);
    if (segments)
      return segments;
    if (!by_slice.empty())
      return fail(segments.error().code, "{} by slice: {}", describe_cut(*cuts_, *by_slice.front()),
                  segments.error().message);
    return fail(segments.error().code, "{} by slice: {}", describe_cut(*own, *cuts_of_dim(*own, d).front()),
                segments.error().message);
  }

  Result<void> cut_flat() {
    const auto first =
      std::find_if(cuts_->cuts.begin(), cuts_->cuts.end(), [](const Cut& cut) { return cut.kind == Cut::Kind::flat; });
    if (first == cuts_->cuts.end()) {
      if (parameter_.flat)
        return fail(Code::invalid_argument,
                    "parameter '{}' is added with a flat interval, but its placement has no \"axis:flat\"",
                    parameter_.name);
      shard_.owner = owns(nullptr);
      return {};
    }
    auto elements = element_count(shard_.local_shape);
    if (!elements)
      return pass_on(std::move(elements));
    shard_.owner = owns(nullptr);
    FlatRange range{0, *elements};
    if (parameter_.flat) {
      range = *parameter_.flat;
      if (range.begin < 0 || range.begin > range.end || range.end > *elements)
        return fail(Code::invalid_argument,
                    "parameter '{}' {} is added with the flat interval {} to {}, and {} elements are there to cut",
                    parameter_.name, to_string(parameter_.full_shape), range.begin, range.end, *elements);
    } else if (parameter_.full_shape.empty()) {
      return {};
    } else {
      for (auto cut = first; cut != cuts_->cuts.end(); ++cut) {
        auto piece = piece_of(*cut, range.end - range.begin, cut->axis.coordinate(mesh_, coordinates_));
        if (!piece)
          return fail(piece.error().code, "{}: {}", describe_cut(*cuts_, *cut), piece.error().message);
        range = {range.begin + piece->begin, range.begin + piece->end};
      }
    }
    shard_.flat = range;
    shard_.local_shape = {range.end - range.begin};
    return {};
  }

  static const Cuts& no_cuts() {
    static const Cuts none;
    return none;
  }

  const PlacedParameter& parameter_;
  const Mesh& mesh_;
  std::vector<Index> coordinates_;
  const Cuts* cuts_ = &no_cuts();
  Shard shard_;
};

} // namespace

Index AxisGroup::coordinate(const Mesh& mesh, std::span<const Index> coordinates) const {
  Index result = 0;
  for (const std::size_t axis : axes)
    result = result * mesh.axes()[axis].size + coordinates[axis];
  return result;
}

Result<std::vector<AxisGroup>> join_axes(std::span<const JoinedAxis> axes, const Mesh& mesh) {
  std::vector<AxisGroup> groups;
  if (auto done = join_into(groups, axes, mesh); !done)
    return pass_on(std::move(done));
  return groups;
}

bool Cuts::same_on(const Cuts& other, std::size_t dim) const {
  return same_cuts(cuts_of_dim(*this, dim), cuts_of_dim(other, dim));
}

Result<Cuts> Cuts::compile(std::span<const std::string> shard, const CutOptions& options, const Mesh& mesh,
                           std::span<const AxisGroup> joined_axes, For what_for, const std::string& what,
                           const std::string& where) {
  Cuts cuts;
  cuts.where = where;
  const auto refuse = [&](const Failure& failure) {
    return fail(failure.code, "{}: {}: {}", where, what, failure.message);
  };
  std::vector<AxisGroup> groups(joined_axes.begin(), joined_axes.end());
  if (auto done = join_into(groups, options.axes, mesh); !done)
    return refuse(done.error());
  for (const std::string& text : shard) {
    auto cut = parse_cut(text, mesh, groups);
    if (!cut)
      return refuse(cut.error());
    if (what_for == For::slice && (cut->kind == Cut::Kind::flat || cut->kind == Cut::Kind::by_segments))
      return fail(Code::invalid_topology,
                  "{}: {}: cut '{}' of axis '{}': a map's own shard cuts its slice whole; 'flat' and 'by [..]' are for "
                  "the placement",
                  where, what, text, cut->axis.name);
    if (what_for == For::slice && cut->kind == Cut::Kind::by_slice)
      cut->kind = Cut::Kind::whole; // the slice is one segment
    if (auto valid = check_order(*cut, cuts.cuts, mesh); !valid)
      return refuse(valid.error());
    cuts.cuts.push_back(std::move(*cut));
  }
  if (auto sizes = read_sizes(cuts, options.sizes); !sizes)
    return refuse(sizes.error());
  if (auto on = read_on(cuts, options.on, mesh, groups); !on)
    return refuse(on.error());
  return cuts;
}

Result<Placement> Placement::compile(const PlacementRule& rule, const Mesh& mesh, std::span<const AxisGroup> joined) {
  Placement placement;
  auto pattern = Pattern::parse(rule.parameter);
  if (!pattern)
    return fail(pattern.error().code, "{}: {}", rule.where, pattern.error().message);
  placement.parameter = std::move(*pattern);
  auto cuts = Cuts::compile(rule.shard, rule.options, mesh, joined, Cuts::For::parameter,
                            fmt::format("placement of '{}'", rule.parameter), rule.where);
  if (!cuts)
    return pass_on(std::move(cuts));
  placement.cuts = std::move(*cuts);
  placement.wire_dtype = rule.wire_dtype;
  return placement;
}

Result<Shard> shard_by(const PlacedParameter& parameter, const Mesh& mesh, Index rank) {
  return Placer(parameter, mesh, rank).run();
}

bool owns(const PlacedParameter& parameter, const Cuts* own, const Mesh& mesh, Index rank,
          std::span<const std::size_t> counted) {
  return Placer(parameter, mesh, rank).owns(own, counted);
}

} // namespace deltawire::layout
