// What differs between two checkpoints, in figures.
#pragma once

#include "checkpoint/checkpoint.hpp"
#include "distribution.hpp"

#include <optional>
#include <string>
#include <vector>

namespace deltawire::diff {

/// Of one tensor, or of all.
struct Figures {
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::optional<GapFigures> gaps;               ///< nothing where nothing changed
  std::optional<DifferenceFigures> differences; ///< likewise
  std::vector<std::uint64_t> bytes;             ///< under each of encodings()
};

struct TensorFigures {
  std::string name;
  DType dtype = DType::bf16;
  layout::Shape shape;
  Figures figures;
};

struct Comparison {
  std::vector<TensorFigures> tensors; ///< most changes first, then by name
  Figures total;                      ///< gaps and differences of all tensors counted together
};

/// Compares bit by bit, in one pass over both. Requires the same tensors, dtypes and shapes on both sides.
[[nodiscard]] Comparison compare(const checkpoint::Checkpoint& before, const checkpoint::Checkpoint& after);

} // namespace deltawire::diff
