#include "cuts.hpp"

#include <algorithm>
#include <numeric>

namespace deltawire::replay::proof {
namespace {

using CutList = std::vector<const PlacedCut*>;

/// A stretch of a dim that is cut on its own.
struct Segment {
  Index begin = 0;
  Index end = 0;
  const Cuts* own = nullptr; ///< cuts of the map that keeps it; null: the parameter's
};

CutList cuts_of_dim(const Cuts& cuts, std::size_t dim) {
  CutList result;
  for (const PlacedCut& cut : cuts.cuts)
    if (cut.cut.of != Cut::Of::flat && cut.cut.dim == dim)
      result.push_back(&cut);
  return result;
}

bool same(const CutList& a, const CutList& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PlacedCut* x, const PlacedCut* y) {
    return x->axes == y->axes && x->sizes == y->sizes && x->cut.of == y->cut.of && x->cut.cyclic == y->cut.cyclic;
  });
}

bool by_segments(const PlacedCut* cut) {
  return cut->cut.of == Cut::Of::slices || cut->cut.of == Cut::Of::segments;
}

/// Where piece `coordinate` of `world` begins and ends in `length`.
Result<std::pair<Index, Index>> piece_of(const PlacedCut& cut, Index length, Index world, Index coordinate) {
  if (cut.sizes.empty()) {
    const Index piece = (length + world - 1) / world;
    const Index begin = std::min(length, coordinate * piece);
    return std::pair(begin, std::min(length, begin + piece));
  }
  const Index sum = std::accumulate(cut.sizes.begin(), cut.sizes.end(), Index{0});
  if (static_cast<Index>(cut.sizes.size()) != world || sum != length)
    return fail(Code::invalid_topology, "sizes {} for {} coordinates do not sum to {}", text_of(cut.sizes), world,
                length);
  const Index begin = std::accumulate(cut.sizes.begin(), cut.sizes.begin() + coordinate, Index{0});
  return std::pair(begin, begin + cut.sizes[static_cast<std::size_t>(coordinate)]);
}

/// Cuts one parameter for one worker.
class Cutter {
public:
  Cutter(const std::string& name, const Shape& shape, const std::vector<Read>& reads, const Rules& rules,
         const Shape& coordinates)
    : name_(name), shape_(shape), reads_(reads), rules_(rules), coordinates_(coordinates) {
    static const Cuts none;
    const Placement* placement = rules.placement_of(name);
    cuts_ = placement != nullptr ? &placement->cuts : &none;
  }

  Result<Holding> run() const {
    Holding holding;
    if (auto valid = check_cuts(); !valid)
      return pass_on(std::move(valid));
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      auto positions = cut_dim(d);
      if (!positions)
        return pass_on(std::move(positions));
      holding.box.push_back(static_cast<Index>(positions->size()));
      holding.positions.push_back(std::move(*positions));
    }
    holding.local_shape = holding.box;
    holding.end = count_of(holding.box);
    for (const PlacedCut& cut : cuts_->cuts) {
      if (cut.cut.of != Cut::Of::flat || shape_.empty())
        continue;
      const auto piece =
        piece_of(cut, holding.end - holding.begin, rules_.size(cut.axes), rules_.coordinate(cut.axes, coordinates_));
      if (!piece)
        return refuse(*cuts_, cut, piece.error().message);
      holding.end = holding.begin + piece->second;
      holding.begin += piece->first;
      holding.local_shape = {holding.end - holding.begin};
    }
    return holding;
  }

private:
  tl::unexpected<Failure> refuse(const Cuts& cuts, const PlacedCut& cut, std::string_view why) const {
    return fail(Code::invalid_topology, "{}: axis '{}' of '{}': {}", cuts.where, cut.cut.axis, name_, why);
  }

  /// What no order of cutting gives a meaning to.
  Result<void> check_cuts() const {
    if (shape_.empty()) // a scalar is never cut
      return {};
    std::vector<const Cuts*> lists = {cuts_};
    for (const Read& read : reads_)
      if (read.map != nullptr && read.map->own)
        lists.push_back(&*read.map->own);
    for (const Cuts* list : lists) {
      bool flat = false;
      std::vector<bool> whole(shape_.size(), false);
      for (const PlacedCut& cut : list->cuts) {
        if (flat && cut.cut.of != Cut::Of::flat)
          return refuse(*list, cut, "cuts after a flat cut");
        flat = cut.cut.of == Cut::Of::flat;
        if (flat)
          continue;
        if (cut.cut.dim >= shape_.size())
          return fail(Code::invalid_topology, "{}: axis '{}' cuts dim {} of '{}', which is {}", list->where,
                      cut.cut.axis, cut.cut.dim, name_, text_of(shape_));
        if (by_segments(&cut) && whole[cut.cut.dim])
          return fail(Code::invalid_topology, "{}: axis '{}' cuts by slice after a whole cut of '{}'", list->where,
                      cut.cut.axis, name_);
        whole[cut.cut.dim] = whole[cut.cut.dim] || !by_segments(&cut);
      }
    }
    return {};
  }

  Result<Shape> cut_positions(const Cuts& list, const CutList& cuts, Shape positions) const {
    for (const PlacedCut* cut : cuts) {
      const Index world = rules_.size(cut->axes);
      const Index coordinate = rules_.coordinate(cut->axes, coordinates_);
      Shape left;
      if (cut->cut.cyclic) {
        for (std::size_t i = static_cast<std::size_t>(coordinate); i < positions.size();
             i += static_cast<std::size_t>(world))
          left.push_back(positions[i]);
      } else {
        const auto piece = piece_of(*cut, static_cast<Index>(positions.size()), world, coordinate);
        if (!piece)
          return refuse(list, *cut, piece.error().message);
        left.assign(positions.begin() + piece->first, positions.begin() + piece->second);
      }
      positions = std::move(left);
    }
    return positions;
  }

  Result<Shape> cut_dim(std::size_t dim) const {
    const CutList all = cuts_of_dim(*cuts_, dim);
    const auto first_whole = std::find_if_not(all.begin(), all.end(), by_segments);
    const CutList segmented(all.begin(), first_whole);
    const CutList whole(first_whole, all.end());
    bool own = false; // a map cuts its slice of this dim in its own way
    for (const Read& read : reads_)
      if (read.map != nullptr && read.map->own) {
        const CutList theirs = cuts_of_dim(*read.map->own, dim);
        own = own || (!theirs.empty() && !same(theirs, all));
      }
    std::vector<Segment> segments = {{0, shape_[dim], nullptr}};
    if (own && segmented.empty() && !whole.empty())
      return refuse(*cuts_, *whole.front(), "cuts whole what a map cuts on its own");
    if (!segmented.empty() || own) {
      const bool named = !segmented.empty() && segmented.front()->cut.of == Cut::Of::segments;
      auto found = named ? named_segments(segmented, dim, own) : kept_segments(dim);
      if (!found)
        return at(fmt::format("{}: axis '{}' of '{}'", cuts_->where, all.empty() ? "" : all.front()->cut.axis, name_),
                  found);
      segments = std::move(*found);
    }
    Shape packed;
    for (const Segment& segment : segments) {
      Shape positions(static_cast<std::size_t>(segment.end - segment.begin));
      std::iota(positions.begin(), positions.end(), segment.begin);
      const Cuts& list = segment.own != nullptr ? *segment.own : *cuts_;
      auto left =
        cut_positions(list, segment.own != nullptr ? cuts_of_dim(list, dim) : segmented, std::move(positions));
      if (!left)
        return left;
      packed.insert(packed.end(), left->begin(), left->end());
    }
    return cut_positions(*cuts_, whole, std::move(packed));
  }

  Result<std::vector<Segment>> named_segments(const CutList& cuts, std::size_t dim, bool own) const {
    std::vector<Segment> segments;
    Index position = 0;
    for (Index length : cuts.front()->cut.segments) {
      segments.push_back({position, position + length, nullptr});
      position += length;
    }
    for (const PlacedCut* cut : cuts)
      if (position != shape_[dim] || cut->cut.segments != cuts.front()->cut.segments || own)
        return fail(Code::invalid_topology, "segments {} are not those of dim {} of {}", text_of(cut->cut.segments),
                    dim, text_of(shape_));
    return segments;
  }

  /// The stretches of the dim that maps keep, and those between them, in order.
  Result<std::vector<Segment>> kept_segments(std::size_t dim) const {
    std::vector<Segment> kept;
    for (const Read& read : reads_) {
      const auto part = keep(read.of_parameter, shape_);
      if (!part)
        return tl::make_unexpected(part.error());
      const Shape positions = positions_on(*part, dim);
      if (positions.empty())
        continue;
      if (positions.back() + 1 - positions.front() != static_cast<Index>(positions.size()))
        return fail(Code::invalid_topology, "slot '{}' keeps several intervals of the dim that is cut by slice",
                    read.slot->name);
      const bool own = read.map != nullptr && read.map->own;
      kept.push_back({positions.front(), positions.back() + 1, own ? &*read.map->own : nullptr});
    }
    std::sort(kept.begin(), kept.end(),
              [](const Segment& a, const Segment& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::vector<Segment> segments;
    Index covered = 0;
    for (const Segment& segment : kept) {
      if (!segments.empty() && segments.back().begin == segment.begin && segments.back().end == segment.end) {
        const bool equal =
          (segment.own == nullptr) == (segments.back().own == nullptr) &&
          (segment.own == nullptr || same(cuts_of_dim(*segment.own, dim), cuts_of_dim(*segments.back().own, dim)));
        if (!equal)
          return fail(Code::invalid_topology, "maps cut the interval from {} to {} in different ways", segment.begin,
                      segment.end);
        continue;
      }
      if (segment.begin < covered)
        return fail(Code::invalid_topology,
                    "maps keep intervals that overlap but differ on the dim that is cut by slice");
      if (segment.begin > covered)
        segments.push_back({covered, segment.begin, nullptr});
      segments.push_back(segment);
      covered = segment.end;
    }
    if (covered < shape_[dim])
      segments.push_back({covered, shape_[dim], nullptr});
    return segments;
  }

  const std::string& name_;
  const Shape& shape_;
  const std::vector<Read>& reads_;
  const Rules& rules_;
  const Shape& coordinates_;
  const Cuts* cuts_ = nullptr;
};

} // namespace

Result<Holding> holding_of(const std::string& name, const Shape& shape, const std::vector<Read>& reads,
                           const Rules& rules, const Shape& coordinates) {
  return Cutter(name, shape, reads, rules, coordinates).run();
}

} // namespace deltawire::replay::proof
