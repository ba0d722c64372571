#include "sync/gather.hpp"

#include <algorithm>

namespace deltawire::sync {

GatherRank::GatherRank(std::vector<std::uint32_t> windows_of_chunks, std::uint32_t windows)
  : windows_of_chunks_(std::move(windows_of_chunks)), windows_(windows) {}

wire::Offer GatherRank::nothing(std::uint64_t version) const {
  wire::Offer offer;
  offer.version = version;
  offer.windows_complete = windows_;
  return offer;
}

std::optional<wire::Offer> GatherRank::add(EncodedChunk chunk) {
  Running& running = running_[chunk.version];
  wire::Offer offer;
  offer.version = chunk.version;
  const std::uint64_t version = chunk.version;
  queued_ += chunk.bytes.size();
  running.early.emplace(chunk.chunk, std::move(chunk));
  while (!running.early.empty() && running.early.begin()->first == running.next_chunk) {
    EncodedChunk next = std::move(running.early.begin()->second);
    running.early.erase(running.early.begin());
    const std::uint32_t window = windows_of_chunks_[running.next_chunk++];
    std::uint64_t begin = 0;
    for (const std::uint64_t end : next.ends) {
      offer.pieces.emplace_back(window, static_cast<std::uint32_t>(end - begin));
      begin = end;
    }
    if (!next.ends.empty())
      running.ready.push_back(std::move(next));
  }
  const std::uint32_t complete =
    running.next_chunk == windows_of_chunks_.size() ? windows_ : windows_of_chunks_[running.next_chunk];
  const bool advanced = complete > running.windows_complete;
  running.windows_complete = complete;
  offer.windows_complete = complete;
  if (running.next_chunk == windows_of_chunks_.size() && running.ready.empty() && running.early.empty())
    running_.erase(version);
  if (offer.pieces.empty() && !advanced)
    return std::nullopt;
  return offer;
}

Result<std::vector<std::byte>> GatherRank::cut(const wire::Grant& grant) {
  const auto found = running_.find(grant.version);
  if (found == running_.end())
    return fail(Code::invalid_input, "round {} of version {}: the root granted pieces that this rank did not offer",
                grant.round, grant.version);
  Running& running = found->second;
  std::uint64_t left = 0;
  for (const EncodedChunk& chunk : running.ready)
    left += chunk.bytes.size();
  if (!running.ready.empty() && running.front_piece > 0)
    left -= running.ready.front().ends[running.front_piece - 1];
  if (grant.bytes > left)
    return fail(Code::invalid_input, "round {} of version {}: the root granted {} bytes where {} are offered",
                grant.round, grant.version, grant.bytes, left);

  std::vector<std::byte> out;
  out.reserve(grant.bytes);
  std::uint32_t pieces = grant.pieces;
  while (pieces > 0 && !running.ready.empty()) {
    EncodedChunk& chunk = running.ready.front();
    const std::size_t last = std::min<std::size_t>(chunk.ends.size(), running.front_piece + pieces);
    const std::uint64_t begin = running.front_piece == 0 ? 0 : chunk.ends[running.front_piece - 1];
    const std::uint64_t end = chunk.ends[last - 1];
    if (begin == 0 && end == chunk.bytes.size() && out.empty())
      out = std::move(chunk.bytes);
    else
      out.insert(out.end(), chunk.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                 chunk.bytes.begin() + static_cast<std::ptrdiff_t>(end));
    pieces -= static_cast<std::uint32_t>(last - running.front_piece);
    running.front_piece = last;
    if (last == chunk.ends.size()) {
      running.ready.pop_front();
      running.front_piece = 0;
    }
  }
  if (pieces != 0 || out.size() != grant.bytes)
    return fail(Code::invalid_input,
                "round {} of version {}: the root's cut of {} bytes does not end between two pieces", grant.round,
                grant.version, grant.bytes);
  queued_ -= out.size();
  if (running.next_chunk == windows_of_chunks_.size() && running.ready.empty())
    running_.erase(found);
  return out;
}

GatherRoot::GatherRoot(std::uint32_t ranks, std::uint32_t windows, std::uint64_t max_round)
  : ranks_(ranks), windows_(windows), max_round_(max_round) {}

GatherRoot::Running& GatherRoot::running(std::uint64_t version) {
  Running& running = running_[version];
  if (running.ranks.empty())
    running.ranks.resize(ranks_);
  return running;
}

Result<void> GatherRoot::on_offer(std::uint32_t rank, const wire::Offer& offer) {
  if (rank >= ranks_)
    return fail(Code::invalid_input, "an offer from rank {} of {} ranks", rank, ranks_);
  if (offer.version < std::max<std::uint64_t>(active_, last_ + (active_ == 0 ? 1 : 0)) || offer.version > last_ + 2)
    return fail(Code::invalid_input, "rank {} offers pieces of version {} while version {} is gathered", rank,
                offer.version, last_);
  RankState& state = running(offer.version).ranks[rank];
  if (offer.windows_complete < state.windows_complete || offer.windows_complete > windows_)
    return fail(Code::invalid_input, "rank {}, version {}: {} windows complete after {}, of {}", rank, offer.version,
                offer.windows_complete, state.windows_complete, windows_);
  for (const auto& [window, bytes] : offer.pieces) {
    if (window >= windows_ || window < state.last_window || window < state.windows_complete)
      return fail(Code::invalid_input, "rank {}, version {}: a piece of window {} after window {}", rank, offer.version,
                  window, std::max(state.last_window, state.windows_complete));
    if (bytes == 0 || bytes > max_round_)
      return fail(Code::invalid_input, "rank {}, version {}: a piece of {} bytes; max_round is {}", rank, offer.version,
                  bytes, max_round_);
    state.last_window = window;
    state.pieces.emplace_back(window, bytes);
  }
  state.windows_complete = offer.windows_complete;
  return {};
}

Result<void> GatherRoot::on_report(std::uint32_t rank, const wire::CaptureReport& report) {
  if (rank >= ranks_)
    return fail(Code::invalid_input, "a capture report from rank {} of {} ranks", rank, ranks_);
  if (report.version <= (active_ == 0 ? last_ : last_ - 1) || report.version > last_ + 2)
    return fail(Code::invalid_input, "rank {} reports the capture of version {} while version {} is gathered", rank,
                report.version, last_);
  Running& now = running(report.version);
  if (now.ranks[rank].report)
    return fail(Code::invalid_input, "rank {} reports the capture of version {} twice", rank, report.version);
  for (std::uint32_t other = 0; other < ranks_; ++other) {
    const auto& earlier = now.ranks[other].report;
    if (earlier && (earlier->step != report.step || earlier->kind != report.kind))
      return fail(
        Code::disagreement,
        "publish() number {}: rank {} publishes step {}, rank {} step {}: every rank must publish the same steps "
        "in the same order",
        report.version, rank, report.step, other, earlier->step);
  }
  now.ranks[rank].report = report;
  return {};
}

void GatherRoot::begin(std::uint64_t version) {
  active_ = version;
  last_ = version;
  window_ = 0;
  rounds_begun_ = 0;
  (void)running(version);
}

std::vector<GatherRoot::Granted> GatherRoot::next_round() {
  std::vector<Granted> out;
  if (active_ == 0 || window_ == windows_ || held_ >= max_round_)
    return out;
  Running& now = running(active_);
  std::uint64_t largest = 0;
  for (const RankState& state : now.ranks)
    if (!state.pieces.empty() && state.pieces.front().first == window_)
      largest = std::max<std::uint64_t>(largest, state.pieces.front().second);
  // Half of the cap, so that the next round is gathered while this one is copied into a flush.
  std::uint64_t budget = std::min(max_round_ - held_, std::max(max_round_ / 2, largest));
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    RankState& state = now.ranks[rank];
    wire::Grant grant;
    while (!state.pieces.empty() && state.pieces.front().first == window_ && state.pieces.front().second <= budget) {
      budget -= state.pieces.front().second;
      grant.bytes += state.pieces.front().second;
      ++grant.pieces;
      state.pieces.pop_front();
    }
    if (grant.pieces == 0)
      continue;
    grant.version = active_;
    grant.round = round_;
    held_ += grant.bytes;
    state.granted.emplace_back(round_, grant.bytes);
    out.push_back({rank, grant});
  }
  if (!out.empty()) {
    ++round_;
    ++rounds_begun_;
  }
  return out;
}

Result<void> GatherRoot::on_share(std::uint32_t rank, std::uint64_t round, std::uint64_t bytes) {
  if (active_ == 0 || rank >= ranks_)
    return fail(Code::invalid_input, "rank {} sent its share of round {}, which is not running", rank, round);
  RankState& state = running(active_).ranks[rank];
  if (state.granted.empty() || state.granted.front() != std::pair{round, bytes})
    return fail(Code::invalid_input, "rank {} sent {} bytes for round {}, which is not what it was granted", rank,
                bytes, round);
  state.granted.pop_front();
  return {};
}

bool GatherRoot::window_complete(const Running& now) const {
  return std::all_of(now.ranks.begin(), now.ranks.end(), [this](const RankState& state) {
    return state.granted.empty() && state.windows_complete > window_ &&
           (state.pieces.empty() || state.pieces.front().first > window_);
  });
}

bool GatherRoot::window_ended() {
  if (active_ == 0 || window_ == windows_ || !window_complete(running(active_)))
    return false;
  ++window_;
  return true;
}

std::optional<GatherTotals> GatherRoot::finished() {
  if (active_ == 0 || window_ != windows_)
    return std::nullopt;
  const Running& now = running(active_);
  for (const RankState& state : now.ranks)
    if (!state.report || !state.granted.empty())
      return std::nullopt;
  GatherTotals totals;
  totals.version = active_;
  totals.rounds = rounds_begun_;
  std::map<std::uint32_t, std::uint64_t> digests;
  for (const RankState& state : now.ranks) {
    const wire::CaptureReport& report = *state.report;
    totals.step = report.step;
    totals.seed = report.kind == wire::DeliveryKind::seed;
    totals.elements += report.elements;
    totals.changed += report.changed;
    if (report.diff.begin <= report.diff.end) {
      totals.diff_begin_ns =
        totals.diff_begin_ns == 0 ? report.diff.begin : std::min(totals.diff_begin_ns, report.diff.begin);
      totals.diff_end_ns = std::max(totals.diff_end_ns, report.diff.end);
    }
    totals.differ_peak = std::max(totals.differ_peak, report.differ_peak);
    totals.gather_queue_peak = std::max(totals.gather_queue_peak, report.gather_queue_peak);
    for (const auto& [cell, change] : report.digest_changes)
      digests[cell] += change;
  }
  totals.digest_changes.assign(digests.begin(), digests.end());
  running_.erase(active_);
  active_ = 0;
  return totals;
}

std::vector<std::uint32_t> GatherRoot::waiting_for() const {
  std::vector<std::uint32_t> out;
  const auto found = running_.find(active_);
  if (active_ == 0 || found == running_.end())
    return out;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const RankState& state = found->second.ranks[rank];
    if (!state.report || !state.granted.empty() || state.windows_complete < windows_)
      out.push_back(rank);
  }
  return out;
}

} // namespace deltawire::sync
