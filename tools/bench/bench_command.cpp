#include "bench_command.hpp"

#include "bookkeeping_bench.hpp"
#include "codec_bench.hpp"
#include "gpu_bench.hpp"
#include "kernel_bench.hpp"
#include "layout_bench.hpp"
#include "machine.hpp"
#include "pause_bench.hpp"
#include "plan_bench.hpp"
#include "replay/message.hpp"
#include "report.hpp"
#include "scaling_bench.hpp"
#include "telemetry_bench.hpp"
#include "transport_bench.hpp"
#include "update_bench.hpp"

#include "kernels/cuda/device.hpp"
#include "kernels/instruction_sets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <tuple>

namespace deltawire::bench {
namespace {

/// Which options mean something to a benchmark, besides those that all have.
enum Takes : unsigned {
  none = 0,
  size = 1,     ///< --gib
  runs = 2,     ///< --runs
  changes = 4,  ///< --density
  peers = 8,    ///< --tensors, --ranks, --workers, --set
  spread = 16,  ///< --clustered
  anywhere = 32 ///< --processes
};

struct Bench {
  const char* name;
  Result<Report> (*run)(const BenchOptions&);
  unsigned takes;
};

constexpr std::array benches{
  Bench{"kernel", [](const BenchOptions& options) -> Result<Report> { return kernel_bench(options); }, size | runs},
  Bench{"codec", codec_bench, size | runs | changes},
  Bench{"transport", transport_bench, size | runs},
  Bench{"update", update_bench, size | runs | changes | peers | spread | anywhere},
  Bench{"scaling", scaling_bench, size | runs | changes | peers | spread | anywhere},
  Bench{"telemetry", telemetry_bench, size | runs | changes | peers | spread},
  Bench{"pause", pause_bench, size | runs | changes | peers | spread},
  Bench{"bookkeeping", bookkeeping_bench, runs | peers},
  Bench{"layout", [](const BenchOptions&) -> Result<Report> { return layout_bench(); }, none},
  Bench{"plan", [](const BenchOptions&) -> Result<Report> { return plan_bench(); }, none},
  Bench{"gpu", gpu_bench, size | runs | changes},
};

bool runs_all(const BenchOptions& options) {
  return options.name.empty() || options.name == "all";
}

/// The first option that is given and that is not among those that `takes` says; null: none.
const char* foreign_option(const BenchOptions& options, unsigned takes) {
  struct Given {
    const char* name;
    bool given;
    unsigned kind;
  };
  for (const Given& option : {Given{"--gib", options.gib.has_value(), size},
                              {"--runs", options.runs.has_value(), runs},
                              {"--density", !options.densities.empty(), changes},
                              {"--tensors", options.tensors.has_value(), peers},
                              {"--ranks", options.ranks.has_value(), peers},
                              {"--workers", options.workers.has_value(), peers},
                              {"--clustered", options.clustered, spread},
                              {"--processes", options.processes, anywhere},
                              {"--set", !options.overrides.empty(), peers}})
    if (option.given && (takes & option.kind) == 0)
      return option.name;
  return nullptr;
}

Result<void> check(const BenchOptions& options) {
  if (!kernels::use_instruction_set(options.instruction_set))
    return fail(Code::invalid_argument, "no instruction set \"{}\" on this machine; there are: {}",
                options.instruction_set, fmt::join(kernels::instruction_sets(), ", "));
  const auto* named =
    std::find_if(benches.begin(), benches.end(), [&](const Bench& bench) { return options.name == bench.name; });
  if (named == benches.end() && !runs_all(options))
    return fail(Code::invalid_argument, "no benchmark is called \"{}\"; there are: {}, all", options.name,
                bench_names());
  if (const char* foreign = foreign_option(options, named == benches.end() ? none : named->takes))
    return fail(Code::invalid_argument, "{} is not an option of bench {}", foreign,
                named == benches.end() ? "all: name one benchmark" : named->name);
  if (options.gib && !(*options.gib > 0 && *options.gib <= 1024))
    return fail(Code::invalid_argument, "--gib {:g}: must be above 0 and at most 1024", *options.gib);
  for (const auto& [name, value, most] :
       std::initializer_list<std::tuple<const char*, std::optional<std::int64_t>, std::int64_t>>{
         {"--tensors", options.tensors, 1'000'000},
         {"--ranks", options.ranks, 1024},
         {"--workers", options.workers, 1024},
         {"--runs", options.runs, 1'000'000}})
    if (value && (*value < 1 || *value > most))
      return fail(Code::invalid_argument, "{} {}: must be 1 to {}", name, *value, most);
  for (const double density : options.densities)
    if (!(density > 0 && density <= 100))
      return fail(Code::invalid_argument, "--density {:g}: must be above 0 and at most 100, percent", density);
  return {};
}

/// The machine, in a line.
std::string machine_line(const Description& machine) {
  std::string text = "instruction set " + kernels::instruction_set();
  for (const auto& [name, value] : machine)
    text += fmt::format(", {} {}", name, value);
  return text + "\n";
}

} // namespace

std::string bench_names() {
  std::string names;
  for (const Bench& bench : benches)
    names += (names.empty() ? "" : ", ") + std::string(bench.name);
  return names;
}

replay::ExitStatus bench_command(const BenchOptions& options) {
  if (auto possible = check(options); !possible)
    return replay::report_failure(possible.error());
  const Description machine = describe_machine();
  const auto say = [&](const std::string& text) { return options.json ? Result<void>{} : replay::print_out(text); };
  if (const auto printed = say(machine_line(machine)); !printed)
    return replay::report_failure(printed.error());
  std::vector<Report> reports;
  for (const Bench& bench : benches) {
    if (!runs_all(options) && options.name != bench.name)
      continue;
    if (runs_all(options) && bench.run == gpu_bench)
      if (const std::string why_none = kernels::cuda::find_devices().why_none; !why_none.empty()) {
        if (const auto printed = say(fmt::format("gpu: left out: {}\n", why_none)); !printed)
          return replay::report_failure(printed.error());
        continue;
      }
    auto report = bench.run(options);
    if (!report)
      return replay::report_failure(report.error());
    reports.push_back(std::move(*report));
    if (const auto printed =
          say(options.markdown ? fmt::format("\n{}", to_markdown(reports.back())) : to_text(reports.back()));
        !printed)
      return replay::report_failure(printed.error());
  }
  if (options.json)
    if (const auto printed = replay::print_out(to_json(reports, kernels::instruction_set(), machine), "--json");
        !printed)
      return replay::report_failure(printed.error());
  return replay::ExitStatus::verified;
}

} // namespace deltawire::bench
