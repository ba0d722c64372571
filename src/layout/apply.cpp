// Pairs what a map keeps of a parameter with what it keeps of a slot: element i of one is element i of the other, in
// row-major order of the kept shapes. Where the merged shapes agree, dim by dim; otherwise parts that would merge may
// stay apart, as far as the other side has them apart.
#include "layout/selection.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

constexpr std::size_t most_stretches = std::size_t{1} << 16; // of one common dim
constexpr Index most_segments = Index{1} << 22;              // of one slot dim

/// "f.toml:7: map of parameter 'x' [320, 192] to slot 'y' [64, 192]".
std::string describe(const MapUse& use, const Shape* shape, const Shape* slot_shape) {
  return fmt::format("{}{}map of parameter '{}'{}{} to slot '{}'{}{}", use.map->where,
                     use.map->where.empty() ? "" : ": ", use.parameter, shape ? " " : "",
                     shape ? to_string(*shape) : "", use.slot, slot_shape ? " " : "",
                     slot_shape ? to_string(*slot_shape) : "");
}

Order order_of(const Map& map) {
  return {map.permute, map.transpose};
}

/// The order that undoes nothing: the slot's side keeps its own.
const Order as_it_is{};

/// Neighbouring factors of each side that hold the same number of elements.
struct Pair {
  std::size_t begin = 0, end = 0; ///< of the parameter's factors
  std::size_t slot_begin = 0, slot_end = 0;
};

std::size_t merged_end(const Selected& side, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < side.factors.size() && side.factors[end].joins)
    ++end;
  return end;
}

std::vector<Pair> pair_merged(const Selected& parameter, const Selected& slot) {
  std::vector<Pair> pairs;
  for (std::size_t p = 0, s = 0; p < parameter.factors.size();) {
    pairs.push_back({p, merged_end(parameter, p), s, merged_end(slot, s)});
    p = pairs.back().end;
    s = pairs.back().slot_end;
  }
  return pairs;
}

/// Takes the fewest factors on each side that hold the same number, again and again. Nothing where that would join dims
/// of one side that are no parts of one.
std::optional<std::vector<Pair>> pair_apart(const Selected& parameter, const Selected& slot) {
  const auto& ps = parameter.factors;
  const auto& ss = slot.factors;
  const auto any = [](const std::vector<Factor>& factors) {
    return std::any_of(factors.begin(), factors.end(), [](const Factor& factor) { return factor.count == 0; });
  };
  if (any(ps) || any(ss))
    return std::nullopt;
  std::vector<Pair> pairs;
  std::size_t p = 0, s = 0;
  while (p < ps.size() && s < ss.size()) {
    Pair pair{p, p + 1, s, s + 1};
    Index in_parameter = ps[p].count;
    Index in_slot = ss[s].count;
    while (in_parameter != in_slot) {
      const bool grow_parameter = in_parameter < in_slot;
      const auto& factors = grow_parameter ? ps : ss;
      std::size_t& end = grow_parameter ? pair.end : pair.slot_end;
      if (end == factors.size() || !factors[end].joins)
        return std::nullopt;
      (grow_parameter ? in_parameter : in_slot) *= factors[end++].count;
    }
    const auto take_ones = [](const std::vector<Factor>& factors, std::size_t& end, const std::vector<Factor>& others,
                              std::size_t other_end) {
      while (end < factors.size() && factors[end].count == 1 && factors[end].joins &&
             (other_end == others.size() || others[other_end].count != 1))
        ++end;
    };
    take_ones(ps, pair.end, ss, pair.slot_end);
    take_ones(ss, pair.slot_end, ps, pair.end);
    pairs.push_back(pair);
    p = pair.end;
    s = pair.slot_end;
  }
  if (p != ps.size() || s != ss.size())
    return std::nullopt;
  return pairs;
}

/// A range of positions of one side: `count` of them, `stride` apart.
struct Run {
  Index count = 1;
  Index stride = 1;
};

/// Factors without those of one element, contiguous neighbours as one. At least one.
std::vector<Run> runs_of(std::span<const Factor> factors) {
  std::vector<Run> runs;
  for (const Factor& factor : factors) {
    if (factor.count == 1)
      continue;
    if (!runs.empty() && runs.back().stride == factor.count * factor.stride)
      runs.back() = {runs.back().count * factor.count, factor.stride};
    else
      runs.push_back({factor.count, factor.stride});
  }
  if (runs.empty())
    runs.push_back({1, factors.back().stride});
  return runs;
}

/// Digits that both sides' runs are made of; nothing where no number of one divides the other's.
std::optional<std::vector<Digit>> common_digits(std::vector<Run> ps, std::vector<Run> ss) {
  std::vector<Digit> digits;
  while (!ps.empty() && !ss.empty()) {
    Run& p = ps.back();
    Run& s = ss.back();
    const Index count = std::min(p.count, s.count);
    if (p.count % count != 0 || s.count % count != 0)
      return std::nullopt;
    digits.push_back({count, p.stride, s.stride});
    const auto take = [count](std::vector<Run>& runs) {
      Run& last = runs.back();
      last = {last.count / count, last.stride * count};
      if (last.count == 1)
        runs.pop_back();
    };
    take(ps);
    take(ss);
  }
  std::reverse(digits.begin(), digits.end());
  return digits;
}

Index position(const std::vector<Run>& runs, Index element) {
  Index result = 0;
  for (std::size_t i = runs.size(); i-- > 0; element /= runs[i].count)
    result += element % runs[i].count * runs[i].stride;
  return result;
}

/// Where the sides' runs do not divide each other: the stretches that lie within one innermost run of both.
Result<std::vector<Stretch>> stretches_of(const std::vector<Run>& ps, const std::vector<Run>& ss) {
  Index elements = 1;
  for (const Run& run : ps)
    elements *= run.count;
  const Index p = ps.back().count;
  const Index s = ss.back().count;
  if (elements / p + elements / s > static_cast<Index>(most_stretches))
    return fail(Code::limit_exceeded, "views that do not divide each other make more than {} stretches",
                most_stretches);
  std::vector<Stretch> stretches;
  for (Index at = 0; at < elements;) {
    const Index end = std::min((at / p + 1) * p, (at / s + 1) * s);
    stretches.push_back({position(ps, at), position(ss, at), {{end - at, ps.back().stride, ss.back().stride}}});
    at = end;
  }
  return stretches;
}

std::optional<std::vector<Pair>> pair(const Selected& parameter, const Selected& slot) {
  return parameter.shape == slot.shape ? std::optional{pair_merged(parameter, slot)} : pair_apart(parameter, slot);
}

/// Upper bound on the pieces of a slot dim that are contiguous in it and affine in the parameter.
Index segments_of(const AppliedMap& applied, std::size_t slot_dim) {
  Index segments = 1;
  Index innermost = 1; // elements behind each other in the slot
  for (const CommonDim& common : applied.common) {
    if (common.slot_dim != slot_dim)
      continue;
    Index most = 0;
    for (const Stretch& stretch : common.stretches) {
      Index elements = 1;
      for (const Digit& digit : stretch.digits) {
        elements *= digit.count;
        if (digit.slot_stride == 1)
          innermost = std::max(innermost, digit.count);
      }
      most += elements;
    }
    segments *= most;
  }
  return segments / innermost;
}

Result<AppliedMap> apply_unprefixed(const MapUse& use, const Shape& shape, const Shape& slot_shape) {
  auto parameter = select(use.map->of_parameter, use.bound, order_of(*use.map), shape);
  if (!parameter)
    return pass_on(std::move(parameter));
  auto slot = select(use.map->of_slot, use.slot_bound, as_it_is, slot_shape);
  if (!slot)
    return fail(slot.error().code, "on the slot's side {}", slot.error().message);
  const auto pairs = pair(*parameter, *slot);
  if (!pairs)
    return fail(Code::disagreement, "the parameter's part is {}, the slot's {}; they must have the same shape",
                to_string(parameter->shape), to_string(slot->shape));
  AppliedMap applied;
  applied.base = parameter->base;
  applied.slot_base = slot->base;
  applied.kept = std::move(parameter->kept);
  applied.slot_kept = std::move(slot->kept);
  for (const Pair& each : *pairs) {
    const std::span<const Factor> ps(parameter->factors.data() + each.begin, each.end - each.begin);
    const std::span<const Factor> ss(slot->factors.data() + each.slot_begin, each.slot_end - each.slot_begin);
    CommonDim common{ps.front().dim, ss.front().dim, {}};
    if (std::any_of(ps.begin(), ps.end(), [](const Factor& factor) { return factor.count == 0; }))
      return applied; // nothing is kept
    const std::vector<Run> p = runs_of(ps);
    const std::vector<Run> s = runs_of(ss);
    if (auto digits = common_digits(p, s)) {
      common.stretches.push_back({0, 0, std::move(*digits)});
    } else {
      auto stretches = stretches_of(p, s);
      if (!stretches)
        return pass_on(std::move(stretches));
      common.stretches = std::move(*stretches);
    }
    applied.common.push_back(std::move(common));
  }
  for (std::size_t d = 0; d < slot_shape.size(); ++d)
    if (segments_of(applied, d) > most_segments)
      return fail(Code::limit_exceeded, "dim {} of the slot lies in more than {} pieces", d, most_segments);
  return applied;
}

/// Shapes of one side that give what the other side keeps.
Result<std::vector<ShapeHint>> shapes_giving(const Selection& selection, const std::vector<Index>& bound,
                                             const std::vector<Index>& most, const Order& order,
                                             const Selected& other) {
  auto hints = shapes_keeping(selection, most, order, other.shape);
  if (hints || !selection.view)
    return hints;
  std::vector<ShapeHint> apart;
  for (Shape& shape : shapes_viewed(*selection.view))
    if (const auto own = select(selection, bound, order, shape); own && pair_apart(*own, other))
      apart.push_back({shape, std::vector<bool>(shape.size(), false)});
  if (apart.empty())
    return hints;
  return apart;
}

} // namespace

Result<AppliedMap> apply(const MapUse& use, const Shape& shape, const Shape& slot_shape) {
  auto applied = apply_unprefixed(use, shape, slot_shape);
  if (!applied)
    return fail(applied.error().code, "{}: {}", describe(use, &shape, &slot_shape), applied.error().message);
  return applied;
}

Result<std::vector<std::vector<Span>>> kept_positions(const MapUse& use, const Shape& shape) {
  auto selected = select(use.map->of_parameter, use.bound, order_of(*use.map), shape);
  if (!selected)
    return fail(selected.error().code, "{}: {}", describe(use, &shape, nullptr), selected.error().message);
  return std::move(selected->kept);
}

Result<std::vector<ShapeHint>> parameter_shapes(const MapUse& use, const Shape& slot_shape) {
  auto slot = select(use.map->of_slot, use.slot_bound, as_it_is, slot_shape);
  if (!slot)
    return fail(slot.error().code, "{}: on the slot's side {}", describe(use, nullptr, &slot_shape),
                slot.error().message);
  auto hints = shapes_giving(use.map->of_parameter, use.bound, use.bound, order_of(*use.map), *slot);
  if (!hints)
    return fail(hints.error().code, "{}: {}", describe(use, nullptr, &slot_shape), hints.error().message);
  return hints;
}

Result<std::vector<ShapeHint>> slot_shapes(const MapUse& use, const Shape& shape) {
  auto parameter = select(use.map->of_parameter, use.bound, order_of(*use.map), shape);
  if (!parameter)
    return fail(parameter.error().code, "{}: {}", describe(use, &shape, nullptr), parameter.error().message);
  if (use.map->of_slot.takes_all())
    return std::vector<ShapeHint>{{parameter->shape, std::vector<bool>(parameter->shape.size(), false)}};
  auto hints = shapes_giving(use.map->of_slot, use.slot_bound, use.slot_most, as_it_is, *parameter);
  if (!hints)
    return fail(hints.error().code, "{}: on the slot's side {}", describe(use, &shape, nullptr), hints.error().message);
  return hints;
}

std::vector<ShapeHint> common_shapes(std::span<const ShapeHint> a, std::span<const ShapeHint> b) {
  std::vector<ShapeHint> result;
  for (const ShapeHint& x : a)
    for (const ShapeHint& y : b) {
      if (x.shape.size() != y.shape.size())
        continue;
      ShapeHint both;
      bool agree = true;
      for (std::size_t d = 0; d < x.shape.size(); ++d) {
        both.shape.push_back(std::max(x.shape[d], y.shape[d]));
        both.open.push_back(x.open[d] && y.open[d]);
        agree =
          agree && (x.open[d] || x.shape[d] == both.shape.back()) && (y.open[d] || y.shape[d] == both.shape.back());
      }
      const bool known =
        std::any_of(result.begin(), result.end(), [&](const ShapeHint& other) { return other.shape == both.shape; });
      if (agree && !known)
        result.push_back(std::move(both));
    }
  return result;
}

} // namespace deltawire::layout
