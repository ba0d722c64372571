// The walk of one rank over its chunks, capture by capture: who is handed out when, and with what credit. Pure.
//
// A capture never waits for credit: a chunk whose worst case does not fit it is captured into the log only, and encoded
// from log and snapshot later, as credit comes back. Chunks are encoded in walk order, whatever order they are captured
// in, so that a later one can never starve an earlier one. A second walk may follow, the catch-up: every chunk is
// encoded once more, for workers that are behind. The next capture may start once nothing is left to be read from the
// snapshot.
//
// A capture in parts starts with no chunk ready: chunks are captured as they become ready, in any order; those in front
// of the walk are encoded meanwhile. The last call tells that what is left is ready too (finish).
#pragma once

#include "sync/credit.hpp"

#include <cstdint>
#include <optional>
#include <span>
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

  /// Begins a capture of all chunks. Requires idle(). A seed is logged as a whole and encoded later.
  void start(bool seed);

  /// The same in parts: no chunk is ready yet.
  void start_in_parts(bool seed);
  /// A chunk of a capture in parts may be captured now. Requires that it was not ready and finish() was not called.
  void ready(std::uint32_t chunk);
  /// Every chunk that is not ready yet is from now on. Those in `log_only` (ascending) go into the log only, for their
  /// changes may be told by absolute values only.
  void finish(std::span<const std::uint32_t> log_only);
  /// The capture is in parts and not finished.
  [[nodiscard]] bool open() const noexcept { return open_; }

  /// The running capture, or the last one, also serves workers that are behind: a second walk over all chunks.
  void add_catch_up();

  /// Nobody will take the capture's own changes, or those of the catch-up: what is not handed out yet never will be.
  /// Chunks that are captured from here on go into the log only.
  void drop_changes() { wanted_ = false; }
  void drop_catch_up() { catch_up_next_ = worst_.size(); }

  /// The next chunk to hand out, if any may go now.
  [[nodiscard]] std::optional<HandOut> next();

  /// A chunk came back from the work it was handed out for, with `encoded` bytes (0 for Work::capture) on their way.
  void done(const HandOut& hand_out, std::uint64_t changed, std::uint64_t encoded);

  /// Encoded bytes left the rank.
  void returned(std::uint64_t bytes) noexcept { credit_.refund(bytes); }

  [[nodiscard]] bool captured() const noexcept { return captured_ == worst_.size() && !open_; }
  /// Nothing of the running capture is left to read from the snapshot.
  [[nodiscard]] bool idle() const noexcept {
    return captured() && read_out() && out_ == 0 && catch_up_next_ == worst_.size();
  }
  [[nodiscard]] std::uint64_t reserved() const noexcept { return credit_.reserved(); }
  /// Only credit is missing to hand out the next chunk. Call after next() has returned none.
  [[nodiscard]] bool blocked() const noexcept;

private:
  enum class State : std::uint8_t {
    waiting,        ///< for its part
    ready,          ///< to be captured
    ready_log_only, ///< to be captured into the log only
    out,            ///< being captured
    captured,       ///< into the log: to be encoded in its turn
    encoded,        ///< or on its way to be
  };

  void start(bool seed, State state);
  void push(std::uint32_t chunk, State state);
  [[nodiscard]] std::optional<HandOut> next_capture();
  [[nodiscard]] std::optional<HandOut> next_encode();
  [[nodiscard]] std::optional<HandOut> next_catch_up();
  /// The capture's own changes are handed out as far as anybody takes them.
  [[nodiscard]] bool read_out() const noexcept { return !wanted_ || encode_next_ == worst_.size(); }

  std::vector<std::uint64_t> worst_;
  CreditLedger credit_;
  std::uint32_t at_once_;
  std::uint32_t out_ = 0;
  std::vector<State> states_;
  std::vector<std::uint32_t> ready_; ///< a heap, the first in walk order on top
  std::size_t captured_;
  std::size_t encode_next_;   ///< the next chunk whose changes are to be encoded
  std::size_t catch_up_next_; ///< the next chunk of the catch-up; past the end: there is none
  bool open_ = false;
  bool seed_ = false;
  bool wanted_ = true;                 ///< somebody will take the capture's changes
  std::vector<std::uint64_t> changed_; ///< a chunk of the running capture
};

} // namespace deltawire::sync
