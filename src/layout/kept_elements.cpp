#include "layout/kept_elements.hpp"

#include <algorithm>

namespace deltawire::layout {
namespace {

/// First positions that both sets contain; an empty span where there are none.
Span meeting(const std::vector<Span>& a, const std::vector<Span>& b) {
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const Span common{std::max(a[i].begin, b[k].begin), std::min(a[i].end, b[k].end)};
    if (common.begin < common.end)
      return common;
    if (a[i].end < b[k].end)
      ++i;
    else
      ++k;
  }
  return {};
}

std::string describe(const std::vector<Span>& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box[d].begin, box[d].end);
  return text + "]";
}

Index elements(const KeptElements& use) {
  Index count = 1;
  for (const auto& spans : *use.dims) {
    Index positions = 0;
    for (const Span& span : spans)
      positions += span.end - span.begin;
    count *= positions;
  }
  return count;
}

/// Finds the first box, dims d.., that none of `uses` keeps; `gap` gets its ranges, and is as before where there is
/// none.
bool first_gap(const std::vector<KeptElements>& uses, const Shape& shape, std::size_t d, std::vector<Span>& gap) {
  if (d == shape.size())
    return uses.empty();
  std::vector<Index> borders{0, shape[d]};
  for (const KeptElements& use : uses)
    for (const Span& span : (*use.dims)[d]) {
      borders.push_back(span.begin);
      borders.push_back(span.end);
    }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const Span stretch{borders[i], borders[i + 1]};
    std::vector<KeptElements> here;
    for (const KeptElements& use : uses) {
      const auto& spans = (*use.dims)[d];
      const auto after = std::upper_bound(spans.begin(), spans.end(), stretch.begin,
                                          [](Index position, const Span& span) { return position < span.begin; });
      if (after != spans.begin() && std::prev(after)->end >= stretch.end)
        here.push_back(use);
    }
    gap.push_back(stretch);
    if (first_gap(here, shape, d + 1, gap))
      return true;
    gap.pop_back();
  }
  return false;
}

} // namespace

std::optional<std::string> find_overlap(std::span<const KeptElements> uses) {
  std::vector<KeptElements> order;
  for (const KeptElements& use : uses)
    if (std::none_of(use.dims->begin(), use.dims->end(), [](const auto& spans) { return spans.empty(); }))
      order.push_back(use);
  if (order.size() < 2)
    return std::nullopt;
  // Along the first dim in which uses differ most (experts), sorted, only near neighbours can meet.
  const std::size_t dims = order.front().dims->size();
  std::size_t sweep = 0;
  std::size_t most = 0;
  for (std::size_t d = 0; d < dims; ++d) {
    std::vector<Index> begins;
    for (const KeptElements& use : order)
      begins.push_back((*use.dims)[d].front().begin);
    std::sort(begins.begin(), begins.end());
    const auto distinct = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (distinct > most) {
      most = distinct;
      sweep = d;
    }
  }
  auto begin = [&](const KeptElements& use) { return dims == 0 ? 0 : (*use.dims)[sweep].front().begin; };
  auto end = [&](const KeptElements& use) { return dims == 0 ? 1 : (*use.dims)[sweep].back().end; };
  std::stable_sort(order.begin(), order.end(),
                   [&](const KeptElements& a, const KeptElements& b) { return begin(a) < begin(b); });
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t k = i + 1; k < order.size() && begin(order[k]) < end(order[i]); ++k) {
      std::vector<Span> box;
      for (std::size_t d = 0; d < dims; ++d) {
        box.push_back(meeting((*order[i].dims)[d], (*order[k].dims)[d]));
        if (box.back().begin == box.back().end)
          break;
      }
      if (box.empty() || box.back().begin < box.back().end)
        return fmt::format("elements {} belong to slot '{}' and to slot '{}'; each element belongs to one",
                           describe(box), *order[i].slot, *order[k].slot);
    }
  return std::nullopt;
}

std::optional<std::string> find_uncovered(std::span<const KeptElements> uses, const Shape& shape) {
  Index covered = 0;
  for (const KeptElements& use : uses)
    covered += elements(use);
  Index all = 1;
  for (Index extent : shape)
    all *= extent;
  if (covered == all)
    return std::nullopt;
  std::vector<Span> gap;
  first_gap({uses.begin(), uses.end()}, shape, 0, gap);
  return fmt::format("{} of {} elements are covered by no map, the first in {}", all - covered, all, describe(gap));
}

} // namespace deltawire::layout
