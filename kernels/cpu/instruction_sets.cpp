#include "kernels/cpu/highway.hpp"

#include "kernels/instruction_sets.hpp"

#include <hwy/highway.h>

namespace deltawire::kernels {
namespace {

/// The sets of a mask, best first: the lower bit is the better one.
std::vector<std::int64_t> separate(std::int64_t targets) {
  std::vector<std::int64_t> result;
  for (; targets != 0; targets &= targets - 1)
    result.push_back(targets & -targets);
  return result;
}

std::int64_t usable() {
  return hwy::SupportedTargets() & HWY_TARGETS;
}

/// Undoes a choice, so that all usable ones are to be seen.
class Everything {
public:
  Everything() : chosen_(usable()) { hwy::SetSupportedTargetsForTest(0); }
  ~Everything() { hwy::SetSupportedTargetsForTest(chosen_); }
  Everything(const Everything&) = delete;
  Everything& operator=(const Everything&) = delete;

private:
  std::int64_t chosen_;
};

} // namespace

std::vector<std::string> instruction_sets() {
  const Everything everything;
  std::vector<std::string> names;
  for (const std::int64_t target : separate(usable()))
    names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string instruction_set() {
  return hwy::TargetName(separate(usable()).front());
}

bool use_instruction_set(const std::string& name) {
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  std::int64_t found = 0;
  {
    const Everything everything;
    for (const std::int64_t target : separate(usable()))
      if (name == hwy::TargetName(target))
        found = target;
  }
  if (found == 0)
    return false;
  hwy::SetSupportedTargetsForTest(found);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

} // namespace deltawire::kernels
