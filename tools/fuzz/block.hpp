// Blocks and memory for the targets of pieces: a block as an input describes it, and a worker's buffer that holds it.
#pragma once

#include "delta/apply.hpp"
#include "layout/plan.hpp"
#include "target.hpp"

#include <vector>

namespace deltawire::fuzz {

/// Elements of a block that the targets give memory.
inline constexpr std::uint64_t most_elements = std::uint64_t{1} << 16;

/// Takes a block off an input: u8 dtype (modulo), u8 id, u8 shape: bits 0..1 dims - 1, bit 2 memory has its dims the
/// other way round than the slot, bit 3 the first extent is 2^40 times larger; a u16 extent a dim (0 means 1).
[[nodiscard]] layout::Block take_block(Input& input);

[[nodiscard]] std::uint64_t elements_of(const layout::Block& block);

/// Memory that a block lies in, filled with bits that are far from zero and differ from element to element.
class BlockMemory {
public:
  /// Requires elements_of(block) <= most_elements. Borrows `block`.
  explicit BlockMemory(const layout::Block& block);

  [[nodiscard]] delta::BoundBlock bound() noexcept { return {&block_, bytes_.data()}; }
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  /// One element, by index arithmetic of its own.
  [[nodiscard]] std::byte* at(std::uint64_t element) noexcept;

private:
  const layout::Block& block_;
  std::size_t size_;
  std::vector<std::byte> bytes_;
};

} // namespace deltawire::fuzz
