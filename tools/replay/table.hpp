// The readable account of a replay: a row an update. Plain ASCII, at most 120 columns.
#pragma once

#include "deltawire/deltawire.hpp"
#include "numbers.hpp"

#include <span>
#include <string>

namespace deltawire::replay {

/// Header and rows. `of dense` compares the bytes of an update with the seed's, which carries every value.
[[nodiscard]] std::string table_text(std::span<const Outcome> updates);

} // namespace deltawire::replay
