// The proof's own reading of views, slices and cuts: from text to plain values. Design, section 4. Pure functions.
#pragma once

#include "sum.hpp"

namespace deltawire::replay::proof {

/// What a dim is viewed as, part by part: "[8, 4, 64, 512]", "[:, (2, :), :]".
struct ViewPart {
  Index extent = 0; ///< 0: `:`, what is left of its dim
  /// Parts of one set are one dim, all of it: those in parentheses, or a `:` alone. 0: a bare number, whose dim the
  /// shape tells.
  std::size_t set = 0;
};
using View = std::vector<ViewPart>;

struct SliceItem {
  enum class Kind { all, range, index, name, sum };
  Kind kind = Kind::all;
  Index begin = 0;      ///< range; index: the number
  Index end = 0;        ///< range
  Index step = 1;       ///< range
  std::string name;     ///< name
  bool limited = false; ///< name=a:b, with begin and end
  Sum sum;

  /// Whether the item takes one position, so that its dim is gone from the result.
  [[nodiscard]] bool drops() const noexcept { return kind != Kind::all && kind != Kind::range; }
};
using Slice = std::vector<SliceItem>;

[[nodiscard]] Result<View> parse_view(std::string_view text);

/// "[e, 0:768, :]"
[[nodiscard]] Result<Slice> parse_slice(std::string_view text);

/// One cut of a placement: `axis` takes its share of the positions of `dim`.
struct Cut {
  enum class Of { whole, slices, segments, flat };
  std::string axis;
  std::size_t dim = 0; ///< of the unviewed parameter; not with flat
  Of of = Of::whole;
  bool cyclic = false; ///< deals round-robin instead of giving intervals
  Shape segments;      ///< lengths, with Of::segments
};

/// "tp:0", "ep:0 cyclic", "tp:0 by slice", "tp:0 by [2048, 2048, 4096]", "fsdp:flat"
[[nodiscard]] Result<Cut> parse_cut(std::string_view text);

} // namespace deltawire::replay::proof
