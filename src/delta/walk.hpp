// Walking a block: from block elements (row-major over the extents) to addresses in local memory and in the slot.
//
// Within a run both addresses are affine in the element, so that kernels need one look-up a run. Dims that nest in both
// memories are merged first: a block that is contiguous on both sides is a single run. The next run costs an increment
// of digits, any other a division a dim.
#pragma once

#include "layout/plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltawire::delta {

/// Elements [first, end) of a block; element e lies at local + (e - first) * local_stride, and likewise in the slot.
struct Run {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  layout::Index local = 0;
  layout::Index slot = 0;
};

/// Not thread-safe; cheap to make (once a range or piece). Keeps no reference to the block.
class Walk {
public:
  explicit Walk(const layout::Block& block);

  /// The run that holds `element`. Requires element < elements(). Valid until the next call.
  [[nodiscard]] const Run& at(std::uint64_t element) {
    if (element < run_.first || element >= run_.end)
      move_to(element);
    return run_;
  }

  [[nodiscard]] std::uint64_t elements() const noexcept { return elements_; }
  /// Of every run.
  [[nodiscard]] std::uint64_t run_elements() const noexcept { return inner_.extent; }
  [[nodiscard]] layout::Index local_stride() const noexcept { return inner_.local_stride; }
  [[nodiscard]] layout::Index slot_stride() const noexcept { return inner_.slot_stride; }

private:
  struct Dim {
    std::uint64_t extent = 1;
    layout::Index local_stride = 0;
    layout::Index slot_stride = 0;
    std::uint64_t digit = 0;
  };

  /// Outermost first. Nearly every block has few: those take no memory of their own, so that a walk of a small block
  /// costs no allocation.
  class Dims {
  public:
    [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
    [[nodiscard]] Dim* begin() noexcept { return spilled_ ? many_.data() : few_.data(); }
    [[nodiscard]] Dim* end() noexcept { return begin() + count_; }
    [[nodiscard]] Dim& back() noexcept { return end()[-1]; }
    void push_back(const Dim& dim);
    void pop_back() noexcept { --count_; }

  private:
    std::array<Dim, 3> few_;
    std::vector<Dim> many_; ///< all of them, once there were more than few
    std::size_t count_ = 0;
    bool spilled_ = false;
  };

  void move_to(std::uint64_t element);
  void step();

  std::uint64_t elements_ = 1;
  layout::Index local_offset_ = 0;
  layout::Index slot_offset_ = 0;
  Dims outer_; ///< without the innermost
  Dim inner_;
  Run run_;
};

} // namespace deltawire::delta
