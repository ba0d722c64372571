// Whose an element is, for messages: what one rank can tell of the others from the topology alone.
#pragma once

#include "layout/side.hpp"

#include <optional>

namespace deltawire::layout {

/// The rank of `ranks` that provides the element of `slot` at a row-major position, as far as the placements of these
/// tensors tell; nothing where another tensor, or an interval that its rank declares, holds it. Compiles every rank's
/// declaration: not for hot paths.
[[nodiscard]] std::optional<Index> owner_of(const Side& side, std::span<const LocalTensor> tensors, Index ranks,
                                            const SlotSpec& slot, Index position);

} // namespace deltawire::layout
