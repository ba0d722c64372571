// The gather as two pure machines: GatherRank on every rank (the root's own share included) and GatherRoot on the root.
//
// A rank offers its pieces in walk order as they become ready; the root cuts rounds from the offers, windows in order,
// and grants each rank its cut; the rank answers with one frame of exactly the granted bytes. A rank with nothing to
// send exchanges control messages only. Bytes held by the root (granted, or gathered and not yet consumed) never pass
// max_round, so rounds overlap with the flush that is assembled from the last one.
//
// A gather has a number: 2 v brings the own changes of version v, 2 v + 1 its catch-up, for workers that are behind. A
// gather that nobody will take any more is dropped, at any time: what ranks still say of it is ignored, and a share
// that was granted is answered by an empty round where it is not on its way yet.
#pragma once

#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace deltawire::sync {

[[nodiscard]] constexpr std::uint64_t gather_of(std::uint64_t version) noexcept {
  return 2 * version;
}
[[nodiscard]] constexpr std::uint64_t catch_up_gather_of(std::uint64_t version) noexcept {
  return 2 * version + 1;
}
[[nodiscard]] constexpr std::uint64_t version_of_gather(std::uint64_t gather) noexcept {
  return gather / 2;
}
[[nodiscard]] constexpr bool is_catch_up(std::uint64_t gather) noexcept {
  return gather % 2 == 1;
}

/// Encoded pieces of one chunk: whole pieces back to back; ends[i] is the end offset of piece i.
struct EncodedChunk {
  std::uint64_t gather = 0;
  std::uint32_t chunk = 0;
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> ends;
};

class GatherRank {
public:
  /// `windows_of_chunks` is ascending; `windows` = how many there are in the plan.
  GatherRank(std::vector<std::uint32_t> windows_of_chunks, std::uint32_t windows);

  /// A chunk arrived (in any order). Returns the offer to send now, if there is something to say.
  [[nodiscard]] std::optional<wire::Offer> add(EncodedChunk chunk);

  /// A rank that owns nothing has nothing to add: what it says once per gather.
  [[nodiscard]] wire::Offer nothing(std::uint64_t gather) const;

  /// Takes the granted pieces out, as one buffer of exactly grant.bytes; an empty one when the gather was dropped.
  [[nodiscard]] Result<std::vector<std::byte>> cut(const wire::Grant& grant);

  /// Forgets a gather, for good. Returns the bytes that were queued for it: they need credit no more.
  [[nodiscard]] std::uint64_t drop(std::uint64_t gather);
  /// Also true of a gather that is older than what the rank adds now, and has nothing left.
  [[nodiscard]] bool dropped(std::uint64_t gather) const {
    return gather < latest_ ? !running_.contains(gather) : dropped_.contains(gather);
  }

  [[nodiscard]] std::uint64_t queued_bytes() const noexcept { return queued_; }

private:
  struct Running {
    std::map<std::uint32_t, EncodedChunk> early; ///< arrived before a chunk in front of them
    std::deque<EncodedChunk> ready;
    std::size_t front_piece = 0; ///< of ready.front()
    std::uint32_t next_chunk = 0;
    std::uint32_t windows_said = 0; ///< as complete
  };
  /// So many times a gather, at least, a rank that has nothing to offer says how many windows it is through.
  static constexpr std::uint32_t says_how_far = 16;

  std::vector<std::uint32_t> windows_of_chunks_;
  std::uint32_t windows_;
  std::map<std::uint64_t, Running> running_; ///< by gather
  std::set<std::uint64_t> dropped_;          ///< those from latest_ on: the root may be many versions ahead
  std::uint64_t latest_ = 0;                 ///< first gather of the version that was last added to
  std::uint64_t queued_ = 0;
};

/// Sums of a gather. What the ranks reported of a capture is in the totals of the first gather of its version that
/// finishes.
struct GatherTotals {
  std::uint64_t gather = 0;
  bool reported = false; ///< the fields from here to digest_changes, except rounds, are those of the version
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t rounds = 0;
  std::int64_t diff_begin_ns = 0, diff_end_ns = 0;      ///< over all ranks; 0 = none
  std::uint64_t differ_peak = 0, gather_queue_peak = 0; ///< largest of any rank
  /// Summed over ranks, by cell, and over all versions since the last totals that had reports.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digest_changes;
};

class GatherRoot {
public:
  GatherRoot(std::uint32_t ranks, std::uint32_t windows, std::uint64_t max_round);

  /// A rank's messages; they may come before begin(gather). Fails on what no honest rank says.
  [[nodiscard]] Result<void> on_offer(std::uint32_t rank, const wire::Offer& offer);
  [[nodiscard]] Result<void> on_report(std::uint32_t rank, const wire::CaptureReport& report);

  /// The gather may run now. Gathers begin in order, one at a time. `held`: no round is cut until it is begun again.
  void begin(std::uint64_t gather, bool held = false);

  /// What the ranks have reported of the version of a held gather, once, when every rank has. Not in finished() again.
  [[nodiscard]] std::optional<GatherTotals> known();

  /// Nobody takes the gather any more, whether it has begun or not.
  void drop(std::uint64_t gather);

  struct Granted {
    std::uint32_t rank = 0;
    wire::Grant grant;
  };
  /// Cuts the next round, if one may start now: at most one grant a rank.
  [[nodiscard]] std::vector<Granted> next_round();

  /// A rank's share of a round came in: true when it is to be used, false when its gather was dropped, or when the rank
  /// has abandoned it (an empty share: the gather never completes). Fails when it was not granted or has another
  /// length.
  [[nodiscard]] Result<bool> on_share(std::uint32_t rank, std::uint64_t gather, std::uint64_t round,
                                      std::uint64_t bytes);

  /// FlushBucket has copied this many gathered bytes.
  void consumed(std::uint64_t bytes) noexcept { held_ -= std::min(bytes, held_); }

  /// True once for each window that is complete and gathered.
  [[nodiscard]] bool window_ended();

  /// The totals, once, when every window is gathered and every rank has reported its capture. Never when one of them
  /// has left it half done: such a version is to be dropped.
  [[nodiscard]] std::optional<GatherTotals> finished();

  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_; }
  /// Pieces are offered that max_round has no room for yet. Call after next_round() has returned none.
  [[nodiscard]] bool blocked() const;
  [[nodiscard]] bool active() const noexcept { return active_ != 0; }
  /// Ranks that the active gather still waits for: capture not reported, or shares outstanding.
  [[nodiscard]] std::vector<std::uint32_t> waiting_for() const;

private:
  struct RankState {
    std::deque<std::pair<std::uint32_t, std::uint32_t>> pieces; ///< (window, bytes) offered and not granted
    std::uint32_t windows_complete = 0;
    std::uint32_t last_window = 0;
    bool gave_up = false; ///< it answered a grant with nothing: it has abandoned the update, and will say so
    std::deque<std::pair<std::uint64_t, std::uint64_t>> granted; ///< (round, bytes) not yet here
  };
  struct Running {
    std::vector<RankState> ranks;
  };
  using Reports = std::vector<std::optional<wire::CaptureReport>>; ///< by rank
  [[nodiscard]] Running& running(std::uint64_t gather);
  [[nodiscard]] bool window_complete(const Running& running) const;
  [[nodiscard]] bool reported(std::uint64_t version) const;
  [[nodiscard]] bool aborted(std::uint64_t version) const;
  void take_reports(std::uint64_t version, GatherTotals& totals);
  void take_digests(std::uint64_t version);
  void add_digests(const std::vector<std::pair<std::uint32_t, std::uint64_t>>& changes);
  void settle();

  std::uint32_t ranks_;
  std::uint32_t windows_;
  std::uint64_t max_round_;
  std::uint64_t active_ = 0; ///< gather, 0 = none
  bool is_held_ = false;     ///< the active one: nothing but reports is taken
  std::uint64_t last_ = 0;   ///< the last gather that began or was dropped
  std::uint32_t window_ = 0;
  std::uint64_t round_ = 0; ///< of the session, never reused
  std::uint64_t rounds_begun_ = 0;
  std::uint64_t held_ = 0;
  std::map<std::uint64_t, Running> running_; ///< by gather: begun, or spoken of before that
  std::map<std::uint64_t, Running> dropped_; ///< what is still owed of dropped ones
  std::set<std::uint64_t> dropped_numbers_;  ///< those that a rank may still speak of
  std::map<std::uint64_t, Reports> reports_; ///< by version, until they are in some totals or in digests_
  std::uint64_t reports_taken_ = 0;          ///< up to this version
  using DigestChanges = std::vector<std::pair<std::uint32_t, std::uint64_t>>;
  DigestChanges digests_; ///< ascending; of versions that no gather brought, for the next totals
  DigestChanges merged_;  ///< room to add to them
};

} // namespace deltawire::sync
