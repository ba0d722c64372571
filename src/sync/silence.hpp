// Who has not been heard of for too long. Pure: time and the number of frames that each peer has sent so far come in.
//
// The clock counts only time in which this process ran: a step longer than `longest_step` counts as that much. So one
// that was stopped for a while does not take its own absence for the others' silence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace deltawire::sync {

class SilenceWatch {
public:
  using Nanoseconds = std::int64_t;

  SilenceWatch(Nanoseconds limit, Nanoseconds longest_step) noexcept : limit_(limit), longest_step_(longest_step) {}

  /// Once a tick, before looking at peers.
  void tick(Nanoseconds now) noexcept {
    if (last_ != 0)
      clock_ += std::min(now - last_, longest_step_);
    last_ = now;
  }

  enum class News : std::uint8_t { none, silent, heard_again };
  /// `frames`: received of the peer so far. Each change is told once.
  [[nodiscard]] News look(std::uint64_t peer, std::uint64_t frames) {
    const auto [at, added] = peers_.try_emplace(peer, Peer{frames, clock_, false});
    Peer& known = at->second;
    if (known.frames != frames) {
      known.frames = frames;
      known.heard = clock_;
      return std::exchange(known.silent, false) ? News::heard_again : News::none;
    }
    if (known.silent || clock_ - known.heard <= limit_)
      return News::none;
    known.silent = true;
    return News::silent;
  }

private:
  struct Peer {
    std::uint64_t frames = 0;
    Nanoseconds heard = 0; ///< by clock_
    bool silent = false;
  };
  Nanoseconds limit_;
  Nanoseconds longest_step_;
  Nanoseconds last_ = 0;
  Nanoseconds clock_ = 0;
  std::map<std::uint64_t, Peer> peers_;
};

} // namespace deltawire::sync
