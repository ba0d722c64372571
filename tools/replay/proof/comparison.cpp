#include "comparison.hpp"

#include <cstring>

namespace deltawire::replay::proof {
namespace {

constexpr Index tile = 64; // elements of a side: what a transposed walk reads of both tensors then stays in the cache

/// Whether all elements of a block are equal: rows `outer` apart, elements of a row `inner` apart.
template <class Bits>
bool equal_block(const std::byte* held, const std::byte* truth, const Run& outer, const Run& inner) {
  unsigned differing = 0;
  for (Index i = 0; i < outer.count; ++i)
    for (Index j = 0; j < inner.count; ++j) {
      Bits is = 0;
      Bits must = 0;
      const Index left = outer.left + inner.left + i * outer.left_step + j * inner.left_step;
      const Index right = outer.right + inner.right + i * outer.right_step + j * inner.right_step;
      std::memcpy(&is, held + left * static_cast<Index>(sizeof(Bits)), sizeof(Bits));
      std::memcpy(&must, truth + right * static_cast<Index>(sizeof(Bits)), sizeof(Bits));
      differing |= is != must ? 1U : 0U;
    }
  return differing == 0;
}

class Comparison {
public:
  Comparison(const Parameter& parameter, const std::byte* held)
    : parameter_(parameter), size_(static_cast<Index>(deltawire::size_of(parameter.dtype))), held_(held) {}

  void piece(const Piece& piece, const std::byte* truth) {
    tensor_ = piece.tensor;
    truth_ = truth;
    if (parameter_.begin == 0 && parameter_.end == count_of(parameter_.box))
      level(piece.walk, 0, 0, 0);
    else
      for_each_run(piece.walk, parameter_.begin, parameter_.end, [this](const Run& run) { compare_run(run); });
  }

  void padding(Index begin, Index end) {
    tensor_ = std::nullopt;
    static constexpr std::byte zeros[4096] = {};
    const Index most = static_cast<Index>(sizeof(zeros)) / size_;
    truth_ = zeros;
    for (Index at = begin; at < end; at += most)
      compare_run({at, 0, 1, 1, std::min(most, end - at)});
  }

  [[nodiscard]] const Compared& result() const noexcept { return result_; }

private:
  void level(const Walk& walk, std::size_t depth, Index left, Index right) {
    for (Run run : walk.levels[depth]) {
      run.left += left;
      run.right += right;
      if (depth + 1 == walk.levels.size()) {
        compare_run(run);
        continue;
      }
      const std::vector<Run>& inner = walk.levels[depth + 1];
      if (depth + 2 == walk.levels.size() && run.count > 1 && !inner.front().contiguous()) {
        for (const Run& last : inner)
          compare_tiles(run, last);
        continue;
      }
      for (Index i = 0; i < run.count; ++i)
        level(walk, depth + 1, run.left + i * run.left_step, run.right + i * run.right_step);
    }
  }

  static Run part(const Run& run, Index begin) {
    return {run.left + begin * run.left_step, run.right + begin * run.right_step, run.left_step, run.right_step,
            std::min(tile, run.count - begin)};
  }

  void compare_tiles(const Run& outer, const Run& inner) {
    for (Index i = 0; i < outer.count; i += tile)
      for (Index j = 0; j < inner.count; j += tile) {
        const Run rows = part(outer, i);
        const Run columns = part(inner, j);
        if (equal(rows, columns)) {
          result_.elements += static_cast<std::uint64_t>(rows.count * columns.count);
          continue;
        }
        for (Index row = 0; row < rows.count; ++row) {
          Run run = columns;
          run.left += rows.left + row * rows.left_step;
          run.right += rows.right + row * rows.right_step;
          count_differences(run);
        }
      }
  }

  [[nodiscard]] bool equal(Run outer, const Run& inner) const {
    outer.left -= parameter_.begin;
    switch (size_) {
    case 1:
      return equal_block<std::uint8_t>(held_, truth_, outer, inner);
    case 2:
      return equal_block<std::uint16_t>(held_, truth_, outer, inner);
    case 4:
      return equal_block<std::uint32_t>(held_, truth_, outer, inner);
    default:
      return equal_block<std::uint64_t>(held_, truth_, outer, inner);
    }
  }

  void compare_run(const Run& run) {
    const bool same = run.contiguous()
                        ? std::memcmp(held_ + (run.left - parameter_.begin) * size_, truth_ + run.right * size_,
                                      static_cast<std::size_t>(run.count * size_)) == 0
                        : equal(Run{}, run);
    if (same)
      result_.elements += static_cast<std::uint64_t>(run.count);
    else
      count_differences(run);
  }

  void count_differences(const Run& run) {
    result_.elements += static_cast<std::uint64_t>(run.count);
    for (Index i = 0; i < run.count; ++i) {
      const Index local = run.left + i * run.left_step - parameter_.begin;
      const Index origin = run.right + i * run.right_step;
      if (std::memcmp(held_ + local * size_, truth_ + origin * size_, static_cast<std::size_t>(size_)) == 0)
        continue;
      if (result_.differing++ == 0 || local < result_.first.local)
        result_.first = {local, tensor_, origin};
    }
  }

  const Parameter& parameter_;
  const Index size_; ///< bytes of an element
  const std::byte* held_;
  std::optional<std::size_t> tensor_;
  const std::byte* truth_ = nullptr;
  Compared result_;
};

} // namespace

Compared compare(const Parameter& parameter, const std::byte* held, std::span<const std::byte* const> data) {
  Comparison comparison(parameter, held);
  for (const Piece& piece : parameter.pieces)
    comparison.piece(piece, data[piece.tensor]);
  for (const auto& [begin, end] : parameter.padding)
    comparison.padding(begin, end);
  return comparison.result();
}

} // namespace deltawire::replay::proof
