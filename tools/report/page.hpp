// The page of `deltawire report`: HTML with its own style and drawings, no script, nothing from elsewhere. Pure.
#pragma once

#include "run.hpp"

#include <string>
#include <vector>

namespace deltawire::report {

/// `title` names the run. Without spans there is no picture of the pipeline. `notes`: what a reader should know of how
/// the page was made.
[[nodiscard]] std::string page(const std::string& title, const Run& run, const std::vector<Span>& spans,
                               const std::vector<std::string>& notes = {});

} // namespace deltawire::report
