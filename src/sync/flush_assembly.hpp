// Flush assembly: packs whole pieces from gathered rounds into flushes of at most `cap` bytes, by copying. Pure.
//
// Two buffers: one flush is on the wire while the next is assembled; assembly stops when both are full, and input stays
// where it is: that is the backpressure. A flush is also sealed at the end of a window while the wire is idle.
#pragma once

#include "result.hpp"

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
  explicit FlushAssembly(std::uint64_t cap) : cap_(cap) {}

  /// Forgets everything. Returns the gathered bytes that were not copied out: credit for the gather.
  [[nodiscard]] std::uint64_t begin();
  void add_round(Buffer round);
  void window_ended();
  void finish() { finishing_ = true; }
  /// The flush on the wire is done; its buffer is free.
  void wire_free() { on_wire_ = 0; }

  struct Flush {
    std::uint64_t sequence = 0;
    Buffer payload;
  };
  struct Step {
    std::optional<Flush> flush; ///< to send now
    std::uint64_t consumed = 0; ///< gathered bytes that were copied out: credit for the gather
  };
  /// Copies what fits and says what to do. Call after every event until it returns neither.
  [[nodiscard]] Result<Step> advance();

  /// Everything was handed over to the wire (not necessarily acknowledged).
  [[nodiscard]] bool finished() const noexcept { return finishing_ && rounds_.empty() && current_.empty(); }
  [[nodiscard]] std::uint64_t flushes() const noexcept { return sequence_; }
  [[nodiscard]] std::uint64_t payload_bytes() const noexcept { return payload_bytes_; }
  /// Bytes in the flush that is assembled and the one on the wire.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept { return current_.size() + on_wire_; }

private:
  [[nodiscard]] Flush seal();
  [[nodiscard]] std::uint64_t waiting_bytes() const noexcept;

  std::uint64_t cap_;
  std::deque<Buffer> rounds_;
  std::size_t offset_ = 0; ///< into rounds_.front()
  Buffer current_;
  std::uint64_t on_wire_ = 0; ///< bytes of the flush on the wire; 0 = idle
  bool seal_at_input_end_ = false;
  bool finishing_ = false;
  std::uint64_t sequence_ = 0;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t largest_flush_ = 0; ///< of this delivery, so far
};

} // namespace deltawire::sync
