// What proves that memory is right: digests as they are reported against those that are expected, and the audits of the
// trainer's ranks as a pure machine on the root: who has said how its snapshot is.
#pragma once

#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::sync {

/// (cell, digest), ascending by cell.
using Digests = std::vector<std::pair<std::uint32_t, std::uint64_t>>;

struct WrongDigest {
  std::uint32_t cell = 0;
  std::uint64_t expected = 0;
  std::optional<std::uint64_t> reported; ///< none: the cell was left out
  bool asked = true;                     ///< false: nobody asked for the cell

  /// "digest 00...2a in memory, the trainer has 00...2b"
  [[nodiscard]] std::string text() const;
};

/// Each expected cell must be reported, once for each place that has it, and no other. Nothing: all are right.
[[nodiscard]] std::optional<WrongDigest> first_wrong(const Digests& expected, const Digests& reported);

/// Which ranks have read their snapshot again. Audits are counted from 1, by everybody alike; a rank may be ahead.
class RankAudits {
public:
  explicit RankAudits(std::uint32_t ranks) : latest_(ranks) {}

  /// Fails on what no honest rank says, and where a rank found its snapshot changed: nothing that is published from it
  /// can be proven any more.
  [[nodiscard]] Result<void> on_report(std::uint32_t rank, const wire::AuditReport& report);

  /// Ranks that have not reported this audit.
  [[nodiscard]] std::vector<std::uint32_t> missing(std::uint64_t audit) const;

private:
  std::vector<std::uint64_t> latest_; ///< audit, by rank
};

} // namespace deltawire::sync
