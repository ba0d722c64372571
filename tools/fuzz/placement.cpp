// Cuts as a placement has them. Input, a line each: "mesh a=2 b=3", "shape 7 3", "axes ab a b", "cut a:0 by slice",
// "sizes a 3 4", "on b 0".
#include "layout/placement.hpp"

#include "target.hpp"

#include <algorithm>

namespace deltawire::fuzz {
namespace {

constexpr layout::Index most_positions = 4096;
constexpr layout::Index most_ranks = 64;

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0)
      words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

struct Rules {
  std::vector<layout::Axis> axes;
  layout::Shape shape;
  std::vector<layout::JoinedAxis> joined;
  std::vector<std::string> shard;
  layout::CutOptions options;
};

Rules read(std::string_view text) {
  Rules rules;
  for (const Line& line : lines_of(text)) {
    const std::vector<std::string> words = words_of(line.value);
    if (line.key == "mesh") {
      for (const std::string& word : words)
        if (const auto sizes = numbers_of(word.substr(std::min(word.find('='), word.size()))); !sizes.empty())
          rules.axes.push_back({word.substr(0, word.find('=')), sizes.front()});
    } else if (line.key == "shape") {
      rules.shape = numbers_of(line.value);
    } else if (line.key == "axes" && !words.empty()) {
      rules.joined.push_back({words.front(), {words.begin() + 1, words.end()}});
    } else if (line.key == "cut") {
      rules.shard.emplace_back(line.value);
    } else if ((line.key == "sizes" || line.key == "on") && !words.empty()) {
      auto& list = line.key == "on" ? rules.options.on : rules.options.sizes;
      list.push_back({words.front(), numbers_of(line.value.substr(words.front().size()))});
    }
  }
  return rules;
}

/// Row-major positions, in the full shape, of what a shard holds, in the order of its memory. By brute force, on which
/// a dim that holds nothing is no bound where it comes last.
std::vector<layout::Index> positions_of(const layout::Shard& shard) {
  std::vector<layout::Index> positions{0};
  if (std::ranges::any_of(shard.dims, [](const auto& held) { return held.empty(); }))
    positions.clear();
  for (std::size_t d = 0; d < shard.dims.size(); ++d) {
    std::vector<layout::Index> finer;
    for (const layout::Index position : positions)
      for (const layout::Interval& interval : shard.dims[d])
        for (layout::Index i = 0; i < interval.length; ++i)
          finer.push_back(position * shard.full_shape[d] + interval.global + i * interval.step);
    positions = std::move(finer);
  }
  if (shard.flat) {
    const auto size = static_cast<layout::Index>(positions.size());
    require(shard.flat->begin >= 0 && shard.flat->begin <= shard.flat->end && shard.flat->end <= size,
            "a flat interval lies in what the cuts before it leave");
    positions = {positions.begin() + shard.flat->begin, positions.begin() + shard.flat->end};
  }
  return positions;
}

/// Whether the rules cut the parameter: for all ranks that hold it, or for none. Who is left out by `on` is not asked.
bool is_cut(const layout::PlacedParameter& parameter, const layout::Mesh& mesh) {
  bool cut = false, refused = false;
  for (layout::Index rank = 0; rank < mesh.size(); ++rank) {
    const auto shard = layout::shard_by(parameter, mesh, rank);
    refused = refused || !shard;
    cut = cut || (shard && shard->held);
  }
  require(!(cut && refused), "what is cut for one rank is cut for all");
  return !refused;
}

/// Owners' shards cover every element once, other holders' repeat what an owner has, and every shard is as its shape.
void check_cover(const layout::PlacedParameter& parameter, const layout::Mesh& mesh, layout::Index count) {
  std::vector<int> owners(static_cast<std::size_t>(count), 0);
  std::vector<bool> held(owners.size(), false);
  for (layout::Index rank = 0; rank < mesh.size(); ++rank) {
    const auto shard = layout::shard_by(parameter, mesh, rank);
    require(shard.has_value(), "what is cut once is cut again");
    require(shard->full_shape == parameter.full_shape, "a shard is of its parameter");
    if (!shard->held) {
      require(!shard->owner, "who holds nothing owns nothing");
      continue;
    }
    const std::vector<layout::Index> positions = positions_of(*shard);
    require(layout::element_count(shard->local_shape) == static_cast<layout::Index>(positions.size()),
            "a local shape has the elements that are held");
    for (const layout::Index position : positions) {
      require(position >= 0 && position < count, "elements are the parameter's");
      held[static_cast<std::size_t>(position)] = true;
      owners[static_cast<std::size_t>(position)] += shard->owner ? 1 : 0;
    }
  }
  require(std::ranges::all_of(owners, [](int times) { return times == 1; }), "every element has one owner");
  require(std::ranges::all_of(held, std::identity{}), "every element is held");
}

} // namespace

bool accepts(std::span<const std::byte> input) {
  const Rules rules = read(as_text(input));
  const auto mesh = layout::Mesh::make(rules.axes);
  if (!mesh)
    return false;
  const auto joined = layout::join_axes(rules.joined, *mesh);
  if (!joined)
    return false;
  layout::Placement placement;
  {
    const AllocationBound bound(65536 + 1024 * input.size());
    auto cuts = layout::Cuts::compile(rules.shard, rules.options, *mesh, *joined, layout::Cuts::For::parameter,
                                      "parameter 'p'", "topology.toml:1");
    if (!cuts) {
      require(cuts.error().message.starts_with("topology.toml:1"), "the error names its rule");
      return false;
    }
    placement.cuts = std::move(*cuts);
  }
  const auto count = layout::element_count(rules.shape);
  if (!count || rules.shape.size() > 8)
    return false;
  const std::string name = "p";
  const layout::SegmentsOfDim halves = [&](std::size_t dim) -> Result<std::vector<layout::DimSegment>> {
    const layout::Index extent = rules.shape[dim];
    if (extent < 2)
      return std::vector<layout::DimSegment>{{{0, extent}, nullptr}};
    return std::vector<layout::DimSegment>{{{0, extent / 2}, nullptr}, {{extent / 2, extent}, nullptr}};
  };
  const layout::PlacedParameter parameter{name, rules.shape, &placement, {}, halves, std::nullopt};
  {
    const AllocationBound bound(65536 + 1024 * input.size());
    if (!layout::shard_by(parameter, *mesh, 0) || !layout::shard_by(parameter, *mesh, mesh->size() - 1))
      return false;
  }
  // No extent is long beside one of 0 either: the shapes are walked dim by dim.
  const bool small = std::ranges::all_of(rules.shape, [](layout::Index extent) { return extent <= most_positions; });
  if (!small || *count > most_positions || mesh->size() > most_ranks)
    return true;
  if (!is_cut(parameter, *mesh))
    return false;
  check_cover(parameter, *mesh, *count);
  return true;
}

} // namespace deltawire::fuzz
