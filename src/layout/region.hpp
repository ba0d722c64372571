// Regions: where the elements of a slot lie in one process's local buffer. The common language of both sides.
//
// A region covers the product of one segment list per slot dim, and the local address is separable over the dims:
//   local element offset of slot coordinate (i_0..i_k) = base + sum over d of (s_d.local + (i_d - s_d.slot) *
//   s_d.stride)
// where s_d is the segment of dim d that contains i_d. Segments of a dim are sorted by slot index and disjoint.
// A scalar slot has no dims and its one element at base. Views, slices, transposes, by-slice packing and strided
// memory all compile to this form; what is not separable becomes several regions.
#pragma once

#include "deltawire/dtype.hpp"
#include "layout/shape.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace deltawire::layout {

struct Segment {
  Index slot = 0;   ///< first index along the slot's dim
  Index length = 0; ///< > 0
  Index local = 0;  ///< element offset of the first index in the local buffer (added to base)
  Index stride = 0; ///< element stride in the local buffer

  friend bool operator==(const Segment&, const Segment&) = default;
};

struct Region {
  std::uint32_t parameter = 0; ///< index into Declaration::parameters
  std::uint32_t slot = 0;      ///< index into Declaration::slots
  Index base = 0;
  std::vector<std::vector<Segment>> dims; ///< one list a slot dim

  friend bool operator==(const Region&, const Region&) = default;
};

/// A tensor of the checkpoint; dtype is the wire dtype.
struct SlotSpec {
  std::string name;
  DType dtype = DType::bf16;
  Shape shape;

  friend bool operator==(const SlotSpec&, const SlotSpec&) = default;
};

struct ParameterSpec {
  std::string name;
  DType dtype = DType::bf16;
  Shape full_shape;
  Shape local_shape;
  /// Local memory, elements; same length as local_shape. Row-major unless the owner said otherwise.
  std::vector<Index> strides;

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

/// What one rank provides, or one worker reads.
struct Declaration {
  std::vector<ParameterSpec> parameters; ///< in the order of add() / bind()
  std::vector<SlotSpec> slots;           ///< every slot of the parameters, once, full shape; some may have no region
  std::vector<Region> regions;           ///< for a rank: only what it owns (replicas contribute nothing)

  friend bool operator==(const Declaration&, const Declaration&) = default;
};

} // namespace deltawire::layout
