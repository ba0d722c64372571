#include "sync/audit.hpp"

namespace deltawire::sync {

std::string WrongDigest::text() const {
  if (!asked)
    return "a digest that nobody asked for";
  if (!reported)
    return "no digest, the worker left it out";
  return fmt::format("digest {:016x} in memory, the trainer has {:016x}", *reported, expected);
}

std::optional<WrongDigest> first_wrong(const Digests& expected, const Digests& reported) {
  auto found = reported.begin();
  for (const auto& [cell, digest] : expected) {
    if (found == reported.end() || found->first > cell)
      return WrongDigest{cell, digest, std::nullopt};
    if (found->first < cell)
      break;
    for (; found != reported.end() && found->first == cell; ++found)
      if (found->second != digest)
        return WrongDigest{cell, digest, found->second};
  }
  if (found != reported.end())
    return WrongDigest{found->first, 0, found->second, false};
  return std::nullopt;
}

Result<void> RankAudits::on_report(std::uint32_t rank, const wire::AuditReport& report) {
  if (rank >= latest_.size())
    return fail(Code::invalid_input, "rank {} of {} reports an audit", rank, latest_.size());
  if (report.audit != latest_[rank] + 1)
    return fail(Code::invalid_input, "rank {} reports audit {} after audit {}", rank, report.audit, latest_[rank]);
  latest_[rank] = report.audit;
  if (!report.error.empty())
    return fail(Code::verification_failed, "audit of version {}: rank {}: {}", report.version, rank, report.error);
  return {};
}

std::vector<std::uint32_t> RankAudits::missing(std::uint64_t audit) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < latest_.size(); ++rank)
    if (latest_[rank] < audit)
      ranks.push_back(rank);
  return ranks;
}

} // namespace deltawire::sync
