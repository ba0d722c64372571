// The walk of one rank over its chunks, capture by capture: who is handed out when, and with what credit. Pure.
//
// A capture never waits: a chunk whose worst case does not fit the credit (and every chunk after it, so that a later
// one can never starve an earlier one) is captured into the log only, and encoded from log and snapshot later, in walk
// order, as credit comes back. A second walk may follow, the catch-up: every chunk is encoded once more, for workers
// that are behind. The next capture may start once nothing is left to be read from the snapshot.
#pragma once

#include "sync/credit.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace deltawire::sync {

class CaptureWalk {
public:
  enum class Work : std::uint8_t {
    capture_and_encode, ///< credit for the chunk's worst case is reserved
    capture,            ///< into snapshot and log only
    encode,             ///< from snapshot and log; credit is reserved
    skip,               ///< a deferred chunk without changes: tell GatherQueue that it is empty
    catch_up,           ///< from snapshot and the logs of several captures; credit is reserved
  };
  struct HandOut {
    std::uint32_t chunk = 0;
    Work work = Work::capture;
  };

  /// `worst` = worst-case encoded bytes of each chunk, in walk order, each at most `inflight`; `at_once` = chunks out
  /// at a time.
  CaptureWalk(std::vector<std::uint64_t> worst, std::uint64_t inflight, std::uint32_t at_once);

  /// Begins a capture. Requires idle(). A seed is logged as a whole and encoded later.
  void start(bool seed);

  /// The running capture, or the last one, also serves workers that are behind: a second walk over all chunks.
  void add_catch_up();

  /// Nobody will take the capture's own changes, or those of the catch-up: what is not handed out yet never will be.
  /// Chunks that are captured from here on go into the log only.
  void drop_changes();
  void drop_catch_up() { catch_up_cursor_ = worst_.size(); }

  /// The next chunk to hand out, if any may go now.
  [[nodiscard]] std::optional<HandOut> next();

  /// A chunk came back from the work it was handed out for, with `encoded` bytes (0 for Work::capture) on their way.
  void done(const HandOut& hand_out, std::uint64_t changed, std::uint64_t encoded);

  /// Encoded bytes left the rank.
  void returned(std::uint64_t bytes) noexcept { credit_.refund(bytes); }

  [[nodiscard]] bool captured() const noexcept { return captured_ == worst_.size(); }
  /// Nothing of the running capture is left to read from the snapshot.
  [[nodiscard]] bool idle() const noexcept {
    return captured() && deferred_.empty() && out_ == 0 && catch_up_cursor_ == worst_.size();
  }
  [[nodiscard]] std::uint64_t reserved() const noexcept { return credit_.reserved(); }

private:
  std::vector<std::uint64_t> worst_;
  CreditLedger credit_;
  std::uint32_t at_once_;
  std::uint32_t out_ = 0;
  std::size_t cursor_;
  std::size_t captured_;
  std::size_t catch_up_cursor_; ///< the next chunk of the catch-up; past the end: there is none
  bool log_only_ = false;
  bool wanted_ = true; ///< somebody will take the capture's changes
  std::deque<std::uint32_t> deferred_;
  std::vector<std::uint64_t> changed_; ///< a chunk of the running capture
};

} // namespace deltawire::sync
