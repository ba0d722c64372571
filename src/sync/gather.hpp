// The gather as two pure machines: GatherRank on every rank (the root's own share included) and GatherRoot on the root.
//
// A rank offers its pieces in walk order as they become ready; the root cuts rounds from the offers, windows in order,
// and grants each rank its cut; the rank answers with one frame of exactly the granted bytes. A rank with nothing to
// send exchanges control messages only. Bytes held by the root (granted, or gathered and not yet consumed) never pass
// max_round, so rounds overlap with the flush that is assembled from the last one.
#pragma once

#include "result.hpp"
#include "wire/messages.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace deltawire::sync {

/// Encoded pieces of one chunk: whole pieces back to back; ends[i] is the end offset of piece i.
struct EncodedChunk {
  std::uint64_t version = 0;
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

  /// A rank that owns nothing has nothing to add: what it says once per version.
  [[nodiscard]] wire::Offer nothing(std::uint64_t version) const;

  /// Takes the granted pieces out, as one buffer of exactly grant.bytes.
  [[nodiscard]] Result<std::vector<std::byte>> cut(const wire::Grant& grant);

  [[nodiscard]] std::uint64_t queued_bytes() const noexcept { return queued_; }

private:
  struct Running {
    std::map<std::uint32_t, EncodedChunk> early; ///< arrived before a chunk in front of them
    std::deque<EncodedChunk> ready;
    std::size_t front_piece = 0; ///< of ready.front()
    std::uint32_t next_chunk = 0;
    std::uint32_t windows_complete = 0;
  };
  std::vector<std::uint32_t> windows_of_chunks_;
  std::uint32_t windows_;
  std::map<std::uint64_t, Running> running_; ///< by version
  std::uint64_t queued_ = 0;
};

/// Sums of a gathered version.
struct GatherTotals {
  std::uint64_t version = 0;
  std::uint64_t step = 0;
  bool seed = false;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t rounds = 0;
  std::int64_t diff_begin_ns = 0, diff_end_ns = 0;                     ///< over all ranks; 0 = none
  std::uint64_t differ_peak = 0, gather_queue_peak = 0;                ///< largest of any rank
  std::vector<std::pair<std::uint32_t, std::uint64_t>> digest_changes; ///< summed over ranks, by cell
};

class GatherRoot {
public:
  GatherRoot(std::uint32_t ranks, std::uint32_t windows, std::uint64_t max_round);

  /// A rank's messages; they may come before begin(version). Fails on what no honest rank says.
  [[nodiscard]] Result<void> on_offer(std::uint32_t rank, const wire::Offer& offer);
  [[nodiscard]] Result<void> on_report(std::uint32_t rank, const wire::CaptureReport& report);

  /// The delivery of `version` may gather now. Versions begin in order, one at a time.
  void begin(std::uint64_t version);

  struct Granted {
    std::uint32_t rank = 0;
    wire::Grant grant;
  };
  /// Cuts the next round, if one may start now: at most one grant a rank.
  [[nodiscard]] std::vector<Granted> next_round();

  /// A rank's share of a round came in. Fails when it was not granted or has another length.
  [[nodiscard]] Result<void> on_share(std::uint32_t rank, std::uint64_t round, std::uint64_t bytes);

  /// FlushBucket has copied this many gathered bytes.
  void consumed(std::uint64_t bytes) noexcept { held_ -= std::min(bytes, held_); }

  /// True once for each window that is complete and gathered.
  [[nodiscard]] bool window_ended();

  /// The totals, once, when every window is gathered and every rank has reported.
  [[nodiscard]] std::optional<GatherTotals> finished();

  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return held_; }
  [[nodiscard]] bool active() const noexcept { return active_ != 0; }
  /// Ranks that the active version still waits for: capture not reported, or shares outstanding.
  [[nodiscard]] std::vector<std::uint32_t> waiting_for() const;

private:
  struct RankState {
    std::deque<std::pair<std::uint32_t, std::uint32_t>> pieces; ///< (window, bytes) offered and not granted
    std::uint32_t windows_complete = 0;
    std::uint32_t last_window = 0;
    std::optional<wire::CaptureReport> report;
    std::deque<std::pair<std::uint64_t, std::uint64_t>> granted; ///< (round, bytes) not yet here
  };
  struct Running {
    std::vector<RankState> ranks;
  };
  [[nodiscard]] Running& running(std::uint64_t version);
  [[nodiscard]] bool window_complete(const Running& running) const;

  std::uint32_t ranks_;
  std::uint32_t windows_;
  std::uint64_t max_round_;
  std::uint64_t active_ = 0; ///< version, 0 = none
  std::uint64_t last_ = 0;   ///< the last version that began
  std::uint32_t window_ = 0;
  std::uint64_t round_ = 0; ///< of the session, never reused
  std::uint64_t rounds_begun_ = 0;
  std::uint64_t held_ = 0;
  std::map<std::uint64_t, Running> running_;
};

} // namespace deltawire::sync
