// A replay of a small model in processes that is under way while a test does things to its children.
#pragma once

#include "command.hpp"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <vector>

namespace deltawire::test {

/// `versions` versions of small_model(), 1 and 2 in turn, with a dump after each and a report; killed at its end.
struct RunningReplay {
  Scratch scratch;
  std::unique_ptr<Running> running;
  int versions;

  RunningReplay(const std::string& topology, int versions, const std::vector<std::string>& more = {});

  /// Waits until the worker has dumped a version.
  void until_held(int version, int worker) const;
  /// The latest version that the worker has dumped, all before it dumped too.
  [[nodiscard]] int newest_of(int worker) const;

  /// e.g. ("worker", "--index", "1")
  [[nodiscard]] pid_t child(const std::string& side, const std::string& option, const std::string& index) const;

  [[nodiscard]] nlohmann::json report() const;

private:
  [[nodiscard]] std::string dump_of(int version, int worker) const;
};

} // namespace deltawire::test
