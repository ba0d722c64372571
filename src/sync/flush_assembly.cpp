#include "sync/flush_assembly.hpp"

#include "delta/piece.hpp"

#include <algorithm>
#include <utility>

namespace deltawire::sync {

std::uint64_t FlushAssembly::begin() {
  const std::uint64_t discarded = waiting_bytes() - offset_;
  rounds_.clear();
  offset_ = 0;
  current_.clear();
  on_wire_ = 0;
  seal_at_input_end_ = false;
  finishing_ = false;
  sequence_ = 0;
  payload_bytes_ = 0;
  largest_flush_ = 0; // a seed's flushes tell nothing of a delta's
  return discarded;
}

void FlushAssembly::add_round(Buffer round) {
  seal_at_input_end_ = false;
  if (!round.empty())
    rounds_.push_back(std::move(round));
}

void FlushAssembly::window_ended() {
  seal_at_input_end_ = true;
}

std::uint64_t FlushAssembly::waiting_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const Buffer& round : rounds_)
    bytes += round.size();
  return bytes;
}

FlushAssembly::Flush FlushAssembly::seal() {
  Flush flush{sequence_++, std::exchange(current_, {})};
  on_wire_ = flush.payload.size();
  largest_flush_ = std::max(largest_flush_, on_wire_);
  payload_bytes_ += flush.payload.size();
  return flush;
}

Result<FlushAssembly::Step> FlushAssembly::advance() {
  Step step;
  while (!rounds_.empty()) {
    const Buffer& round = rounds_.front();
    const std::span<const std::byte> rest = std::span(round).subspan(offset_);
    auto piece = delta::peek_piece(rest);
    if (!piece)
      return pass_on(std::move(piece));
    if (piece->bytes > cap_)
      return fail(Code::internal, "a piece of {} bytes does not fit into a flush of {}", piece->bytes, cap_);
    if (current_.size() + piece->bytes > cap_) {
      if (on_wire_ == 0)
        step.flush = seal();
      return step;
    }
    // Room at once for what waits, or for as much as the largest flush so far: a buffer that grows by doubling is
    // copied, and may pass the cap.
    if (current_.empty())
      current_.reserve(static_cast<std::size_t>(std::min(cap_, std::max(waiting_bytes(), largest_flush_))));
    current_.insert(current_.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(piece->bytes));
    offset_ += piece->bytes;
    step.consumed += piece->bytes;
    if (offset_ == round.size()) {
      rounds_.pop_front();
      offset_ = 0;
    }
  }
  if ((seal_at_input_end_ || finishing_) && on_wire_ == 0 && !current_.empty())
    step.flush = seal();
  return step;
}

} // namespace deltawire::sync
