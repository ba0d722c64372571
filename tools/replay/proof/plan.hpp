// What one worker must hold: each of its parameters, and for each element of it which element of which tensor of the
// checkpoint it is, or that it is padding.
#pragma once

#include "cuts.hpp"
#include "walk.hpp"

namespace deltawire::replay::proof {

/// Elements that come from one tensor of the checkpoint. Left: the worker's box, before a flat cut; right: the tensor.
struct Piece {
  std::size_t tensor = 0; ///< of the checkpoint
  Walk walk;
};

struct Parameter {
  std::string name;
  DType dtype = DType::bf16;
  Shape full_shape;
  Shape local_shape;
  Shape box;                               ///< what is held, before a flat cut
  Index begin = 0;                         ///< of the box's elements, which are held: all without a flat cut
  Index end = 0;                           ///< of the box's elements
  std::vector<std::vector<Run>> positions; ///< for each dim, in runs: which of the full tensor's the box holds
  std::vector<Piece> pieces;
  std::vector<std::pair<Index, Index>> padding; ///< begin and end among the box's elements
};

/// By name. Takes memory by the runs that the parameters are made of, not by their elements, but for a bit for each
/// element of a parameter with padding while it is worked out. Fails where the rules do not say of each element what it
/// must be, and throws what the standard library does.
[[nodiscard]] Result<std::vector<Parameter>> plan(const SideText& trainer, const SideText& worker,
                                                  const checkpoint::Checkpoint& file, std::uint32_t index);

} // namespace deltawire::replay::proof
