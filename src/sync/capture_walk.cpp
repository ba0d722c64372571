#include "sync/capture_walk.hpp"

#include <algorithm>
#include <utility>

namespace deltawire::sync {

CaptureWalk::CaptureWalk(std::vector<std::uint64_t> worst, std::uint64_t inflight, std::uint32_t at_once)
  : worst_(std::move(worst)), credit_(inflight), at_once_(at_once), cursor_(worst_.size()), captured_(worst_.size()),
    catch_up_cursor_(worst_.size()), changed_(worst_.size()) {}

void CaptureWalk::start(bool seed) {
  cursor_ = 0;
  captured_ = 0;
  log_only_ = seed;
  wanted_ = true;
  catch_up_cursor_ = worst_.size();
}

void CaptureWalk::add_catch_up() {
  catch_up_cursor_ = 0;
}

void CaptureWalk::drop_changes() {
  wanted_ = false;
  log_only_ = true;
  deferred_.clear();
}

std::optional<CaptureWalk::HandOut> CaptureWalk::next() {
  if (out_ >= at_once_)
    return std::nullopt;
  if (cursor_ < worst_.size()) {
    const auto chunk = static_cast<std::uint32_t>(cursor_++);
    ++out_;
    log_only_ = log_only_ || !credit_.reserve(worst_[chunk]);
    return HandOut{chunk, log_only_ ? Work::capture : Work::capture_and_encode};
  }
  if (!captured())
    return std::nullopt;
  if (deferred_.empty()) {
    if (catch_up_cursor_ == worst_.size() || !credit_.reserve(worst_[catch_up_cursor_]))
      return std::nullopt;
    ++out_;
    return HandOut{static_cast<std::uint32_t>(catch_up_cursor_++), Work::catch_up};
  }
  const std::uint32_t chunk = deferred_.front();
  const bool skip = changed_[chunk] == 0;
  if (!skip && !credit_.reserve(worst_[chunk]))
    return std::nullopt;
  deferred_.pop_front();
  ++out_;
  return HandOut{chunk, skip ? Work::skip : Work::encode};
}

void CaptureWalk::done(const HandOut& hand_out, std::uint64_t changed, std::uint64_t encoded) {
  --out_;
  if (hand_out.work == Work::capture_and_encode || hand_out.work == Work::capture) {
    ++captured_;
    changed_[hand_out.chunk] = changed;
  }
  if (hand_out.work == Work::capture && wanted_) {
    // Results of several Differs come back out of order; the deferred chunks are kept in walk order.
    auto at = deferred_.end();
    while (at != deferred_.begin() && *(at - 1) > hand_out.chunk)
      --at;
    deferred_.insert(at, hand_out.chunk);
  }
  if (hand_out.work == Work::capture_and_encode || hand_out.work == Work::encode || hand_out.work == Work::catch_up)
    credit_.refund(worst_[hand_out.chunk] - std::min(encoded, worst_[hand_out.chunk]));
}

} // namespace deltawire::sync
