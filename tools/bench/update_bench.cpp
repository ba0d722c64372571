#include "update_bench.hpp"

#include "parallel.hpp"
#include "replay/numbers.hpp"
#include "scratch_folder.hpp"
#include "update_processes.hpp"
#include "update_session.hpp"

#include <algorithm>
#include <optional>

namespace deltawire::bench {
namespace {

/// A bound of the whole update: how fast it is alone, and how much of that the update reaches.
template <class Seconds>
Limit limit_of(const std::string& name, const Rounds& rounds, Seconds&& seconds) {
  return {name, rounds.bytes / rounds.median_of(seconds),
          rounds.median_of([&](const Round& round) { return seconds(round) / round.update.seconds; })};
}

/// Weights, snapshots and workers; the same again for the kernels alone but for the weights; and what is encoded, sent
/// and received of the changes, on both.
Result<void> check_memory(const UpdateSettings& settings, std::size_t bytes) {
  const double densest = *std::max_element(settings.densities.begin(), settings.densities.end()) / 100;
  const double copies = settings.own_kernels ? 5 + 5 * densest : 3 + 3 * densest;
  const double needed = static_cast<double>(bytes) * copies;
  const auto available = available_memory();
  if (available && needed > static_cast<double>(*available))
    return fail(Code::limit_exceeded,
                "{} of weights need about {} of memory at {:g} % changed, and {} are available: choose a smaller --gib",
                replay::short_bytes(bytes), replay::short_bytes(static_cast<std::uint64_t>(needed)), densest * 100,
                replay::short_bytes(*available));
  return {};
}

Result<void> run_in_threads(const UpdateSettings& settings, const ModelPlan& plan, const std::byte* weights,
                            const std::string& topology, UpdateRounds& rounds) {
  auto session = UpdateSession::open(plan, weights, topology, settings.overrides);
  if (!session)
    return pass_on(std::move(session));
  for (std::size_t update = 0; update < rounds.updates(); ++update) {
    auto timed = (*session)->update();
    if (!timed)
      return pass_on(std::move(timed));
    for (std::uint32_t worker = 0; worker < settings.shape.workers; ++worker)
      if (auto equal = compare_worker(plan, weights, worker, (*session)->memory_of(worker)); !equal)
        return equal;
    if (auto measured = rounds.ended(std::move(*timed)); !measured)
      return measured;
  }
  return (*session)->close();
}

} // namespace

Result<std::vector<Rounds>> measure_updates(const UpdateSettings& settings) {
  const ModelPlan plan(settings.shape);
  if (auto fits = check_memory(settings, plan.bytes()); !fits)
    return pass_on(std::move(fits));
  std::optional<HugeArray> own;
  std::optional<SharedArray> shared;
  if (settings.processes) {
    auto made = SharedArray::make(plan.bytes());
    if (!made)
      return pass_on(std::move(made));
    shared = std::move(*made);
  } else {
    own.emplace(plan.bytes());
  }
  std::byte* weights = shared ? shared->data() : own->data();
  fill_with_weights(plan, weights);
  const auto folder = ScratchFolder::make();
  if (!folder)
    return tl::make_unexpected(folder.error());
  const auto topology = folder->write("bench.toml", plan.topology());
  if (!topology)
    return tl::make_unexpected(topology.error());
  auto rounds = UpdateRounds::start(settings, plan, weights, *topology);
  if (!rounds)
    return pass_on(std::move(rounds));
  auto ran = shared ? run_in_processes(settings, *shared, *topology, *rounds)
                    : run_in_threads(settings, plan, weights, *topology, *rounds);
  if (!ran)
    return pass_on(std::move(ran));
  return rounds->finish();
}

Row row_of(const UpdateSettings& settings, const Rounds& rounds) {
  const double bytes = rounds.bytes;
  Row row{fmt::format("{} ranks to {} workers", settings.shape.ranks, settings.shape.workers),
          fmt::format("{:g} % changed", rounds.density),
          usable_cores(),
          bytes / rounds.median_of([](const Round& round) { return round.update.seconds; }),
          {}};
  const auto total = [](const Round& round) { return round.update.seconds; };
  const auto hardware = [&](const Round& round) { return rounds.hardware(round); };
  const auto kernels = [](const Round& round) { return round.kernels.all(); };
  const auto copy = [&](const Round& round) { return bytes / round.memory.copy; };
  row.limits.push_back(limit_of("hardware", rounds, hardware));
  if (settings.own_kernels)
    row.limits.push_back(limit_of("own kernels", rounds, kernels));
  if (rounds.density >= 100)
    row.limits.push_back(limit_of("a plain copy", rounds, copy));

  const auto add = [&](const char* group, const char* name, const char* unit, double scale, auto&& value,
                       bool in_table = false) {
    row.figures.push_back({group, name, unit, scale * rounds.median_of(value), in_table});
  };
  const auto outcome = [](auto member) {
    return [member](const Round& round) { return round.update.outcome.*member; };
  };
  const auto phase = [](auto member) {
    return [member](const Round& round) { return round.update.outcome.phase_s.*member; };
  };
  const auto kernel = [](auto member) { return [member](const Round& round) { return round.kernels.*member; }; };
  constexpr double ms = 1e3;
  constexpr double mb = 1e-6;
  add("update", "total", "ms", ms, total, true);
  add("update", "captured", "ms", ms, outcome(&Outcome::captured_s), true);
  add("update", "committed", "ms", ms, outcome(&Outcome::committed_s));
  add("update", "pause", "ms", ms, outcome(&Outcome::pause_s), true);
  add("phases", "diff", "ms", ms, phase(&PhaseSeconds::diff));
  add("phases", "gather", "ms", ms, phase(&PhaseSeconds::gather));
  add("phases", "assemble", "ms", ms, phase(&PhaseSeconds::assemble));
  add("phases", "send", "ms", ms, phase(&PhaseSeconds::send));
  add("phases", "stage", "ms", ms, phase(&PhaseSeconds::stage));
  add("phases", "commit", "ms", ms, phase(&PhaseSeconds::commit));
  add("moved", "changed", "M", 1e-6, outcome(&Outcome::changed));
  add("moved", "wire", "MB", mb, outcome(&Outcome::wire_bytes));
  add("moved", "gather", "MB", mb, outcome(&Outcome::gather_bytes));
  add(
    "moved", "wire a change", "B", 1,
    [](const Round& round) {
      return static_cast<double>(round.update.outcome.wire_bytes) /
             std::max(1.0, static_cast<double>(round.update.outcome.changed));
    },
    true);
  add("bounds", "hardware", "ms", ms, hardware);
  add("bounds", "plain copy", "ms", ms, copy);
  if (!settings.own_kernels)
    return row;
  add("bounds", "own kernels", "ms", ms, kernels);
  add("kernels", "capture", "ms", ms, kernel(&KernelSeconds::capture));
  add("kernels", "checksum", "ms", ms, kernel(&KernelSeconds::checksum));
  add("kernels", "decode", "ms", ms, kernel(&KernelSeconds::decode));
  add("kernels", "exchange", "ms", ms, kernel(&KernelSeconds::exchange));
  add("kernels", "read back", "ms", ms, kernel(&KernelSeconds::read_back));
  add("pause", "exchange and read back", "ms", ms, [](const Round& round) { return round.kernels.pause(); });
  add("pause", "ratio", "x", 1,
      [](const Round& round) { return round.update.outcome.pause_s / round.kernels.pause(); });
  return row;
}

UpdateSettings settings_of(const BenchOptions& options) {
  UpdateSettings settings;
  settings.shape = {.bytes = static_cast<std::uint64_t>(options.gib.value_or(1) * 0x1p30),
                    .tensors = static_cast<std::uint32_t>(options.tensors.value_or(300)),
                    .ranks = static_cast<std::uint32_t>(options.ranks.value_or(4)),
                    .workers = static_cast<std::uint32_t>(options.workers.value_or(2))};
  settings.densities = options.densities;
  if (settings.densities.empty())
    settings.densities = {0.1, 1, 7, 10, 100};
  settings.runs = static_cast<std::size_t>(options.runs.value_or(5));
  settings.spread = options.clustered ? Spread::clustered : Spread::uniform;
  settings.overrides = options.overrides;
  settings.processes = options.processes;
  return settings;
}

Result<Report> update_bench(const BenchOptions& options) {
  const UpdateSettings settings = settings_of(options);
  const auto measured = measure_updates(settings);
  if (!measured)
    return tl::make_unexpected(measured.error());
  Report report{"update", {}};
  for (const Rounds& rounds : *measured)
    report.rows.push_back(row_of(settings, rounds));
  return report;
}

} // namespace deltawire::bench
