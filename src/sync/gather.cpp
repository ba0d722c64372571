#include "sync/gather.hpp"

#include <algorithm>

namespace deltawire::sync {

GatherRank::GatherRank(std::vector<std::uint32_t> windows_of_chunks, std::uint32_t windows)
  : windows_of_chunks_(std::move(windows_of_chunks)), windows_(windows) {}

wire::Offer GatherRank::nothing(std::uint64_t gather) const {
  wire::Offer offer;
  offer.gather = gather;
  offer.windows_complete = windows_;
  return offer;
}

std::uint64_t GatherRank::drop(std::uint64_t gather) {
  if (gather >= latest_ && !windows_of_chunks_.empty())
    dropped_.insert(gather);
  const auto found = running_.find(gather);
  if (found == running_.end())
    return 0;
  const Running& running = found->second;
  std::uint64_t bytes = 0;
  for (const EncodedChunk& chunk : running.ready)
    bytes += chunk.bytes.size();
  for (const auto& [number, chunk] : running.early)
    bytes += chunk.bytes.size();
  if (!running.ready.empty() && running.front_piece > 0)
    bytes -= running.ready.front().ends[running.front_piece - 1];
  running_.erase(found);
  queued_ -= bytes;
  return bytes;
}

std::optional<wire::Offer> GatherRank::add(EncodedChunk chunk) {
  if (dropped(chunk.gather))
    return std::nullopt;
  const std::uint64_t gather = chunk.gather;
  latest_ = std::max(latest_, gather_of(version_of_gather(gather)));
  dropped_.erase(dropped_.begin(), dropped_.lower_bound(latest_));
  Running& running = running_[gather];
  wire::Offer offer;
  offer.gather = gather;
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
  // How far it is need not be said at every window where there is nothing to offer: a model has hundreds of them, and
  // the root hears it from every rank.
  const std::uint32_t unsaid = complete - running.windows_said;
  const bool worth_saying = unsaid > 0 && (complete == windows_ || unsaid >= windows_ / says_how_far);
  offer.windows_complete = complete;
  if (!offer.pieces.empty() || worth_saying)
    running.windows_said = complete;
  if (running.next_chunk == windows_of_chunks_.size() && running.ready.empty() && running.early.empty())
    running_.erase(gather);
  if (offer.pieces.empty() && !worth_saying)
    return std::nullopt;
  return offer;
}

Result<std::vector<std::byte>> GatherRank::cut(const wire::Grant& grant) {
  if (dropped(grant.gather))
    return std::vector<std::byte>();
  const auto found = running_.find(grant.gather);
  if (found == running_.end())
    return fail(Code::invalid_input, "round {} of gather {}: the root granted pieces that this rank did not offer",
                grant.round, grant.gather);
  Running& running = found->second;
  std::uint64_t left = 0;
  for (const EncodedChunk& chunk : running.ready)
    left += chunk.bytes.size();
  if (!running.ready.empty() && running.front_piece > 0)
    left -= running.ready.front().ends[running.front_piece - 1];
  if (grant.bytes > left)
    return fail(Code::invalid_input, "round {} of gather {}: the root granted {} bytes where {} are offered",
                grant.round, grant.gather, grant.bytes, left);

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
                "round {} of gather {}: the root's cut of {} bytes does not end between two pieces", grant.round,
                grant.gather, grant.bytes);
  queued_ -= out.size();
  if (running.next_chunk == windows_of_chunks_.size() && running.ready.empty())
    running_.erase(found);
  return out;
}

GatherRoot::GatherRoot(std::uint32_t ranks, std::uint32_t windows, std::uint64_t max_round)
  : ranks_(ranks), windows_(windows), max_round_(max_round) {}

GatherRoot::Running& GatherRoot::running(std::uint64_t gather) {
  Running& running = running_[gather];
  if (running.ranks.empty())
    running.ranks.resize(ranks_);
  return running;
}

Result<void> GatherRoot::on_offer(std::uint32_t rank, const wire::Offer& offer) {
  if (rank >= ranks_)
    return fail(Code::invalid_input, "an offer from rank {} of {} ranks", rank, ranks_);
  if (dropped_numbers_.contains(offer.gather))
    return {};
  if (offer.gather < (active_ != 0 ? active_ : last_ + 1) ||
      version_of_gather(offer.gather) > version_of_gather(last_) + 2)
    return fail(Code::invalid_input, "rank {} offers pieces of gather {} while gather {} is running", rank,
                offer.gather, last_);
  RankState& state = running(offer.gather).ranks[rank];
  if (offer.windows_complete < state.windows_complete || offer.windows_complete > windows_)
    return fail(Code::invalid_input, "rank {}, gather {}: {} windows complete after {}, of {}", rank, offer.gather,
                offer.windows_complete, state.windows_complete, windows_);
  for (const auto& [window, bytes] : offer.pieces) {
    if (window >= windows_ || window < state.last_window || window < state.windows_complete)
      return fail(Code::invalid_input, "rank {}, gather {}: a piece of window {} after window {}", rank, offer.gather,
                  window, std::max(state.last_window, state.windows_complete));
    if (bytes == 0 || bytes > max_round_)
      return fail(Code::invalid_input, "rank {}, gather {}: a piece of {} bytes; max_round is {}", rank, offer.gather,
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
  if (report.version <= reports_taken_ || report.version > version_of_gather(last_) + 2)
    return fail(Code::invalid_input, "rank {} reports the capture of version {} while version {} is gathered", rank,
                report.version, version_of_gather(last_));
  Reports& reports = reports_[report.version];
  reports.resize(ranks_);
  if (reports[rank])
    return fail(Code::invalid_input, "rank {} reports the capture of version {} twice", rank, report.version);
  for (std::uint32_t other = 0; other < ranks_; ++other) {
    const auto& earlier = reports[other];
    if (earlier && (earlier->step != report.step || earlier->kind != report.kind))
      return fail(
        Code::disagreement,
        "publish() number {}: rank {} publishes step {}, rank {} step {}: every rank must publish the same steps "
        "in the same order",
        report.version, rank, report.step, other, earlier->step);
  }
  reports[rank] = report;
  settle();
  return {};
}

void GatherRoot::begin(std::uint64_t gather, bool held) {
  running_.erase(running_.begin(), running_.lower_bound(gather));
  active_ = gather;
  is_held_ = held;
  last_ = gather;
  window_ = 0;
  rounds_begun_ = 0;
  (void)running(gather);
  settle();
}

void GatherRoot::drop(std::uint64_t gather) {
  if (active_ == gather)
    active_ = 0;
  last_ = std::max(last_, gather);
  dropped_numbers_.insert(gather);
  settle();
  const auto found = running_.find(gather);
  if (found == running_.end())
    return;
  const bool owed = std::any_of(found->second.ranks.begin(), found->second.ranks.end(),
                                [](const RankState& state) { return !state.granted.empty(); });
  if (owed)
    dropped_.insert_or_assign(gather, std::move(found->second));
  running_.erase(found);
}

std::vector<GatherRoot::Granted> GatherRoot::next_round() {
  std::vector<Granted> out;
  if (active_ == 0 || is_held_ || window_ == windows_ || held_ >= max_round_)
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
    grant.gather = active_;
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

Result<bool> GatherRoot::on_share(std::uint32_t rank, std::uint64_t gather, std::uint64_t round, std::uint64_t bytes) {
  const auto unexpected = [&] {
    return fail(Code::invalid_input,
                "rank {} sent {} bytes for round {} of gather {}, which is not what it was granted", rank, bytes, round,
                gather);
  };
  if (rank >= ranks_)
    return unexpected();
  const bool active = active_ != 0 && gather == active_;
  const auto dropped = active ? dropped_.end() : dropped_.find(gather);
  if (!active && dropped == dropped_.end())
    return unexpected();
  RankState& state = (active ? running(active_) : dropped->second).ranks[rank];
  auto& granted = state.granted;
  if (granted.empty() || granted.front().first != round)
    return unexpected();
  if (granted.front().second != bytes && bytes != 0)
    return unexpected();
  if (!active || bytes == 0)
    consumed(granted.front().second); // nobody else will
  state.gave_up = state.gave_up || bytes == 0;
  granted.pop_front();
  if (!active && std::all_of(dropped->second.ranks.begin(), dropped->second.ranks.end(),
                             [](const RankState& each) { return each.granted.empty(); }))
    dropped_.erase(dropped);
  return active && bytes != 0;
}

bool GatherRoot::window_complete(const Running& now) const {
  return std::all_of(now.ranks.begin(), now.ranks.end(), [this](const RankState& state) {
    return state.granted.empty() && !state.gave_up && state.windows_complete > window_ &&
           (state.pieces.empty() || state.pieces.front().first > window_);
  });
}

bool GatherRoot::window_ended() {
  if (active_ == 0 || is_held_ || window_ == windows_ || !window_complete(running(active_)))
    return false;
  ++window_;
  return true;
}

bool GatherRoot::reported(std::uint64_t version) const {
  for (std::uint64_t each = reports_taken_ + 1; each <= version; ++each) {
    const auto found = reports_.find(each);
    if (found == reports_.end())
      return false;
    for (const auto& report : found->second)
      if (!report)
        return false;
  }
  return true;
}

bool GatherRoot::aborted(std::uint64_t version) const {
  const auto found = reports_.find(version);
  return found != reports_.end() && std::any_of(found->second.begin(), found->second.end(),
                                                [](const auto& report) { return report && report->aborted != 0; });
}

/// A merge of two ascending lists: many ranks and many cells cost no tree. `changes` is as a rank sent it.
void GatherRoot::add_digests(const DigestChanges& changes) {
  if (changes.empty())
    return;
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  DigestChanges sorted; // honest ranks' are already
  const bool is_sorted = std::is_sorted(changes.begin(), changes.end(), before);
  if (!is_sorted) {
    sorted = changes;
    std::sort(sorted.begin(), sorted.end(), before);
  }
  merged_.clear();
  merged_.reserve(digests_.size() + changes.size());
  const auto add = [this](const auto& entry) {
    if (!merged_.empty() && merged_.back().first == entry.first)
      merged_.back().second += entry.second;
    else
      merged_.push_back(entry);
  };
  auto mine = digests_.cbegin();
  for (const auto& entry : is_sorted ? changes : sorted) {
    for (; mine != digests_.cend() && mine->first <= entry.first; ++mine)
      add(*mine);
    add(entry);
  }
  for (; mine != digests_.cend(); ++mine)
    add(*mine);
  digests_.swap(merged_);
}

void GatherRoot::take_digests(std::uint64_t version) {
  for (const auto& report : reports_.at(version))
    add_digests(report->digest_changes);
  reports_.erase(version);
  reports_taken_ = version;
}

/// Of versions that are over and that no gather has brought, only the sum of the digests is kept. A rank has said all
/// of a version's gathers when it reports the next one.
void GatherRoot::settle() {
  while (reports_taken_ + 1 < version_of_gather(last_) && reported(reports_taken_ + 1))
    take_digests(reports_taken_ + 1);
  dropped_numbers_.erase(dropped_numbers_.begin(), dropped_numbers_.lower_bound(gather_of(reports_taken_)));
}

void GatherRoot::take_reports(std::uint64_t version, GatherTotals& totals) {
  if (reports_taken_ < version) {
    for (const auto& report : reports_.at(version)) {
      totals.reported = true;
      totals.step = report->step;
      totals.elements += report->elements;
      totals.changed += report->changed;
      if (report->diff.begin <= report->diff.end) {
        totals.diff_begin_ns =
          totals.diff_begin_ns == 0 ? report->diff.begin : std::min(totals.diff_begin_ns, report->diff.begin);
        totals.diff_end_ns = std::max(totals.diff_end_ns, report->diff.end);
      }
      totals.differ_peak = std::max(totals.differ_peak, report->differ_peak);
      totals.gather_queue_peak = std::max(totals.gather_queue_peak, report->gather_queue_peak);
    }
    while (reports_taken_ < version)
      take_digests(reports_taken_ + 1);
  }
  totals.digest_changes.assign(digests_.begin(), digests_.end());
  digests_.clear();
  settle();
}

std::optional<GatherTotals> GatherRoot::known() {
  const std::uint64_t version = version_of_gather(active_);
  if (active_ == 0 || !is_held_ || reports_taken_ >= version || !reported(version) || aborted(version))
    return std::nullopt;
  GatherTotals totals;
  totals.gather = active_;
  take_reports(version, totals);
  return totals;
}

std::optional<GatherTotals> GatherRoot::finished() {
  if (active_ == 0 || is_held_ || window_ != windows_)
    return std::nullopt;
  for (const RankState& state : running(active_).ranks)
    if (!state.granted.empty())
      return std::nullopt;
  const std::uint64_t version = version_of_gather(active_);
  if (!reported(version) || aborted(version))
    return std::nullopt;
  GatherTotals totals;
  totals.gather = active_;
  totals.rounds = rounds_begun_;
  take_reports(version, totals);
  running_.erase(active_);
  active_ = 0;
  return totals;
}

bool GatherRoot::blocked() const {
  const auto found = running_.find(active_);
  if (active_ == 0 || is_held_ || found == running_.end())
    return false;
  return std::any_of(found->second.ranks.begin(), found->second.ranks.end(), [this](const RankState& state) {
    return !state.pieces.empty() && state.pieces.front().first == window_;
  });
}

std::vector<std::uint32_t> GatherRoot::waiting_for() const {
  std::vector<std::uint32_t> out;
  const auto found = running_.find(active_);
  if (active_ == 0 || found == running_.end())
    return out;
  const std::uint64_t version = version_of_gather(active_);
  const auto reports = reports_.find(version);
  for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
    const RankState& state = found->second.ranks[rank];
    const bool no_report = version > reports_taken_ && (reports == reports_.end() || !reports->second[rank]);
    if (no_report || (!is_held_ && (!state.granted.empty() || state.windows_complete < windows_)))
      out.push_back(rank);
  }
  return out;
}

} // namespace deltawire::sync
