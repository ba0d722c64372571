#include "plan_command.hpp"

#include "account.hpp"
#include "layout/problems.hpp"
#include "replay/message.hpp"
#include "sync/chunks.hpp"

#include <algorithm>

namespace deltawire::plan {

namespace {

Result<std::size_t> piece_limit(const config::Actors& actors, std::size_t largest) {
  return sync::piece_limit(actors.differ.inflight, actors.gather_queue.max_round, actors.flush_bucket.cap, largest,
                           actors.flush_bucket.compression == config::Compression::zstd);
}

/// Refuses whatever start-up would: the layout, and caps that hold no element of the largest dtype.
Result<Coverage> cover(const replay::Sides& sides, const std::vector<std::string>& checkpoints) {
  const auto files = replay::open_checkpoints(checkpoints);
  if (!files)
    return tl::make_unexpected(files.error());
  const auto& first = files->front();
  layout::Problems problems;
  const auto agreed = replay::compile_layout(sides, first);
  if (!agreed)
    problems.add(agreed.error());
  std::size_t largest = 1;
  if (agreed)
    largest = sync::largest_element(agreed->plan.slots);
  else // no slots: what they will be made of
    for (const auto& tensor : first.tensors())
      largest = std::max(largest, size_of(tensor.dtype));
  const auto limit = piece_limit(sides.topology.actors, largest);
  if (!limit)
    problems.add(limit.error());
  if (problems.any())
    return tl::make_unexpected(problems.failure());
  return coverage_of(sides, *agreed, *limit, first.path());
}

Result<Account> account_for(const PlanOptions& options) {
  auto sides = replay::open_sides(options.topology, options.overrides);
  if (!sides)
    return pass_on(std::move(sides));
  if (!options.checkpoints.empty()) {
    auto coverage = cover(*sides, options.checkpoints);
    if (!coverage)
      return pass_on(std::move(coverage));
    return account_of(std::move(sides->topology), std::move(*coverage));
  }
  if (auto limit = piece_limit(sides->topology.actors, 1); !limit)
    return pass_on(std::move(limit));
  return account_of(std::move(sides->topology), std::nullopt);
}

} // namespace

replay::ExitStatus plan_command(const PlanOptions& options) {
  const auto account = account_for(options);
  if (!account)
    return replay::report_failure(account.error());
  const std::string text = options.dot ? dot_of(*account) : options.json ? json_of(*account) : text_of(*account);
  if (auto printed = replay::print_out(text, options.json ? "--json" : options.dot ? "--dot" : ""); !printed)
    return replay::report_failure(printed.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::plan
