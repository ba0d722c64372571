// A relation as it is compared: its numbers as runs of equal steps, so that what is contiguous on both sides is one
// run.
#pragma once

#include "relation.hpp"

namespace deltawire::replay::proof {

/// (left + i * left_step, right + i * right_step), i < count. With count 1 the steps are 1.
struct Run {
  Index left = 0;
  Index right = 0;
  Index left_step = 1;
  Index right_step = 1;
  Index count = 1;

  [[nodiscard]] bool contiguous() const noexcept { return left_step == 1 && right_step == 1; }
};

/// The product of its levels, outermost first: one position of one run each, added up. At least one level.
struct Walk {
  std::vector<std::vector<Run>> levels;
};

/// The same pairs of elements as the relation, which has some. Left numbers grow within each run.
[[nodiscard]] Walk walk_of(const Relation& relation);

/// Consecutive numbers, as runs; the right numbers are theirs, the left ones count from 0.
[[nodiscard]] std::vector<Run> runs_of(const Shape& numbers);

/// The number that belongs to `left` in such runs.
[[nodiscard]] Index number_at(const std::vector<Run>& runs, Index left);

/// Calls `visit` with each run of the walk's last level whose left numbers meet [begin, end), cut to it.
template <class Visit>
void for_each_run(const Walk& walk, Index begin, Index end, const Visit& visit, std::size_t level = 0, Index left = 0,
                  Index right = 0) {
  for (Run run : walk.levels[level]) {
    run.left += left;
    run.right += right;
    if (level + 1 < walk.levels.size()) {
      for (Index i = 0; i < run.count; ++i)
        for_each_run(walk, begin, end, visit, level + 1, run.left + i * run.left_step, run.right + i * run.right_step);
      continue;
    }
    const Index before = run.left >= begin ? 0 : (begin - run.left + run.left_step - 1) / run.left_step;
    const Index until = run.left >= end ? 0 : (end - run.left + run.left_step - 1) / run.left_step;
    run.count = std::min(run.count, until) - before;
    run.left += before * run.left_step;
    run.right += before * run.right_step;
    if (run.count > 0)
      visit(run);
  }
}

} // namespace deltawire::replay::proof
