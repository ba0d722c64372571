// A mesh: named axes, outermost first; ranks are row-major over them.
#pragma once

#include "layout/shape.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire::layout {

struct Axis {
  std::string name;
  Index size = 1;

  friend bool operator==(const Axis&, const Axis&) = default;
};

/// Immutable after make(). A default mesh has no axes and one rank.
class Mesh {
public:
  Mesh() = default;

  /// Fails on an empty or repeated axis name, a size below 1, or more than 2^20 ranks.
  [[nodiscard]] static Result<Mesh> make(std::vector<Axis> axes);

  [[nodiscard]] const std::vector<Axis>& axes() const noexcept { return axes_; }
  [[nodiscard]] Index size() const noexcept { return size_; }
  [[nodiscard]] std::optional<std::size_t> find(std::string_view axis) const noexcept;

  /// Coordinates of a rank, one an axis. Requires 0 <= rank < size().
  [[nodiscard]] std::vector<Index> coordinates(Index rank) const;

private:
  std::vector<Axis> axes_;
  Index size_ = 1;
};

} // namespace deltawire::layout
