// The rules of a topology as the proof takes them: key by key, unread.
#pragma once

#include "config/topology.hpp"
#include "rules.hpp"

namespace deltawire::replay::proof {

[[nodiscard]] SideText text_of(const layout::SideRules& side);

} // namespace deltawire::replay::proof
