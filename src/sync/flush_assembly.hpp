// Flush assembly: packs whole pieces from gathered rounds into flushes of at most `cap` bytes, by copying. Pure.
//
// A flush has a part for each route that it has pieces of: what one set of workers gets. The cap holds for their sum.
// Two buffers: one flush is on the wire while the next is assembled; assembly stops when both are full, and input stays
// where it is: that is the backpressure. A flush is also sealed at the end of a window while the wire is idle.
#pragma once

#include "result.hpp"
#include "sync/route_table.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace deltawire::sync {

class FlushAssembly {
public:
  using Buffer = std::vector<std::byte>;

  /// `cap` = payload bytes of a flush; no piece is larger.
  FlushAssembly(std::uint64_t cap, std::shared_ptr<const RouteTable> routes)
    : cap_(cap), routes_(std::move(routes)), parts_(routes_->workers.size()), pieces_(parts_.size()),
      largest_(parts_.size()) {}

  /// Forgets everything. Returns the gathered bytes that were not copied out: credit for the gather.
  [[nodiscard]] std::uint64_t begin();
  void add_round(Buffer round);
  void window_ended();
  void finish() { finishing_ = true; }
  /// The flush on the wire is done; its buffer is free.
  void wire_free() { on_wire_ = 0; }

  struct Part {
    std::uint32_t route = 0;
    Buffer payload; ///< never empty
    std::uint64_t pieces = 0;
  };
  struct Flush {
    std::uint64_t sequence = 0;
    std::vector<Part> parts; ///< at least one, routes ascending
    std::uint64_t bytes = 0; ///< of all parts
  };
  struct Step {
    std::optional<Flush> flush; ///< to send now
    std::uint64_t consumed = 0; ///< gathered bytes that were copied out: credit for the gather
  };
  /// Copies what fits and says what to do. Call after every event until it returns neither.
  [[nodiscard]] Result<Step> advance();

  /// Everything was handed over to the wire (not necessarily acknowledged).
  [[nodiscard]] bool finished() const noexcept { return finishing_ && rounds_.empty() && assembled_ == 0; }
  [[nodiscard]] std::uint64_t flushes() const noexcept { return sequence_; }
  [[nodiscard]] std::uint64_t payload_bytes() const noexcept { return payload_bytes_; }
  /// What is gathered, or a flush that could be sealed, waits for the flush on the wire. Call after advance() has
  /// returned neither.
  [[nodiscard]] bool blocked() const noexcept {
    return on_wire_ > 0 && (!rounds_.empty() || (assembled_ > 0 && (seal_at_input_end_ || finishing_)));
  }
  /// Bytes in the flush that is assembled and the one on the wire.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return assembled_ + on_wire_; }

private:
  [[nodiscard]] Flush seal();
  [[nodiscard]] std::uint64_t waiting_bytes() const noexcept;

  void make_room(Buffer& part, std::uint32_t route, std::uint64_t bytes);

  std::uint64_t cap_;
  std::shared_ptr<const RouteTable> routes_;
  std::deque<Buffer> rounds_;
  std::size_t offset_ = 0;            ///< into rounds_.front()
  std::vector<Buffer> parts_;         ///< of the flush that is assembled, by route
  std::vector<std::uint64_t> pieces_; ///< in them
  std::uint64_t assembled_ = 0;       ///< bytes in them
  std::uint64_t on_wire_ = 0;         ///< bytes of the flush on the wire; 0 = idle
  bool seal_at_input_end_ = false;
  bool finishing_ = false;
  std::uint64_t sequence_ = 0;
  std::uint64_t payload_bytes_ = 0;
  std::vector<std::uint64_t> largest_; ///< part of a flush of this delivery so far, by route
};

} // namespace deltawire::sync
