// The page of `deltawire report`: HTML with its own style and drawings, no script, nothing from elsewhere. Pure.
#pragma once

#include "run.hpp"

#include <string>
#include <vector>

namespace deltawire::report {

/// `title` names the run. Without spans there is no picture of the pipeline.
[[nodiscard]] std::string page(const std::string& title, const Run& run, const std::vector<Span>& spans);

} // namespace deltawire::report
