// Counts what operator new hands out in the executable that links wire_allocation.cpp.
#pragma once

#include <cstddef>

namespace deltawire::test {

/// Bytes that this thread asked operator new for so far.
[[nodiscard]] std::size_t allocated_bytes() noexcept;

} // namespace deltawire::test
