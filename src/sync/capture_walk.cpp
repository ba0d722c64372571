#include "sync/capture_walk.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace deltawire::sync {

CaptureWalk::CaptureWalk(std::vector<std::uint64_t> worst, std::uint64_t inflight, std::uint32_t at_once)
  : worst_(std::move(worst)), credit_(inflight), at_once_(at_once), states_(worst_.size(), State::encoded),
    captured_(worst_.size()), encode_next_(worst_.size()), catch_up_next_(worst_.size()), changed_(worst_.size()) {}

void CaptureWalk::start(bool seed, State state) {
  std::fill(states_.begin(), states_.end(), state);
  ready_.clear();
  captured_ = 0;
  encode_next_ = 0;
  seed_ = seed;
  wanted_ = true;
  catch_up_next_ = worst_.size();
}

void CaptureWalk::start(bool seed) {
  start(seed, State::ready);
  open_ = false;
  ready_.resize(worst_.size());
  for (std::uint32_t chunk = 0; chunk < ready_.size(); ++chunk)
    ready_[chunk] = chunk; // ascending: a heap already
}

void CaptureWalk::start_in_parts(bool seed) {
  start(seed, State::waiting);
  open_ = true;
}

void CaptureWalk::push(std::uint32_t chunk, State state) {
  states_[chunk] = state;
  ready_.push_back(chunk);
  std::push_heap(ready_.begin(), ready_.end(), std::greater<>{});
}

void CaptureWalk::ready(std::uint32_t chunk) {
  push(chunk, State::ready);
}

void CaptureWalk::finish(std::span<const std::uint32_t> log_only) {
  open_ = false;
  for (std::uint32_t chunk = 0; chunk < states_.size(); ++chunk)
    if (states_[chunk] == State::waiting)
      push(chunk, std::binary_search(log_only.begin(), log_only.end(), chunk) ? State::ready_log_only : State::ready);
}

void CaptureWalk::add_catch_up() {
  catch_up_next_ = 0;
}

std::optional<CaptureWalk::HandOut> CaptureWalk::next_capture() {
  if (ready_.empty())
    return std::nullopt;
  const std::uint32_t chunk = ready_.front();
  std::pop_heap(ready_.begin(), ready_.end(), std::greater<>{});
  ready_.pop_back();
  const bool may_encode = states_[chunk] == State::ready && !seed_ && wanted_ && chunk == encode_next_;
  if (may_encode && credit_.reserve(worst_[chunk])) {
    states_[chunk] = State::encoded;
    ++encode_next_;
    return HandOut{chunk, Work::capture_and_encode};
  }
  states_[chunk] = State::out;
  return HandOut{chunk, Work::capture};
}

std::optional<CaptureWalk::HandOut> CaptureWalk::next_encode() {
  if (read_out() || states_[encode_next_] != State::captured)
    return std::nullopt;
  const auto chunk = static_cast<std::uint32_t>(encode_next_);
  const bool skip = changed_[chunk] == 0;
  if (!skip && !credit_.reserve(worst_[chunk]))
    return std::nullopt;
  states_[chunk] = State::encoded;
  ++encode_next_;
  return HandOut{chunk, skip ? Work::skip : Work::encode};
}

std::optional<CaptureWalk::HandOut> CaptureWalk::next_catch_up() {
  if (!read_out() || catch_up_next_ == worst_.size() || !credit_.reserve(worst_[catch_up_next_]))
    return std::nullopt;
  return HandOut{static_cast<std::uint32_t>(catch_up_next_++), Work::catch_up};
}

std::optional<CaptureWalk::HandOut> CaptureWalk::next() {
  if (out_ >= at_once_)
    return std::nullopt;
  auto hand_out = next_capture();
  // The trainer waits for captures: nothing else stands in front of one, unless they wait for the trainer.
  if (!hand_out && (captured() || open_))
    hand_out = next_encode();
  if (!hand_out && captured())
    hand_out = next_catch_up();
  if (hand_out)
    ++out_;
  return hand_out;
}

bool CaptureWalk::blocked() const noexcept {
  if (out_ >= at_once_ || !ready_.empty() || (!captured() && !open_))
    return false;
  if (!read_out())
    return states_[encode_next_] == State::captured && !credit_.fits(worst_[encode_next_]);
  return captured() && catch_up_next_ != worst_.size() && !credit_.fits(worst_[catch_up_next_]);
}

void CaptureWalk::done(const HandOut& hand_out, std::uint64_t changed, std::uint64_t encoded) {
  --out_;
  if (hand_out.work == Work::capture_and_encode || hand_out.work == Work::capture) {
    ++captured_;
    changed_[hand_out.chunk] = changed;
  }
  if (hand_out.work == Work::capture)
    states_[hand_out.chunk] = State::captured;
  if (hand_out.work == Work::capture_and_encode || hand_out.work == Work::encode || hand_out.work == Work::catch_up)
    credit_.refund(worst_[hand_out.chunk] - std::min(encoded, worst_[hand_out.chunk]));
}

} // namespace deltawire::sync
