#include "missed_versions.hpp"

#include <fmt/format.h>

namespace deltawire::replay {

std::vector<std::string> MissedVersions::update_over(const Outcome& outcome) {
  std::vector<std::string> lines;
  for (const WorkerOutcome& worker : outcome.workers) {
    const auto known = missing_.find(worker.index);
    if (worker.version == outcome.version) {
      if (known == missing_.end())
        continue;
      lines.push_back(fmt::format("worker {} has version {} again, after {} that did not reach it", worker.index,
                                  worker.version, known->second.versions));
      missing_.erase(known);
      continue;
    }
    Missing& missing = missing_[worker.index];
    ++missing.versions;
    const std::string why = fmt::format(
      "version {} did not reach worker {}, which is {} at version {}: {}", outcome.version, worker.index, worker.state,
      worker.version,
      worker.error.empty() ? "nothing of its own: it joined meanwhile, or its replica is not whole" : worker.error);
    if (first_.empty())
      first_ = why;
    if (worker.state != missing.state)
      lines.push_back(why);
    else if (missing.versions >= missing.next)
      lines.push_back(fmt::format("{} ({} in a row that it has not got)", why, missing.versions));
    else
      continue;
    missing.state = worker.state;
    while (missing.next <= missing.versions)
      missing.next *= 10;
  }
  return lines;
}

} // namespace deltawire::replay
