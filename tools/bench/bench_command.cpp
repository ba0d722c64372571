#include "bench_command.hpp"

#include "kernel_bench.hpp"
#include "layout_bench.hpp"
#include "plan_bench.hpp"
#include "replay/message.hpp"
#include "report.hpp"

#include "kernels/instruction_sets.hpp"

#include <fmt/format.h>

#include <array>

namespace deltawire::bench {
namespace {

struct Bench {
  const char* name;
  Report (*run)();
};

constexpr std::array benches{
  Bench{"kernel", kernel_bench},
  Bench{"layout", layout_bench},
  Bench{"plan", plan_bench},
};

} // namespace

std::string bench_names() {
  std::string names;
  for (const Bench& bench : benches)
    names += (names.empty() ? "" : ", ") + std::string(bench.name);
  return names;
}

replay::ExitStatus bench_command(const BenchOptions& options) {
  if (!kernels::use_instruction_set(options.instruction_set))
    return replay::report_failure(
      {Code::invalid_argument, fmt::format("no instruction set \"{}\" on this machine; there are: {}",
                                           options.instruction_set, fmt::join(kernels::instruction_sets(), ", "))});
  std::vector<Report> reports;
  for (const Bench& bench : benches) {
    if (!options.name.empty() && options.name != bench.name)
      continue;
    reports.push_back(bench.run());
    if (options.json)
      continue;
    if (const auto printed =
          replay::print_out(fmt::format("instruction set {}\n", kernels::instruction_set()) + to_text(reports.back()));
        !printed)
      return replay::report_failure(printed.error());
  }
  if (reports.empty())
    return replay::report_failure(
      {Code::invalid_argument, "no benchmark is called \"" + options.name + "\"; there are: " + bench_names()});
  if (options.json)
    if (const auto printed = replay::print_out(to_json(reports, kernels::instruction_set())); !printed)
      return replay::report_failure(printed.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::bench
