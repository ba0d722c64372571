// Checks that maps cover each element of a parameter once. Works on sets of positions a dim, never on elements.
#pragma once

#include "layout/map.hpp"

namespace deltawire::layout {

/// What one use keeps: its slot's name, and one set of positions a dim (AppliedMap::kept).
struct KeptElements {
  const std::string* slot = nullptr;
  const std::vector<std::vector<Span>>* dims = nullptr;
};

/// A message for the first pair of uses that keep the same element; nothing where there is none.
[[nodiscard]] std::optional<std::string> find_overlap(std::span<const KeptElements> uses);

/// A message for the first elements that no use keeps, with their range and how many there are in all; nothing where
/// all are kept. Requires that no two uses overlap.
[[nodiscard]] std::optional<std::string> find_uncovered(std::span<const KeptElements> uses, const Shape& shape);

} // namespace deltawire::layout
