#include "sync/flush_assembly.hpp"

#include "delta/piece.hpp"

#include <algorithm>
#include <utility>

namespace deltawire::sync {

std::uint64_t FlushAssembly::begin() {
  const std::uint64_t discarded = waiting_bytes() - offset_;
  rounds_.clear();
  offset_ = 0;
  for (Buffer& part : parts_)
    part = {};
  std::fill(pieces_.begin(), pieces_.end(), 0);
  assembled_ = 0;
  on_wire_ = 0;
  seal_at_input_end_ = false;
  finishing_ = false;
  sequence_ = 0;
  payload_bytes_ = 0;
  std::fill(largest_.begin(), largest_.end(), 0); // a seed's flushes tell nothing of a delta's
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
  Flush flush;
  flush.sequence = sequence_++;
  flush.bytes = assembled_;
  for (std::uint32_t route = 0; route < parts_.size(); ++route)
    if (!parts_[route].empty()) {
      largest_[route] = std::max<std::uint64_t>(largest_[route], parts_[route].size());
      flush.parts.push_back({route, std::exchange(parts_[route], {}), std::exchange(pieces_[route], 0)});
    }
  on_wire_ = assembled_;
  payload_bytes_ += assembled_;
  assembled_ = 0;
  return flush;
}

/// A buffer that grows by doubling is copied again and again, and may pass the cap: it gets room at once for as much as
/// the route's largest part so far, and then grows within what the flush has left.
void FlushAssembly::make_room(Buffer& part, std::uint32_t route, std::uint64_t bytes) {
  const std::uint64_t needed = part.size() + bytes;
  if (needed <= part.capacity())
    return;
  const std::uint64_t waiting = parts_.size() == 1 ? waiting_bytes() : 0; // all of it is this route's
  const std::uint64_t wanted = std::max<std::uint64_t>({needed, 2 * part.size(), largest_[route], waiting});
  part.reserve(static_cast<std::size_t>(std::min(wanted, part.size() + (cap_ - assembled_))));
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
    if (piece->block >= routes_->route_of_block.size())
      return fail(Code::invalid_input, "a piece of block {}, there are {}", piece->block,
                  routes_->route_of_block.size());
    const std::uint32_t route = routes_->route_of_block[piece->block];
    if (route != RouteTable::nobody) {
      if (assembled_ + piece->bytes > cap_) {
        if (on_wire_ == 0)
          step.flush = seal();
        return step;
      }
      Buffer& part = parts_[route];
      make_room(part, route, piece->bytes);
      part.insert(part.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(piece->bytes));
      assembled_ += piece->bytes;
      ++pieces_[route];
    }
    offset_ += piece->bytes;
    step.consumed += piece->bytes;
    if (offset_ == round.size()) {
      rounds_.pop_front();
      offset_ = 0;
    }
  }
  if ((seal_at_input_end_ || finishing_) && on_wire_ == 0 && assembled_ > 0)
    step.flush = seal();
  return step;
}

} // namespace deltawire::sync
