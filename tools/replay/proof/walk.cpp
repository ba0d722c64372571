#include "walk.hpp"

#include <algorithm>

namespace deltawire::replay::proof {
namespace {

/// Adds a pair to the last run where it goes on with equal steps.
void append(std::vector<Run>& runs, const Pair& pair) {
  if (!runs.empty()) {
    Run& last = runs.back();
    const Index left_step = pair.left - (last.left + (last.count - 1) * last.left_step);
    const Index right_step = pair.right - (last.right + (last.count - 1) * last.right_step);
    if (last.count == 1) {
      last.left_step = left_step;
      last.right_step = right_step;
    }
    if (left_step == last.left_step && right_step == last.right_step) {
      ++last.count;
      return;
    }
  }
  runs.push_back({pair.left, pair.right, 1, 1, 1});
}

/// The smallest distance between left numbers.
Index finest(const std::vector<Run>& runs) {
  Index step = runs.front().left_step;
  for (const Run& run : runs)
    if (run.count > 1)
      step = std::min(step, run.left_step);
  return step;
}

/// Makes one level of two, where the inner one is a single run and each run of the outer one steps over just it.
bool merge(const std::vector<Run>& outer, std::vector<Run>& inner) {
  if (inner.size() != 1)
    return false;
  const Run one = inner.front();
  for (const Run& run : outer)
    if (run.count > 1 && (run.left_step != one.left_step * one.count || run.right_step != one.right_step * one.count))
      return false;
  std::vector<Run> merged;
  for (const Run& run : outer)
    merged.push_back(
      {run.left + one.left, run.right + one.right, one.left_step, one.right_step, run.count * one.count});
  inner = std::move(merged);
  return true;
}

} // namespace

Walk walk_of(const Relation& relation) {
  Pair base;
  std::vector<std::vector<Run>> levels;
  for (const Factor& factor : relation) {
    if (factor.pairs.size() == 1) { // adds the same to all
      base.left += factor.pairs.front().left;
      base.right += factor.pairs.front().right;
      continue;
    }
    std::vector<Pair> pairs = factor.pairs;
    const auto by_left = [](const Pair& a, const Pair& b) { return a.left < b.left; };
    if (!std::is_sorted(pairs.begin(), pairs.end(), by_left))
      std::sort(pairs.begin(), pairs.end(), by_left);
    std::vector<Run>& runs = levels.emplace_back();
    for (const Pair& pair : pairs)
      append(runs, pair);
  }
  if (levels.empty())
    levels.push_back({Run{}});
  std::stable_sort(levels.begin(), levels.end(),
                   [](const std::vector<Run>& a, const std::vector<Run>& b) { return finest(a) > finest(b); });
  while (levels.size() > 1 && merge(levels[levels.size() - 2], levels.back()))
    levels.erase(levels.end() - 2);
  for (Run& run : levels.front()) {
    run.left += base.left;
    run.right += base.right;
  }
  for (std::vector<Run>& runs : levels)
    runs.shrink_to_fit();
  return {std::move(levels)};
}

std::vector<Run> runs_of(const Shape& numbers) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    append(runs, {static_cast<Index>(i), numbers[i]});
  runs.shrink_to_fit();
  return runs;
}

Index number_at(const std::vector<Run>& runs, Index left) {
  const auto after =
    std::upper_bound(runs.begin(), runs.end(), left, [](Index wanted, const Run& run) { return wanted < run.left; });
  const Run& run = *std::prev(after);
  return run.right + (left - run.left) * run.right_step;
}

} // namespace deltawire::replay::proof
