// What the root says of workers that updates do not reach: a line when that begins and when it ends, a line when the
// worker's state changes meanwhile, and otherwise only now and then, with a count. Pure.
#pragma once

#include "deltawire/deltawire.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace deltawire::replay {

class MissedVersions {
public:
  /// What is to be said of a committed update, a line a worker at most. Of a worker that stays as it is, only its 10th,
  /// 100th, ... version in a row that it has not got.
  [[nodiscard]] std::vector<std::string> update_over(const Outcome& outcome);

  /// The first version that did not reach a worker, and why; empty: all reached all.
  [[nodiscard]] const std::string& first() const noexcept { return first_; }

private:
  struct Missing {
    std::string state;          ///< as it was said last
    std::uint64_t versions = 0; ///< in a row
    std::uint64_t next = 10;    ///< how many of them are worth a word again
  };

  std::map<std::uint32_t, Missing> missing_; ///< by worker
  std::string first_;
};

} // namespace deltawire::replay
