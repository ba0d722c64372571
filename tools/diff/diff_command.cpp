#include "diff_command.hpp"

#include "account.hpp"
#include "replay/inputs.hpp"
#include "replay/message.hpp"

#include <array>

namespace deltawire::diff {

replay::ExitStatus diff_command(const DiffOptions& options) {
  const auto checkpoints = replay::open_checkpoints(std::array{options.before, options.after});
  if (!checkpoints)
    return replay::report_failure(checkpoints.error());
  const Comparison comparison = compare(checkpoints->front(), checkpoints->back());
  const std::string text =
    options.json ? json_text(comparison, options.before, options.after) : table_text(comparison, options.top);
  if (const auto shown = replay::print_out(text, options.json ? "--json" : ""); !shown)
    return replay::report_failure(shown.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::diff
